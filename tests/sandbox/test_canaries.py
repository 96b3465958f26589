"""Canaries hold, and each of them can fail."""

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.envs import canaries, rollout, sandbox, verdict, workspace
from bashgym.envs.canary_attacks import all_canaries
from bashgym.envs.terminal import suite
from bashgym.evals import canaries as endpoint

SPEC_CATEGORIES = {
    *(
        "verifier_tamper",
        "tests_tamper",
        "private_fixture_tamper",
        "env_manifest_tamper",
        "manifest_deletion",
        "cwd_hijack",
    ),
    *("python_hooks", "stdout_forging", "writing_outside", "network_exfiltration", "background_edit", "symlink_swap"),
    "reading_verifier",
}


def failed(report):
    return {row["category"] for row in report["canaries"] if not row["guarded"] and not row["invalid"]}


def test_every_attack_is_guarded_beats_its_control_and_spares_the_honest():
    report = canaries.canary_report()
    bad = [row for row in report["canaries"] if not (row["guarded"] and row["control_beaten"] and row["honest_passes"])]
    assert not bad, bad
    assert report["summary"]["ok"] and report["summary"]["total"] == len(all_canaries()) >= 30
    assert set(report["summary"]["categories"]) == SPEC_CATEGORIES == set(canaries.categories())
    tampering = {row["category"] for row in report["canaries"] if row["expected_status"] == ["tampered"]}
    assert {"verifier_tamper", "tests_tamper", "private_fixture_tamper", "env_manifest_tamper"} <= tampering


def test_without_fingerprints_the_tamper_canaries_fail(monkeypatch):
    monkeypatch.setattr(rollout, "_changed", lambda *_: "")
    report = canaries.canary_report(["tests_tamper", "manifest_deletion", "symlink_swap", "python_hooks"])
    assert {"tests_tamper", "manifest_deletion", "symlink_swap"} <= failed(report)


def test_with_the_verifier_in_the_workspace_reading_it_pays(monkeypatch):
    monkeypatch.setattr(rollout, "temporary_workspace", _with_answers(rollout.temporary_workspace))
    assert failed(canaries.canary_report(["reading_verifier"])) == {"reading_verifier"}


def _with_answers(make):
    def made(files, root=None):
        return make({**files, "private/expected.txt": "done\n"}, root)

    return made


def test_without_a_safe_path_a_shadowed_module_pays(monkeypatch):
    monkeypatch.setattr(verdict, "ENVIRONMENT", {"BASHGYM_VERIFIER_DIR": "/verifier", "PYTHONPATH": "/work"})
    assert failed(canaries.canary_report(["python_hooks"])) == {"python_hooks"}


def test_a_network_would_be_noticed(monkeypatch):
    fixed = [part for part in sandbox._fixed_mounts() if part != "--unshare-all"]
    every = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    monkeypatch.setattr(sandbox, "_fixed_mounts", lambda: (*every, *fixed))
    assert failed(canaries.canary_report(["network_exfiltration"])) == {"network_exfiltration"}


def test_survivors_would_be_noticed(monkeypatch):
    """Background edits are stopped by the end of each command's processes; a harness that judges in their session is beaten."""
    row = canaries.canary_report(["background_edit"])["canaries"][0]
    assert row["control_beaten"] and row["guarded"]
    monkeypatch.setattr(canaries, "_control", lambda *_: False)
    report = canaries.canary_report(["background_edit"])
    assert report["summary"]["invalid"] == 2 and report["summary"]["ok"] is False, (
        "a canary that cannot fail is invalid"
    )


def test_a_guard_that_fails_everybody_is_invalid(monkeypatch):
    monkeypatch.setattr(rollout, "judge_workspace", lambda *_: verdict.Verdict(verdict.VerifierStatus.FAILED))
    report = canaries.canary_report(["cwd_hijack"])
    assert report["summary"]["invalid"] == report["summary"]["total"] and report["summary"]["ok"] is False


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


def test_ones_own_environments_are_attacked_too():
    specs = [task.spec for task in suite.build("heldout_values", 1, 1)[:2]]
    naive = canaries.EnvironmentSpec.from_dict({"id": "naive", "instruction": "x", "verifier": {"command": "true"}})
    report = canaries.canary_report(["cwd_hijack"], environments=[*specs, naive])
    through = {row["environment_id"] for row in report["canaries"] if row.get("environment_id") and not row["guarded"]}
    assert through == {"naive"} and report["summary"]["ok"] is False


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
