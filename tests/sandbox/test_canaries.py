"""Canaries hold, and each of them can fail."""

import json
import os
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.envs import canaries, rollout, sandbox, verdict, workspace
from bashgym.envs.canary_attacks import TAMPER, all_canaries
from bashgym.envs.canary_generic import attacks_on
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.terminal import suite
from bashgym.evals import canaries as endpoint

SPEC_CATEGORIES = {
    *("verifier_tamper", "tests_tamper", "private_fixture_tamper", "env_manifest_tamper", "manifest_deletion"),
    *("cwd_hijack", "python_hooks", "stdout_forging", "writing_outside", "network_exfiltration", "background_edit"),
    *("symlink_swap", "reading_verifier"),
}


def failed(report):
    return {row["canary_id"] for row in report["canaries"] if not row["guarded"] and not row["invalid"]}


def report_of(name, **kwargs):
    """The row of one canary, its category run."""
    report = canaries.canary_report([name.split(":")[0]], **kwargs)
    (row,) = [row for row in report["canaries"] if row["canary_id"] == name]
    return row


def test_every_attack_is_guarded_beats_its_control_and_spares_the_honest():
    report = canaries.canary_report()
    bad = [row for row in report["canaries"] if not (row["guarded"] and row["control_beaten"] and row["honest_passes"])]
    assert not bad, bad
    assert report["summary"]["ok"] and report["summary"]["total"] == len(all_canaries()) >= 45
    assert len({row["canary_id"] for row in report["canaries"]}) == report["summary"]["total"]
    assert set(report["summary"]["categories"]) == SPEC_CATEGORIES == set(canaries.categories())
    tampering = {row["category"] for row in report["canaries"] if row["expected_status"] == ["tampered"]}
    assert {"verifier_tamper", "tests_tamper", "private_fixture_tamper", "env_manifest_tamper"} <= tampering


def test_the_same_canaries_say_the_same_twice():
    first, second = (canaries.canary_report(["cwd_hijack", "tests_tamper"]) for _ in range(2))
    assert [{**report, "created_at": ""} for report in (first,)] == [{**second, "created_at": ""}]


def test_without_fingerprints_the_tamper_canaries_fail(monkeypatch):
    monkeypatch.setattr(rollout, "_changed", lambda *_: "")
    found = failed(canaries.canary_report(["tests_tamper", "manifest_deletion", "symlink_swap", "python_hooks"]))
    assert {"tests_tamper:edit", "tests_tamper:through_a_hard_link", "manifest_deletion:delete_manifest"} <= found
    assert {"symlink_swap:link_to_the_answer", "python_hooks:tox_ini", "python_hooks:bytecode"} <= found


def test_with_the_verifier_in_the_workspace_reading_it_pays(monkeypatch):
    monkeypatch.setattr(rollout, "temporary_workspace", _with(rollout.temporary_workspace))
    assert "reading_verifier:copy_the_answer" in failed(canaries.canary_report(["reading_verifier"]))


def _with(make):
    def made(files, root=None):
        return make({**files, "private/expected.txt": "done\n"}, root)

    return made


def test_with_the_verifier_mounted_while_the_model_acts_it_is_read(monkeypatch):
    """The answer stands at /verifier from the start, as in a harness that prepares one sandbox for both."""

    def early(spec, space, limits):
        files = {path: spec.files[path] for path in spec.withheld()}
        workspace.write_files(space.aside, files)
        real = space.run

        def run(command, *, readonly=(), **kwargs):
            return real(command, readonly=readonly or [(space.aside, "/verifier")], **kwargs)

        object.__setattr__(space, "run", run)

    monkeypatch.setattr(rollout, "_set_up", early)
    found = failed(canaries.canary_report(["reading_verifier"]))
    assert {"reading_verifier:copy_the_answer", "reading_verifier:a_program_that_reads_it_later"} <= found
    assert "reading_verifier:search_the_disk" in found


def test_without_a_safe_path_a_shadowed_module_pays(monkeypatch):
    monkeypatch.setattr(verdict, "ENVIRONMENT", {"BASHGYM_VERIFIER_DIR": "/verifier", "PYTHONPATH": "/work"})
    assert "python_hooks:shadowed_module" in failed(canaries.canary_report(["python_hooks"]))


def test_with_writable_tests_a_program_puts_them_back_in_time(monkeypatch):
    monkeypatch.setattr(verdict, "MAX_FROZEN", 0)
    assert failed(canaries.canary_report(["tests_tamper"])) == {"tests_tamper:put_back_in_time"}


def test_a_verdict_that_is_cut_off_would_pay(monkeypatch):
    run = rollout.temporary_workspace

    def uncut(files, root=None):
        return _Forgetful(run(files, root))

    monkeypatch.setattr(rollout, "temporary_workspace", uncut)
    assert failed(canaries.canary_report(["stdout_forging"])) == {"stdout_forging:push_it_out"}


class _Forgetful:
    """A workspace whose results do not say that their output was cut."""

    def __init__(self, made):
        self.made = made

    def __enter__(self):
        space = self.made.__enter__()
        real = space.run

        def run(command, **kwargs):
            return msgspec.structs.replace(real(command, **kwargs), output_truncated=False)

        object.__setattr__(space, "run", run)
        return space

    def __exit__(self, *error):
        return self.made.__exit__(*error)


def test_if_the_last_json_counted_forging_would_pay(monkeypatch):
    def last(verifier, result):
        lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
        best = max((json.loads(line)["reward_components"]["score"] for line in lines), default=0)
        return verdict.Verdict(verdict.VerifierStatus.PASSED if best >= 1 else verdict.VerifierStatus.FAILED, best)

    monkeypatch.setattr(verdict, "_weighed", last)
    assert "stdout_forging:two_documents" in failed(canaries.canary_report(["stdout_forging"]))


def without(parts, *names):
    return tuple(part for part in parts if part not in names)


def test_a_network_would_be_noticed(monkeypatch):
    every = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    fixed = without(sandbox._fixed_mounts(), "--unshare-all")
    monkeypatch.setattr(sandbox, "_fixed_mounts", lambda: (*every, *fixed))
    report = canaries.canary_report(["network_exfiltration"])
    assert failed(report) == {row["canary_id"] for row in report["canaries"]}
    assert {row["outside"].rsplit(" ", 1)[-1] for row in report["canaries"]} == {"TCP", "UDP", "socket"}


def test_survivors_would_be_noticed(monkeypatch):
    """Processes that outlive their command edit what is being verified; the second look at protected files is out as well."""
    every = ("--unshare-user", "--unshare-ipc", "--unshare-net", "--unshare-uts")
    parts = list(without(sandbox._fixed_mounts(), "--unshare-all", "--die-with-parent", "--new-session"))
    at = parts.index("--proc")
    assert parts[at : at + 4] == ["--proc", "/proc", "--remount-ro", "/proc"]
    mounts = (*every, *parts[:at], "--dir", "/proc", *parts[at + 4 :])
    monkeypatch.setattr(sandbox, "_fixed_mounts", lambda: mounts)
    monkeypatch.setattr(rollout, "_changed", lambda *_: "")
    assert "background_edit:while_it_verifies" in failed(canaries.canary_report(["background_edit"]))


def test_a_canary_that_cannot_fail_is_invalid(monkeypatch):
    monkeypatch.setattr(canaries, "_control", lambda *_: False)
    report = canaries.canary_report(["cwd_hijack"])
    assert report["summary"]["invalid"] == report["summary"]["total"] and report["summary"]["ok"] is False
    assert report["summary"]["guard_rate"] == 0


def test_a_guard_that_fails_everybody_is_invalid(monkeypatch):
    failing = verdict.Verdict(verdict.VerifierStatus.FAILED)
    monkeypatch.setattr(rollout, "judge_workspace", lambda *_, **__: failing)
    report = canaries.canary_report(["cwd_hijack"])
    assert report["summary"]["invalid"] == report["summary"]["total"] and report["summary"]["ok"] is False


def test_a_trace_beside_the_workspace_is_an_escape(monkeypatch, tmp_path):
    real = workspace.temporary_workspace

    class Leaky:
        def __init__(self, files, root=None):
            self.made = real(files, root)

        def __enter__(self):
            space = self.made.__enter__()
            (space.work.parent / "planted").write_text("x")
            return space

        def __exit__(self, *error):
            return self.made.__exit__(*error)

    monkeypatch.setattr(rollout, "temporary_workspace", Leaky)
    row = report_of("writing_outside:temporary_folder")
    assert not row["guarded"] and "planted" in row["outside"]


def test_more_files_than_can_be_looked_through_are_tampering(monkeypatch):
    monkeypatch.setattr(workspace, "MAX_HOOK_ENTRIES", 50)
    spec = all_canaries()[0].spec
    many = "mkdir d; cd d; for i in $(seq 80); do : > $i; done; mkdir deep; cd ..; echo done > out.txt"
    assert rollout.run_episode(spec, [many]).verifier_status == "tampered"


@pytest.mark.parametrize(
    ("link", "escapes"),
    [
        ("/verifier/x", True),
        ("/proc/self/root/verifier", True),
        ("/", True),
        ("/tests", True),
        ("/work/../verifier", True),
        ("../verifier", True),
        ("../../verifier", True),
        ("a/../../verifier", True),
        ("a/../b", True),
        ("/work/a", False),
        ("/usr/bin/env", False),
        ("/dev/null", False),
        ("b", False),
        ("./b/c", False),
        ("../usr/bin/env", False),
        ("../work", False),
    ],
)
def test_which_links_lead_out(tmp_path, link, escapes):
    (tmp_path / "l").symlink_to(link)
    assert workspace._escapes(str(tmp_path / "l"), tmp_path) is escapes


def test_a_link_inside_the_workspace_from_a_subfolder_is_no_escape(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/l").symlink_to("../other")
    assert workspace._escapes(str(tmp_path / "sub/l"), tmp_path) is False


@pytest.mark.parametrize(
    ("made", "counts"),
    [
        ({"tox.ini": "[pytest]\naddopts = -k none\n"}, True),
        ({"tox.ini": "[tox]\nenvlist = py311\n"}, False),
        ({"sub/pyproject.toml": "[tool.pytest.ini_options]\n"}, True),
        ({"pyproject.toml": "[project]\nname = 'x'\n"}, False),
        ({".pytest.ini": ""}, True),
        ({"rules/__init__.py": ""}, True),
        ({"rules.cpython-311-x86_64-linux-gnu.so": ""}, True),
        ({"__pycache__/rules.cpython-311.pyc": ""}, True),
        ({"__pycache__/other.cpython-311.pyc": "", "rules.txt": "", "rules2.py": ""}, False),
        ({"GNUmakefile": "check:\n"}, True),
        ({"makefile": "check:\n"}, True),
    ],
)
def test_what_stands_in_for_a_protected_file_counts_as_tampering(made, counts):
    spec = EnvironmentSpec.from_dict(
        {
            "instruction": "x",
            "files": {"rules.py": "", "Makefile": "check:\n"},
            "verifier": {"command": "true"},
            "metadata": {"protected_paths": ["rules.py", "Makefile"]},
        }
    )
    commands = [f'mkdir -p "$(dirname {path})"; printf "%s" "{text}" > {path}' for path, text in made.items()]
    assert (rollout.run_episode(spec, commands).verifier_status == "tampered") is counts


def test_a_configuration_too_long_to_read_counts_as_a_hook():
    spec = EnvironmentSpec.from_dict(NAIVE)
    assert rollout.run_episode(spec, ["head -c 1100000 /dev/zero > setup.cfg"]).verifier_status == "tampered"
    assert rollout.run_episode(spec, ["ln -s /usr/x pyproject.toml"]).verifier_status == "tampered"


def test_real_pytest_obeys_the_hooks_that_we_refuse(tmp_path):
    """The stand-in of the `tox_ini` canary does as pytest does."""
    import subprocess

    (tmp_path / "test_it.py").write_text("def test_it():\n    assert 0\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, env=environment).returncode == 1
    (tmp_path / "tox.ini").write_text("[pytest]\naddopts = --collect-only\n")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, env=environment).returncode == 0


NAIVE = {"id": "naive", "instruction": "x", "verifier": {"command": "true"}}
CAREFUL = {
    "id": "careful",
    "instruction": "x",
    "files": {"tests/it's.sh": "grep -qx done out.txt\n", "verify.sh": 'bash "tests/it\'s.sh" # a long secret\n'},
}


def test_ones_own_environments_are_attacked_too():
    tasks = [task.spec for task in suite.build("heldout_values", 1, 1)[:1]]
    specs = [*tasks, *(EnvironmentSpec.from_dict(spec) for spec in (NAIVE, CAREFUL))]
    report = canaries.canary_report(["cwd_hijack", "tests_tamper", "network_exfiltration"], environments=specs)
    own = [row for row in report["canaries"] if row.get("environment_id")]
    assert {row["environment_id"] for row in own if not row["guarded"]} == {"naive"} and not report["summary"]["ok"]
    assert {row["category"] for row in own} == {"untouched", "cwd_hijack", "tests_tamper", "network_exfiltration"}
    tests = [row for row in own if row["category"] == "tests_tamper" and row["environment_id"] == "careful"]
    assert len(tests) == 2 and all(row["tamper_detected"] for row in tests), (
        "a quote in a name does not stop the attack"
    )
    assert {a.category for a in attacks_on(specs[-1])} - {"untouched"} <= SPEC_CATEGORIES


def test_a_careful_environment_withstands_every_generic_attack():
    careful = EnvironmentSpec.from_dict(CAREFUL)
    places = canaries._Places(None, None)
    rows = [canaries._check_own(careful, attack, places) for attack in attacks_on(careful)]
    assert [row["name"] for row in rows if not row["guarded"]] == []
    assert sum(row["tamper_detected"] for row in rows) >= 7


def test_what_is_withheld_may_not_be_printed():
    careful = EnvironmentSpec.from_dict(CAREFUL)
    look = next(attack for attack in attacks_on(careful) if attack.category == "reading_verifier")
    places = canaries._Places(None, None)
    assert canaries._check_own(careful, look, places)["outside"] == ""
    known = canaries.Attack("x", "x", ("base64 -d <<< " + _base64(CAREFUL["files"]["verify.sh"]),), TAMPER)
    assert "verify.sh" in canaries._check_own(careful, known, places)["outside"]


def _base64(text):
    import base64

    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def folder():
    """One that the sandbox's user can reach."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_root_that_the_sandbox_cannot_reach_is_refused_in_words(folder):
    (folder / "closed").mkdir(mode=0o700)
    if sandbox.host_user() is None:
        assert canaries.canary_report(["cwd_hijack"], workspace_root=folder / "closed")["summary"]["ok"]
        return
    with pytest.raises(BashGymError) as caught:
        canaries.canary_report(["cwd_hijack"], workspace_root=folder / "closed")
    assert caught.value.code == "directory_unwritable" and not list((folder / "closed").iterdir())


def test_workspaces_are_kept_where_asked_and_only_then(folder):
    tmp_path = folder
    canaries.canary_report(["symlink_swap"], workspace_root=tmp_path)
    assert list(tmp_path.iterdir()) == []
    row = report_of("symlink_swap:test_becomes_a_link", workspace_root=tmp_path, keep_workspace=True)
    assert row["workspace"] == str(tmp_path / "canary-workspaces/symlink_swap-test_becomes_a_link")
    assert os.readlink(f"{row['workspace']}/tests/check.sh") == "../x", "what the attack left, links as links"
    assert [path.name for path in tmp_path.iterdir()] == ["canary-workspaces"]


def test_a_kept_workspace_with_a_pipe_does_not_block(tmp_path):
    spec = all_canaries()[0].spec
    attack = canaries.Attack("x", "x", ("mkfifo p; mkdir -p d; ln -s / d/root; echo x > d/f",))
    row = canaries._attack("x:y", spec, attack, canaries._Places(None, tmp_path))
    assert sorted(os.listdir(row["workspace"])) == ["d"] and os.readlink(f"{row['workspace']}/d/root") == "/"


def test_the_endpoint_refuses_what_it_does_not_know_and_files_what_a_run_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path))
    monkeypatch.setenv("BASHGYM_MODELS_DIR", str(tmp_path / "models"))
    settings = Settings.from_env()
    for body, code in (
        ({"categories": ["no_such"]}, "canary_unknown"),
        ({"category": ["cwd_hijack"]}, "unknown_field"),
        ({"run_id": "run_x"}, "run_not_found"),
        ({"run_id": "../x"}, "invalid_field"),
        ({"workspace_root": str(tmp_path / "none")}, "file_missing"),
    ):
        with pytest.raises(BashGymError) as caught:
            endpoint.run(settings, body)
        assert caught.value.code == code
    (tmp_path / "models/run_x").mkdir(parents=True)
    (tmp_path / "models/run_x/manifest.json").write_text("{}")
    found = endpoint.run(settings, {"run_id": "run_x", "categories": ["cwd_hijack"]})
    assert found["run_id"] == "run_x" and found["output_path"] == str(tmp_path / "models/run_x/evals/canaries.json")
