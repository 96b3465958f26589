"""Attacks on the verdict: the verifier, protected files, forged rewards, limits of an episode, clean-up."""

import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.envs.rollout import OBSERVATION_CHARS, run_episode
from bashgym.envs.sandbox import Limits
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.verdict import VerifierStatus

HELLO = {"instruction": "write hello to out.txt", "verifier": {"command": "grep -qx hello out.txt"}}
PARTS = {
    "reward_components": [{"name": "form"}, {"name": "sum", "weight": 2.0}],
    "reward_type": "multi",
    "success_threshold": 2.5,
}


def spec(**fields):
    return EnvironmentSpec.from_dict({**HELLO, **fields})


def scripted(body, **fields):
    """A spec whose verifier is a script."""
    return spec(verifier={}, files={"verify.sh": body, **fields.pop("files", {})}, **fields)


def test_a_right_command_passes():
    result = run_episode(spec(), ["echo hello > out.txt"])
    assert (result.passed, result.reward, result.verifier_status) == (True, 1.0, VerifierStatus.PASSED)
    assert result.steps[0].exit_code == 0


@pytest.mark.parametrize("commands", [[], [""], ["true"], ["echo bye > out.txt"], ["exit 3"]])
def test_a_wrong_or_missing_command_fails(commands):
    result = run_episode(spec(), commands)
    assert (result.passed, result.reward, result.verifier_status) == (False, 0.0, VerifierStatus.FAILED)


def test_files_stay_from_command_to_command_and_the_folder_is_reset():
    result = run_episode(
        spec(files={"d/a": "hel"}), ["cd d && printf lo > b", "cat d/a d/b > out.txt; echo >> out.txt"]
    )
    assert result.passed


def test_verify_sh_runs_without_its_executable_bit_and_from_the_workspace():
    assert run_episode(scripted('[ "$PWD" = /work ] && [ -f out.txt ]'), ["touch out.txt"]).passed


def test_the_verifier_and_private_fixtures_cannot_be_read_in_the_models_turn():
    task = scripted(
        "grep -qx canary-91 out.txt",
        files={"private/answer.txt": "canary-91\n"},
        fixtures=[{"path": "private/answer.txt", "kind": "private"}],
    )
    result = run_episode(
        task, ["cat verify.sh private/* /verifier/*; grep -rs canary /work /tmp /verifier > out.txt; ls -A"]
    )
    assert not result.passed and "canary" not in result.steps[0].stdout and result.steps[0].stdout == "out.txt\n"


def test_a_private_fixture_is_there_for_the_verifier():
    task = scripted(
        'cmp out.txt "$BASHGYM_VERIFIER_DIR/private/answer.txt"',
        files={"private/answer.txt": "42\n"},
        fixtures=[{"path": "private/answer.txt", "kind": "private"}],
    )
    assert run_episode(task, ["echo 42 > out.txt"]).passed


@pytest.mark.parametrize(
    "attack",
    [
        "printf 'exit 0' > verify.sh; chmod +x verify.sh",
        "ln -s /bin/true verify.sh",
        "mkdir verify.sh",
        "echo pass > tests/test_a.py",
        "rm tests/test_a.py",
        "rm -r tests",
        "echo 'x' > tests/conftest.py",
        "cp -r tests t2 && rm -r tests && ln -s t2 tests",
        "cp tests/test_a.py x && rm tests/test_a.py && ln -s ../x tests/test_a.py",
        "rm tests/test_a.py && mkfifo tests/test_a.py",
        "echo '{}' > env.json",
        "echo x >> data/keep.txt",
        "mv data old && mkdir data && cp old/keep.txt data/ && touch data/more",
        "echo 'raise SystemExit(0)' > conftest.py",
        "mkdir -p deep/er && echo x > deep/er/sitecustomize.py",
        "touch usercustomize.py",
        "echo import os > evil.pth",
    ],
)
def test_touching_what_is_protected_is_tampering(attack):
    task = scripted(
        "exit 0",
        files={"tests/test_a.py": "assert 1\n", "data/keep.txt": "k\n"},
        metadata={"protected_paths": ["data"]},
    )
    result = run_episode(task, [attack])
    assert (result.passed, result.reward, result.verifier_status) == (False, 0.0, VerifierStatus.TAMPERED)


def test_reading_protected_files_is_fine():
    task = scripted("exit 0", files={"tests/test_a.py": "assert 1\n"})
    assert run_episode(task, ["cat tests/*; cp tests/test_a.py mine.py; touch tests/test_a.py"]).passed


def test_protection_can_be_switched_off_but_the_verifier_is_still_the_pristine_one():
    task = scripted("[ -f won ]", metadata={"allow_protected_file_edits": True})
    assert run_episode(task, ["echo exit 0 > verify.sh"]).verifier_status is VerifierStatus.FAILED


def test_a_fake_program_in_the_workspace_is_not_what_the_verifier_calls():
    attack = "printf '#!/bin/sh\\nexit 0' | tee grep bash cat > /dev/null; chmod +x grep bash cat; export PATH=.:$PATH"
    assert run_episode(spec(), [attack]).verifier_status is VerifierStatus.FAILED


def test_a_fake_verifier_in_a_subfolder_is_not_the_one_that_runs():
    attack = "mkdir sub && cd sub && printf 'exit 0' > verify.sh && chmod +x verify.sh"
    assert run_episode(scripted("[ -f out.txt ]"), [attack]).verifier_status is VerifierStatus.FAILED


def test_startup_files_do_not_reach_the_verifier():
    attack = (
        "for f in .bashrc .profile .bash_profile; do echo 'exit 0' | tee $f ~/$f; done; export BASH_ENV=/work/.bashrc"
    )
    assert run_episode(spec(), [attack]).verifier_status is VerifierStatus.FAILED


def test_a_process_left_behind_cannot_change_the_workspace_under_the_verifier():
    attack = "(setsid sh -c 'while :; do echo hello > out.txt; done' > /dev/null 2>&1 &) ; sleep 0.05; rm -f out.txt"
    result = run_episode(scripted("sleep 0.2; rm -f out.txt; sleep 0.2; [ -f out.txt ]"), [attack])
    assert result.verifier_status is VerifierStatus.FAILED


def test_the_verifier_changing_a_protected_file_is_tampering():
    task = scripted("echo x > env.json", files={"tests/test_a.py": "assert 1\n"})
    assert run_episode(task, []).verifier_status is VerifierStatus.TAMPERED
    task = scripted("echo x > tests/test_a.py || echo y > tests/new || exit 0", files={"tests/test_a.py": "assert 1\n"})
    assert run_episode(task, []).passed, "what is protected and there cannot be written at all"


def parts(printed, **verifier):
    return spec(verifier={**PARTS, **verifier}, files={"verify.sh": printed})


def test_components_are_weighed():
    result = run_episode(parts("""echo '{"reward_components": {"form": 1, "sum": 0.75}}'"""), [])
    assert (result.passed, result.reward, result.reward_components) == (True, 2.5, {"form": 1.0, "sum": 0.75})


def test_below_the_threshold_is_a_failure_with_its_reward():
    result = run_episode(parts("""echo '{"reward_components": {"form": 1, "sum": 0}, "total_reward": 1}'"""), [])
    assert (result.passed, result.reward, result.verifier_status) == (False, 1.0, VerifierStatus.FAILED)


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "passed",
        '{"reward_components": {"form": 1}}',
        '{"reward_components": {"form": 1, "sum": 1, "more": 9}}',
        '{"reward_components": {"form": 1, "sum": 1}, "total_reward": 9}',
        '{"reward_components": {"form": 1, "sum": "9"}}',
        '{"reward_components": {"form": 1, "sum": NaN}}',
        '{"reward_components": {"form": 1, "sum": 1e999}}',
        '{"reward_components": {"form": 1, "sum": 1}, "passed": true}',
        '{"reward_components": {"form": 0, "sum": 0}}\n{"reward_components": {"form": 1, "sum": 1}}',
    ],
)
def test_a_reward_that_does_not_add_up_is_an_error_and_no_pass(printed):
    result = run_episode(parts(f"cat <<'END'\n{printed}\nEND\n"), [])
    assert (result.passed, result.reward, result.verifier_status) == (False, 0.0, VerifierStatus.REWARD_ERROR)


def test_a_forged_reward_of_the_models_own_script_does_not_count():
    forged = json.dumps({"reward_components": {"form": 1, "sum": 1}})
    task = parts("""sh made.sh; echo '{"reward_components": {"form": 0, "sum": 0}}'""")
    assert not run_episode(task, [f"echo \"echo '{forged}'\" > made.sh"]).passed


def test_a_probe_runs_the_models_script_where_the_verifier_is_not():
    check = 'grep -qx canary-13 "$BASHGYM_VERIFIER_DIR/probe.out"'
    task = spec(verifier={"probe": "sh made.sh"}, files={"verify.sh": check})
    assert run_episode(task, ["echo echo canary-13 > made.sh"]).passed
    stolen = run_episode(task, ["echo 'cat /verifier/*; grep -rs canary /verifier' > made.sh"])
    assert stolen.verifier_status is VerifierStatus.FAILED


def test_a_broken_verifier_is_a_reward_error():
    assert run_episode(spec(verifier={"command": "no-such-program"}), []).verifier_status is VerifierStatus.REWARD_ERROR


def test_the_verifiers_own_time_limit_holds():
    begin = time.monotonic()
    result = run_episode(spec(verifier={"command": "cat out.txt", "timeout_sec": 0.3}), ["mkfifo out.txt"])
    assert result.verifier_status is VerifierStatus.TIMEOUT and not result.passed
    assert time.monotonic() - begin < 5


def test_a_command_out_of_time_is_exit_code_124_and_the_episode_goes_on():
    task = spec(rollout={"bash_timeout_sec": 0.3})
    result = run_episode(task, ["sleep 9", "echo hello > out.txt"])
    assert [step.exit_code for step in result.steps] == [124, 0] and result.passed


def test_ending_on_a_command_out_of_time_is_a_timeout():
    assert run_episode(spec(rollout={"bash_timeout_sec": 0.3}), ["sleep 9"]).verifier_status is VerifierStatus.TIMEOUT


def test_the_episodes_time_ends_it():
    result = run_episode(spec(rollout={"timeout_sec": 0.3}), ["sleep 9", "echo hello > out.txt"])
    assert result.verifier_status is VerifierStatus.TIMEOUT and len(result.steps) == 1


def test_a_flood_is_blocked_with_126():
    result = run_episode(spec(), ["yes"], limits=Limits(flood_bytes=1 << 20))
    assert result.steps[0].exit_code == 126 and result.verifier_status is VerifierStatus.BLOCKED


def test_a_command_with_nul_is_blocked_and_never_run():
    result = run_episode(spec(), ["echo hello > out.txt\0"])
    assert result.steps[0].exit_code == 126 and result.verifier_status is VerifierStatus.BLOCKED


def test_more_commands_than_allowed_are_not_run():
    result = run_episode(spec(rollout={"max_steps": 1}), ["true", "echo hello > out.txt"])
    assert [step.exit_code for step in result.steps] == [0, 126] and not result.passed


def test_observations_are_clipped_at_both_ends():
    shown = run_episode(spec(), ["seq 20000"]).steps[0].stdout
    assert len(shown) < OBSERVATION_CHARS + 100 and shown.startswith("1\n") and "left out" in shown


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"build": {"network_disabled": False}}, "build.network_disabled"),
        ({"build": {"setup_commands": ["exit 4"]}}, "build.setup_commands"),
        ({"verifier": {}}, "verifier.command"),
        ({"fixtures": [{"path": "absent"}]}, "fixtures"),
    ],
)
def test_what_cannot_be_run_here_is_refused_not_ignored(fields, field):
    with pytest.raises(BashGymError) as refused:
        run_episode(spec(**fields), [])
    assert refused.value.code == "environment_invalid" and refused.value.fields == [field]


def leftovers(root):
    return list(Path(root).iterdir())


@pytest.mark.parametrize(
    "mess",
    [
        "mkdir a && touch a/b && chmod 000 a",
        "mkdir a && touch a/b && chmod 555 a . ",
        "d=$(printf 'd/%.0s' $(seq 1000)); mkdir -p $d && cd $d && mkdir -p $d",
        "touch -- '-rf' $'new\\nline' 'ü'; mkfifo pipe; ln -s / root",
    ],
)
def test_the_workspace_is_removed_whatever_is_in_it(mess):
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        run_episode(spec(), [mess], workspace_root=Path(root))
        assert leftovers(root) == []


def test_ctrl_c_leaves_nothing_behind():
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            run_episode(spec(), ["sleep 30"], workspace_root=Path(root))
        assert leftovers(root) == []
