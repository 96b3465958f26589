"""Whole runs: what a finished one leaves, and that pausing changes nothing."""

import json

import pytest
from safetensors.numpy import load_file

from bashgym.core.errors import BashGymError
from bashgym.runs import verdicts
from bashgym.training import EXIT_PAUSED

from .conftest import TINY, wait_end, wait_step

pytestmark = pytest.mark.train


def _weights(run, name="final"):
    (path,) = run.file(name).glob("*.safetensors")
    return load_file(path)


def _same(a, b):
    return a.keys() == b.keys() and all((a[k] == b[k]).all() for k in a)


def test_a_lora_run_leaves_everything_that_a_run_must(workspace, body):
    started = workspace.runs.start({**body, "sample_prompts": 2})
    assert started["status"] == "queued" and started["tracking_ids"]["context_status"] == "unassigned"
    final = wait_end(workspace, started["run_id"])
    assert final["status"] == "completed", final
    run = workspace.runs.locate(started["run_id"])
    for name in (
        "request.json",
        "manifest.json",
        "run_state.json",
        "metrics.jsonl",
        "training.log",
        "model_profile.json",
        "samples.jsonl",
    ):
        assert run.file(name).is_file(), name
    assert run.file("final/adapter_config.json").is_file()
    assert not list(run.path.glob("checkpoint-*")), "adapter_only prunes"
    points = run.metrics()
    assert [p["step"] for p in points] == list(range(1, 9))
    assert all(p["loss"] > 0 and p["learning_rate"] >= 0 and p["peak_memory_gb"] > 0 for p in points)
    kinds = [event["type"] for event in run.events()]
    assert kinds.index("final-saved") < kinds.index("checkpoints-pruned") < kinds.index("training-completed")
    assert final["progress"]["step"] == final["progress"]["total_steps"] == 8
    assert run.state().exit == {"code": 0, "signal": None}
    ledger = workspace.ledger.find_run(started["run_id"])
    assert ledger["status"] == "completed"


def test_full_fine_tuning_moves_all_weights_and_keeps_the_policy(workspace, body):
    run_id = workspace.runs.start(
        {**body, "use_lora": False, "artifact_retention": "full_run", "checkpoint_limit": 2, "auto_export_gguf": False}
    )["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = workspace.runs.locate(run_id)
    base = load_file(workspace.model(TINY).path / "model.safetensors")
    tuned = _weights(run)
    assert tuned.keys() == base.keys()
    assert all((tuned[k] != base[k]).any() for k in base)
    assert sorted(p.name for p in run.path.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-8"]


def test_deployable_saves_a_merged_model_with_the_adapters_logits(workspace, body):
    run_id = workspace.runs.start({**body, "artifact_retention": "deployable", "auto_export_gguf": False})["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = workspace.runs.locate(run_id)
    merged = next(e for e in run.events() if e["type"] == "merged-saved")
    assert merged["max_relative_difference"] < 1e-3
    assert workspace.model(str(run.file("merged"))).adapter_path is None
    assert workspace.model(run_id).adapter_path == run.file("final")


def test_a_paused_and_resumed_run_ends_in_the_same_bits(workspace, body):
    body = {**body, "num_epochs": 3, "lora_dropout": 0.1, "eval_split": 0.2, "save_steps": 5}
    straight = workspace.runs.start(body)["run_id"]
    assert wait_end(workspace, straight)["status"] == "completed"
    halted = workspace.runs.start(body)["run_id"]
    wait_step(workspace, halted, 3)
    workspace.runs.pause(halted)
    paused = wait_end(workspace, halted)
    assert paused["status"] == "paused" and paused["last_checkpoint"], paused
    at = max(p["step"] for p in workspace.runs.locate(halted).metrics())
    assert at < 21
    workspace.runs.resume(halted)
    assert wait_end(workspace, halted)["status"] == "completed"
    a, b = (workspace.runs.locate(name) for name in (straight, halted))
    assert _same(_weights(a), _weights(b)), f"paused at step {at}"
    losses = [{p["step"]: p.get("loss") for p in run.metrics() if "loss" in p} for run in (a, b)]
    assert losses[0] == losses[1]


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(workspace, body):
    ids = [workspace.runs.start({**body, "seed": seed})["run_id"] for seed in (1, 1, 2)]
    for run_id in ids:
        assert wait_end(workspace, run_id)["status"] == "completed"
    one, again, other = (_weights(workspace.runs.locate(run_id)) for run_id in ids)
    assert _same(one, again) and not _same(one, other)


def test_a_run_continues_from_another_runs_adapter(workspace, body):
    first = workspace.runs.start(body)["run_id"]
    assert wait_end(workspace, first)["status"] == "completed"
    second = workspace.runs.start({**body, "base_model": first})["run_id"]
    assert wait_end(workspace, second)["status"] == "completed"
    manifest = workspace.runs.locate(second).manifest()
    assert manifest["model"]["source"] == "run" and manifest["model"]["adapter_path"].endswith(f"{first}/final")


def test_evaluation_split_is_held_out_and_reported(workspace, body):
    run_id = workspace.runs.start({**body, "eval_split": 0.25, "eval_steps": 2})["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = workspace.runs.locate(run_id)
    assert run.manifest()["dataset"]["train_rows"] == 48 and run.manifest()["dataset"]["eval_rows"] == 16
    assert [p["step"] for p in run.metrics() if "eval_loss" in p] == [2, 4, 6]


def test_nan_is_named_and_not_offered_for_promotion(workspace, body):
    run_id = workspace.runs.start(
        {**body, "use_lora": False, "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 1e9, "num_epochs": 6}
    )["run_id"]
    final = wait_end(workspace, run_id)
    run = workspace.runs.locate(run_id)
    broken = [p for p in run.metrics() if p.get("non_finite")]
    assert broken, "a learning rate of 1 without clipping must diverge"
    assert final["status"] == "completed" and "diverged" in final["message"]
    assert json.loads(run.file("model_profile.json").read_text())["status"] == "diverged"
    codes = {f["code"] for f in workspace.runs.analysis(run_id)["findings"]}
    assert "non_finite_values" in codes


def test_trainer_args_reach_trl_and_unknown_ones_are_refused(workspace, body):
    with pytest.raises(BashGymError) as caught:
        workspace.runs.start({**body, "trainer_args": {"neftune_noise_alfa": 5}})
    assert caught.value.code == "unknown_trainer_arg" and "neftune_noise_alpha" in caught.value.hint
    with pytest.raises(BashGymError) as caught:
        workspace.runs.start({**body, "trainer_args": {"per_device_train_batch_size": 4}})
    assert caught.value.code == "field_has_flag" and "batch_size" in caught.value.hint
    run_id = workspace.runs.start({**body, "trainer_args": {"adam_beta2": 0.5}})["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"


def test_the_wall_clock_budget_ends_a_run_early_and_keeps_what_it_learnt(workspace, body):
    run_id = workspace.runs.start({**body, "num_epochs": 100, "max_minutes": 1 / 60})["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = workspace.runs.locate(run_id)
    reached = next(e for e in run.events() if e["type"] == "budget-reached")
    assert reached["step"] < 800 and run.file("final/adapter_config.json").is_file()


def test_what_this_machine_lacks_is_refused_by_name(workspace, body):
    for change, code, field in (
        ({"load_in_4bit": True}, "quantization_unavailable", "load_in_4bit"),
        ({"sft_backend": "unsloth"}, "missing_extra", "sft_backend"),
        ({"report_to": ["mlflow"]}, "missing_extra", "report_to"),
        ({"use_liger": True}, "missing_extra", "use_liger"),
        ({"num_processes": 2, "distributed": "deepspeed"}, "missing_extra", "distributed"),
        ({"auto_push_hf": True, "hf_repo_name": "o/r"}, "hub_unavailable", "auto_push_hf"),
        ({"auto_deploy_ollama": True}, "export_unavailable", "auto_deploy_ollama"),
    ):
        with pytest.raises(BashGymError) as caught:
            workspace.runs.start({**body, **change})
        assert (caught.value.code, caught.value.fields) == (code, [field])
    assert not list(workspace.settings.models_dir.glob("*"))


def test_too_little_memory_or_disk_blocks_unless_forced_on_record(workspace, body, monkeypatch):
    from bashgym.runs import estimate

    monkeypatch.setattr(estimate, "available_memory", lambda: (1 << 20, "host"))
    with pytest.raises(BashGymError) as caught:
        workspace.runs.start(body)
    assert caught.value.code == "preflight_blocked" and "memory_short" in caught.value.message
    run_id = workspace.runs.start(body, force=["memory_short"])["run_id"]
    assert workspace.runs.locate(run_id).manifest()["forced"] == ["memory_short"]
    assert wait_end(workspace, run_id)["status"] == "completed"


def test_exit_code_of_a_pause_is_one_fact():
    assert verdicts.EXIT_PAUSED == EXIT_PAUSED == 75
