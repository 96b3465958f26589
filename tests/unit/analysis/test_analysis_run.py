"""What an analysis says about a run, its method, its evidence; and what kind of run it was."""

import json

import pytest

from bashgym.core.errors import BashGymError
from bashgym.runs.analysis import analyze
from bashgym.runs.classify import classify


def put(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


@pytest.fixture
def make(tmp_path):
    def make(name="run_a", *, strategy="sft", status="completed", rows=None, request=None, **state):
        run = tmp_path / name
        put(run / "request.json", {"strategy": strategy, "training_profile": None, **(request or {})})
        put(run / "run_state.json", {"run_id": name, "strategy": strategy, "status": status, **state})
        put(run / "manifest.json", {"run_id": name, "dataset": {"digest": "d"}, "backend": {"name": "plain"}})
        rows = sound() if rows is None else rows
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return run

    return make


def sound(n=20, **more):
    return [{"step": i, "loss": 3 / (i + 1), "grad_norm": 1.0, "learning_rate": 1e-4, **more} for i in range(n)]


def codes(document):
    return {finding["code"]: finding["severity"] for finding in document["findings"]}


RL = {"reward": 0.5, "reward_std": 0.2, "frac_reward_zero_std": 0.1}


def test_shape_of_the_document(make):
    document = analyze(run_id="run_a", run_dir=make())
    assert document["schema_version"] == "bashgym.run_analysis.v1" and document["ok"] is True
    keys = "run_id inputs training_metrics replay_summary release_evidence smoke_bundle verdict findings docs next"
    assert set(keys.split()) <= document.keys()
    assert document["run_id"] == "run_a" and document["strategy"] == "sft" and len(document["next"]) <= 5
    json.dumps(document, allow_nan=False)


def test_a_run_without_metrics_exists_all_the_same(make):
    run = make()
    (run / "metrics.jsonl").unlink()
    assert codes(analyze(run_dir=run))["no_metrics"] == "missing"


def test_a_grpo_run_without_rewards_is_flagged(make):
    assert codes(analyze(run_dir=make(strategy="grpo")))["missing_method_metrics"] == "missing"
    assert "missing_method_metrics" not in codes(analyze(run_dir=make("run_b", strategy="grpo", rows=sound(**RL))))


def test_metrics_that_are_only_nan_were_reported(make):
    rows = [
        {"step": i, "loss": 1.0, "learning_rate": 1.0, "grad_norm": None, "non_finite": {"grad_norm": "NaN"}}
        for i in (1, 2)
    ]
    found = codes(analyze(run_dir=make(rows=rows)))
    assert "missing_method_metrics" not in found and found["non_finite_values"] == "blocker"


@pytest.mark.parametrize(
    ("status", "code", "severity"),
    [
        ("failed", "run_failed", "blocker"),
        ("cancelled", "run_cancelled", "warning"),
        ("running", "run_in_progress", "info"),
        ("paused", "run_in_progress", "info"),
    ],
)
def test_how_the_run_stands(make, status, code, severity):
    run = make(status=status, error={"code": "memory_short", "message": "the device ran out of memory"})
    document = analyze(run_dir=run)
    assert codes(document)[code] == severity
    if status == "failed":
        assert "out of memory" in next(f for f in document["findings"] if f["code"] == code)["message"]


@pytest.mark.parametrize(
    ("metric", "value", "code", "severity"),
    [
        ("timeout_rate", 0.11, "high_timeout_rate", "warning"),
        ("tamper_rate", 0.001, "tamper_detected", "blocker"),
        ("verifier_error_rate", 0.03, "verifier_errors_elevated", "warning"),
        ("oom_count", 1, "oom_seen", "warning"),
        ("frac_reward_zero_std", 0.5, "many_zero_std_groups", "warning"),
        ("reward_std", 0.0, "zero_reward_variance", "warning"),
    ],
)
def test_thresholds_on_last_values(make, metric, value, code, severity):
    run = make(strategy="grpo", rows=sound(**{**RL, metric: value}))
    assert codes(analyze(run_dir=run))[code] == severity


@pytest.mark.parametrize("metric", ["timeout_rate", "tamper_rate", "verifier_error_rate", "oom_count"])
def test_zero_is_fine(make, metric):
    found = codes(analyze(run_dir=make(strategy="grpo", rows=sound(**{**RL, metric: 0}))))
    assert set(found) <= {"missing_heldout_evidence", "no_eval_loss"}


def test_no_masked_token_trains_nothing(make):
    run = make(strategy="session_distillation", rows=sound(session_distillation_masked_tokens=0))
    assert codes(analyze(run_dir=run))["session_distillation_zero_masked_tokens"] == "blocker"


def test_truncation_is_told(make):
    run = make()
    put(run / "preflight.json", {"valid_rows": 100, "tokens": {"truncated_rows": 6, "zero_supervised_rows": 1}})
    found = codes(analyze(run_dir=run))
    assert found["rows_truncated"] == "warning" and found["rows_without_target"] == "warning"
    put(run / "preflight.json", {"valid_rows": 100, "tokens": {"truncated_rows": 5, "zero_supervised_rows": 0}})
    assert not {"rows_truncated", "rows_without_target"} & codes(analyze(run_dir=run)).keys()


def test_completions_at_the_limit(make):
    run = make(strategy="grpo", rows=sound(**RL, **{"completions/clipped_ratio": 0.3}))
    assert codes(analyze(run_dir=run))["completions_truncated"] == "warning"


def test_reward_up_and_held_out_down_is_gaming(make):
    rows = [{**row, "reward": i / 20, "pass_at_1": 1 - i / 20} for i, row in enumerate(sound(**RL))]
    assert codes(analyze(run_dir=make(strategy="grpo", rows=rows)))["reward_up_heldout_down"] == "blocker"
    rows = [{**row, "reward": i / 20, "pass_at_1": i / 20} for i, row in enumerate(sound(**RL))]
    assert "reward_up_heldout_down" not in codes(analyze(run_dir=make("run_b", strategy="grpo", rows=rows)))


def release(run, **changes):
    gate = {"ship": True, "reasons": [], "observed": {"effect": 0.2}}
    document = {"run_id": run.name, "ship": True, "release_gate": gate, "simulated": False, "smoke": False}
    return put(run / "release_evidence.json", {**document, **changes})


def test_held_out_evidence_beside_the_run_is_read(make):
    run = make(rows=sound(eval_loss=0.2))
    assert codes(analyze(run_dir=run))["missing_heldout_evidence"] == "missing"
    release(run)
    document = analyze(run_dir=run)
    assert document["verdict"]["level"] == "ready_for_eval" and document["verdict"]["summary"]["has_heldout_signal"]
    assert codes(document) == {"no_immediate_issues": "info"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ship": False}, "release_gate_blocked"),
        ({"ship": None}, "release_gate_blocked"),
        ({"simulated": True}, "release_evidence_simulated"),
        ({"run_id": "run_other"}, "release_evidence_other_run"),
    ],
)
def test_release_evidence_that_blocks(make, changes, code):
    run = make()
    release(run, **changes)
    assert codes(analyze(run_dir=run))[code] == "blocker"


def test_simulated_evidence_is_no_signal(make):
    run = make()
    release(run, simulated=True)
    document = analyze(run_dir=run)
    assert not document["verdict"]["summary"]["has_heldout_signal"] and "missing_heldout_evidence" in codes(document)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ((False, True, True), "smoke_bundle_contract_blocked"),
        ((True, False, True), "smoke_bundle_needs_train_logprob_replay"),
        ((True, True, False), "smoke_bundle_needs_backend"),
        ((True, True, True), None),
    ],
)
def test_smoke_bundles(make, tmp_path, flags, code):
    names = ("contract_ready", "optimizer_ready", "backend_launch_ready")
    put(tmp_path / "bundle" / "backend_smoke_readiness.json", dict(zip(names, flags, strict=True)))
    document = analyze(run_dir=make(), smoke_bundle=tmp_path / "bundle")
    assert [c for c in codes(document) if c.startswith("smoke_bundle")] == ([code] if code else [])
    summary = document["verdict"]["summary"]
    assert (summary["backend_contract_ready"], summary["backend_optimizer_ready"]) == flags[:2]


def test_replays(make, tmp_path):
    run = make()

    def judge(records):
        path = put(tmp_path / "replay.json", {"schema_version": "bashgym.dppo_replay.v1", "records": records})
        return analyze(run_dir=run, replay=path)

    assert codes(judge([]))["empty_replay"] == "missing"
    assert codes(judge([{"batch_id": 1}]))["missing_world_model_replay"] == "missing"
    world = judge([{"world_model": {"rwml_transitions": [1, 2], "echo": {"segments": [{"role": "observation"}]}}}])
    assert codes(world)["world_model_quality_missing"] == "missing"
    assert world["replay_summary"]["rwml_transitions"] == 2 and world["replay_summary"]["echo_observations"] == 1
    assert world["verdict"]["summary"]["has_world_model_coverage"]


def test_against_a_baseline_run(make):
    base = make("run_base", rows=sound(tokens_per_second=100.0, eval_loss=0.5))
    worse = make("run_worse", rows=sound(tokens_per_second=60.0, eval_loss=0.53))
    document = analyze(run_dir=worse, baseline_run_dir=base)
    assert {"worse_than_baseline", "slower_than_baseline"} <= codes(document).keys()
    assert document["baseline"]["run_id"] == "run_base"
    assert document["baseline"]["delta"]["eval_loss"] == pytest.approx(0.03)
    assert not {"worse_than_baseline"} & codes(analyze(run_dir=base, baseline_run_dir=worse)).keys()


def test_runs_on_other_data_are_not_compared(make):
    base, run = make("run_base", rows=sound(eval_loss=0.1)), make(rows=sound(eval_loss=0.9))
    put(base / "manifest.json", {"run_id": "run_base", "dataset": {"digest": "other"}})
    found = codes(analyze(run_dir=run, baseline_run_dir=base))
    assert "baseline_not_comparable" in found and "worse_than_baseline" not in found


# -- classification --------------------------------------------------------------------------------------------------


def profile(run, **changes):
    return put(
        run / "model_profile.json", {"run_id": run.name, "evaluation_history": [], "heldout_evals": [], **changes}
    )


def test_trained_and_unevaluated(make):
    run = make()
    profile(run)
    document = classify(run)
    assert document["label"] == "trained, unevaluated" and document["method"] == "sft"
    assert document["backend"] == "plain" and document["world_model_objective"] is None
    assert not document["complete_for_promotion"] and document["evidence"]["metrics"]
    assert any("all empty" in reason for reason in document["reasons"])


def test_eval_loss_alone_is_named(make):
    run = make(rows=sound(eval_loss=1.0))
    profile(run)
    assert classify(run)["label"] == "trained, eval loss only"


def test_a_run_with_evaluations(make):
    run = make()
    profile(run, heldout_evals=[{"n": 40}])
    document = classify(run)
    assert document["label"] == "trained, evaluated" and document["evidence"]["heldout_evals"] == 1
    assert document["reasons"] == ["there is no RunCard"]


def test_the_method_is_the_records_not_the_names(make):
    assert classify(make(strategy="dpo", request={"base_model": "org/grpo-model"}))["method"] == "dpo"


def test_rlvr_is_not_relabelled(make):
    assert classify(make(strategy="rlvr"))["method"] == "rlvr"


def test_group_settings_without_the_profile_are_no_terminal_rl(make):
    document = classify(make(strategy="grpo", request={"grpo_group_size": 32, "training_profile": "default"}))
    assert document["training_profile"] == "default" and not document["terminal_rl"]
    run = make("run_t", strategy="grpo", request={"training_profile": "terminal_rl_tmax_like", "echo_enabled": True})
    assert classify(run)["terminal_rl"] and classify(run)["world_model_objective"] == ["echo"]


def test_last_metrics_of_a_failed_run_are_no_evidence(make):
    run = make(status="failed", last_metrics={"loss": 0.1})
    (run / "metrics.jsonl").unlink()
    document = classify(run)
    assert document["label"] == "failed" and not document["evidence"]["metrics"]
    assert any("status, not evidence" in reason for reason in document["reasons"])


def test_a_diverged_run_is_called_so(make):
    run = make(rows=[*sound(), {"step": 30, "loss": None, "non_finite": {"loss": "NaN"}}])
    profile(run)
    assert classify(run)["label"] == "trained, diverged"


def test_a_card_that_does_not_validate_is_no_evidence(make):
    run = make()
    profile(run, heldout_evals=[1])
    put(run / "run_card.json", {"schema_version": "bashgym.run_card.v1", "run_id": run.name})
    document = classify(run)
    assert document["evidence"]["run_card"] and not document["evidence"]["run_card_ok"]
    assert document["reasons"] == ["the RunCard does not validate for promotion"]


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(BashGymError) as caught:
        classify(tmp_path)
    assert caught.value.code == "run_not_found"
