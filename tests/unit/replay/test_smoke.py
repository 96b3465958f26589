"""The smoke bundle: every check code has a replay that shows it, verdicts follow, and nothing is read by a shell."""

import json
import os
import subprocess

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.data.replay_records import read_records, write_records
from bashgym.evals import launch
from bashgym.evals.replay import TrainLogprobs, enrich
from bashgym.evals.smoke import smoke_plan
from bashgym.runs.analysis_facts import read_smoke

from .replay_data import TINY, attempt, write

FILES = {
    "backend_smoke_readiness.json",
    "dppo_replay_summary.json",
    "world_model_backend_probe.json",
    "dppo_launch_env.json",
    "launch_dppo_smoke.sh",
}
WORLD = {
    "rwml_transitions": [{"instruction": "i", "action": "ls", "next_state": "out"}],
    "echo": {"segments": [{"role": "action", "text": "ls"}, {"role": "observation", "text": "out"}]},
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return Settings.from_env({"BASHGYM_DIR": str(tmp_path_factory.mktemp("home"))})


def enriched(folder, count=8, world=None):
    path = write(folder, [{**attempt(i), "world_model": world} for i in range(count)])
    records = read_records(path)
    entries = [
        TrainLogprobs(environment_id=r.environment_id, attempt_index=r.attempt_index, token_logprobs=[-2.0, -0.5])
        for r in records
    ]
    enrich(records, entries)
    write_records(path, records)
    return path


def plan(folder, replay, settings, **fields):
    body = {"replay_path": str(replay), "output_dir": str(folder / "smoke"), "base_model": TINY, **fields}
    return smoke_plan(body, settings)


def codes(report):
    return {check["code"]: check["level"] for check in report["checks"]}


def test_a_scored_replay_is_ready_and_has_its_five_files(tmp_path, settings):
    report = plan(tmp_path, enriched(tmp_path), settings)
    assert report["verdict"]["level"] == "ready", report
    assert report["contract_ready"] and report["optimizer_ready"] and report["backend_launch_ready"]
    assert report["checks"] == [] and report["launch_plan"]["backend"] == "bashgym"
    assert {os.path.basename(name) for name in report["files"]} == FILES == set(os.listdir(tmp_path / "smoke"))
    assert json.loads((tmp_path / "smoke/backend_smoke_readiness.json").read_text()) == report
    assert read_smoke(tmp_path / "smoke")["level"] == "ready"


def test_without_training_log_probabilities_it_is_not_optimizer_ready(tmp_path, settings):
    report = plan(tmp_path, write(tmp_path, [attempt(i) for i in range(4)]), settings)
    assert report["verdict"]["level"] == "needs_train_logprob_replay"
    assert report["contract_ready"] and not report["optimizer_ready"] and not report["backend_launch_ready"]
    assert codes(report) == {"train_logprob_replay_needed": "warn"}


def _unmeasured():
    record = attempt(0)
    record["behavior_policy"]["response_logprobs"] = []
    return record


@pytest.mark.parametrize(
    ("records", "fields", "code"),
    [
        (None, {}, "missing_replay_path"),
        ([], {}, "empty_replay"),
        ([{**attempt(0), "schema_version": "x"}], {}, "invalid_schema_version"),
        ([{**attempt(0), "reward": "high"}], {}, "invalid_replay"),
        ([_unmeasured()], {}, "missing_behavior_logprobs"),
        ([attempt(0)], {"echo_enabled": True}, "missing_world_model_payloads"),
        ([{**attempt(0), "world_model": {"echo": WORLD["echo"]}}], {"rwml_enabled": True}, "missing_rwml_transitions"),
        (
            [{**attempt(0), "world_model": {"rwml_transitions": WORLD["rwml_transitions"]}}],
            {"echo_enabled": True},
            "missing_echo_observations",
        ),
    ],
)
def test_what_is_missing_blocks_by_its_code(tmp_path, settings, records, fields, code):
    replay = tmp_path / "absent.jsonl" if records is None else write(tmp_path, records)
    report = plan(tmp_path, replay, settings, **fields)
    assert codes(report)[code] == "fail" and report["verdict"]["level"] == "blocked"
    assert not (report["contract_ready"] or report["optimizer_ready"] or report["backend_launch_ready"])


def test_world_model_payloads_satisfy_their_checks(tmp_path, settings):
    report = plan(tmp_path, enriched(tmp_path, world=WORLD), settings, echo_enabled=True, rwml_enabled=True)
    assert report["verdict"]["level"] == "ready" and report["launch_plan"]["warnings"]
    assert json.loads((tmp_path / "smoke/world_model_backend_probe.json").read_text())["ready"] is True
    env = json.loads((tmp_path / "smoke/dppo_launch_env.json").read_text())
    assert env["BASHGYM_DPPO_ECHO_ENABLED"] == "1" and all(isinstance(value, str) for value in env.values())


@pytest.mark.parametrize("hook", [launch.ECHO_HOOK, launch.RWML_HOOK])
def test_the_hooks_that_the_environment_names_exist(hook):
    from pathlib import Path

    module, _, name = hook.partition(":")
    import bashgym

    source = Path(bashgym.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
    assert f"def {name}(" in source


# -- backends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["verl", "skyrl", "tmax_open_instruct"])
def test_a_backend_that_is_not_here_is_not_available(tmp_path, settings, backend, monkeypatch):
    for _, variables in launch.OUTSIDE.values():
        for variable in variables:
            monkeypatch.delenv(variable, raising=False)
    report = plan(tmp_path, enriched(tmp_path), settings, backend=backend, command_template="true {replay}")
    launched = report["launch_plan"]
    assert not launched["available"] and not launched["runnable"] and "not installed" in launched["reason"]
    assert report["verdict"]["level"] == "needs_backend" and codes(report) == {"backend_launch_plan": "warn"}


def test_an_installed_backend_without_a_command_is_not_called_ready(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("VERL_HOME", str(tmp_path))
    launched = plan(tmp_path, enriched(tmp_path), settings, backend="verl")["launch_plan"]
    assert launched["available"] and not launched["runnable"] and "command_template" in launched["reason"]
    launched = plan(
        tmp_path, enriched(tmp_path), settings, backend="verl", command_template="no-such-program {replay}"
    )["launch_plan"]
    assert not launched["runnable"] and "no program" in launched["reason"]


def test_a_command_may_come_from_the_environment_and_the_request_wins(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("SKYRL_HOME", str(tmp_path))
    template = {"BASHGYM_DPPO_SKYRL_COMMAND_TEMPLATE": "true --data {replay}", "BASHGYM_DIR": str(settings.home)}
    own = Settings.from_env(template)
    path = enriched(tmp_path)
    command = plan(tmp_path, path, own, backend="skyrl")["launch_plan"]["command"]
    assert command == ["true", "--data", str(path)]
    given = plan(tmp_path, path, own, backend="skyrl", command_template="true {base_model}")
    assert given["launch_plan"]["command"] == ["true", TINY]


def test_grpo_is_never_passed_off_as_dppo(tmp_path, settings):
    report = plan(tmp_path, enriched(tmp_path), settings, backend="grpo_fallback")
    launched = report["launch_plan"]
    assert launched["fallback_to_grpo"] and not launched["runnable"] and not report["backend_launch_ready"]
    assert "not a DPPO update" in launched["reason"]


def test_a_model_whose_tokens_they_are_not_is_no_launch(tmp_path, settings):
    path = enriched(tmp_path)
    records = read_records(path)
    for record in records:
        record.behavior_policy.response_logprobs[0].prompt_tokens = 3
    write_records(path, records)
    report = plan(tmp_path, path, settings)
    assert report["verdict"]["level"] == "needs_backend" and "counted 3" in report["launch_plan"]["reason"]


def test_a_hostile_path_is_one_word_of_the_command_and_of_the_script(tmp_path, settings, monkeypatch):
    evil = tmp_path / "a b; touch pwned; $(touch pwned) '{replay}'"
    evil.mkdir()
    monkeypatch.setenv("VERL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    template = "printf '<%s>' {replay} --steps={max_steps}"
    report = plan(evil, enriched(evil), settings, backend="verl", command_template=template, max_steps=3)
    command = report["launch_plan"]["command"]
    assert command == ["printf", "<%s>", str(evil / "replay.jsonl"), "--steps=3"] and report["backend_launch_ready"]
    done = subprocess.run(["sh", report["launch_plan"]["script_path"]], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f"<{evil / 'replay.jsonl'}><--steps=3>" and done.returncode == 0, done.stderr
    assert not (tmp_path / "pwned").exists() and not (evil / "pwned").exists()


def test_a_plan_that_cannot_run_has_a_script_that_says_so(tmp_path, settings):
    report = plan(tmp_path, enriched(tmp_path), settings, backend="grpo_fallback")
    done = subprocess.run(["sh", report["launch_plan"]["script_path"]], capture_output=True, text=True)
    assert done.returncode == 69 and "ordinary GRPO" in done.stderr


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"backend": "verll"}, "backend"),
        ({"command_template": "run {nothing}"}, "command_template"),
        ({"command_template": "run {replay.__class__}"}, "command_template"),
        ({"command_template": "run {replay!r}"}, "command_template"),
        ({"command_template": "run 'open"}, "command_template"),
        ({"command_template": " "}, "command_template"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 101}, "max_steps"),
        ({"n_gpus_per_node": 65}, "n_gpus_per_node"),
        ({"rwml_distance_threshold": 0}, "rwml_distance_threshold"),
        ({"max_step": 1}, "max_step"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_writes_nothing(tmp_path, settings, fields, field):
    with pytest.raises(BashGymError) as caught:
        plan(tmp_path, tmp_path / "r.jsonl", settings, **fields)
    assert field in caught.value.fields and not (tmp_path / "smoke").exists()
