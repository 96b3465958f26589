"""A card that may promote, and every way in which it may not."""

import json
import shutil

import pytest
from evidence_run import (
    BASE,
    RUN_ID,
    codes,
    edit,
    make_card,
    make_report,
    make_run,
    points,
    score_lines,
    write_json,
    write_lines,
)

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.evidence.release import build_release_evidence
from bashgym.evidence.runcard import attach_evidence, list_cards, validate

SEALED = (
    "metrics.jsonl",
    "training_plan.json",
    "source_manifest.json",
    "release_evidence.json",
    "evals/eval_1/report.json",
    "evals/eval_1/candidate.jsonl",
    "evals/eval_1/baseline.jsonl",
    "manifest.json",
    "request.json",
    "final/adapter_model.safetensors",
    "final/adapter_config.json",
    "run_card.json",
)


def test_a_run_with_all_its_evidence_may_be_promoted(run):
    result = make_card(run, decision="promote")
    assert result["ok"], result["findings"]
    assert result["run_card"]["decision"] == "promote"
    assert validate(run / "run_card.json", promotion=True)["ok"]


@pytest.mark.parametrize("name", SEALED)
def test_a_flipped_byte_in_any_sealed_file_is_found(run, name):
    assert make_card(run, decision="promote")["ok"]
    path = run / name
    data = bytearray(path.read_bytes())
    where = data.rindex(b"loca") if name == "run_card.json" else len(data) // 2
    data[where] ^= 1
    path.write_bytes(bytes(data))
    assert not validate(path.parent / "run_card.json" if name == "run_card.json" else run / "run_card.json")["ok"]


@pytest.mark.parametrize(
    "name", [name for name in SEALED if name not in ("run_card.json", "final/adapter_config.json")]
)
def test_a_removed_file_is_found(run, name):
    assert make_card(run, decision="promote")["ok"]
    (run / name).unlink()
    assert not validate(run / "run_card.json")["ok"]


def test_the_card_holds_when_the_run_folder_moves_as_a_whole(run, models, tmp_path, monkeypatch):
    assert make_card(run)["ok"]
    moved = tmp_path / "elsewhere" / "runs" / RUN_ID
    moved.parent.mkdir(parents=True)
    shutil.move(run, moved)
    monkeypatch.chdir("/")
    assert validate(moved / "run_card.json", promotion=True)["ok"]


def test_a_card_outside_the_run_folder_finds_its_run(run, tmp_path):
    path = tmp_path / "cards" / "card.json"
    assert make_card(run, output=path)["ok"]
    assert validate(path, promotion=True, models_dir=tmp_path / "nowhere")["ok"]


def test_relative_paths_are_tried_from_the_current_folder_first(run, tmp_path):
    result = make_card(run, metrics=f"data/models/{RUN_ID}/metrics.jsonl")
    assert result["ok"] and result["run_card"]["metrics_path"] == "metrics.jsonl"
    assert make_card(run, metrics="metrics.jsonl")["ok"], "then from the card's folder"


def test_validate_does_not_look_for_bound_files_in_the_current_folder(run, tmp_path, monkeypatch):
    make_card(run)
    write_lines(tmp_path / "metrics.jsonl", points(3))
    monkeypatch.chdir(tmp_path)
    assert validate(run / "run_card.json", promotion=True)["ok"]


def test_promotion_without_held_out_evidence_is_refused_and_written(models):
    run = make_run(models)
    result = make_card(run, decision="promote")
    assert not result["ok"]
    assert {"missing_release_evidence_path", "missing_heldout_behaviour"} <= codes(result)
    assert "decision_contradicts_findings" in codes(result)
    assert json.loads((run / "run_card.json").read_text())["decision"] == "hold"
    assert not validate(run / "run_card.json", promotion=True)["ok"]


def test_a_card_that_claims_nothing_needs_no_evaluation(models):
    assert make_card(make_run(models), promotion=False)["ok"]


def test_the_decision_to_promote_brings_the_promotion_rules(models):
    assert "missing_release_evidence_path" in codes(make_card(make_run(models), promotion=False, decision="promote"))


@pytest.mark.parametrize("field", ["run_id", "training_method", "base_model", "compute_target"])
def test_required_fields(run, field):
    name = {"compute_target": "compute_target_id"}.get(field, field)
    assert f"missing_{name}" in codes(make_card(run, **{field: ""}))


def test_plan_and_sources_are_required(models):
    run = make_run(models)
    (run / "training_plan.json").unlink()
    (run / "source_manifest.json").unlink()
    found = codes(make_card(run, promotion=False))
    assert {"missing_training_plan_path", "missing_source_manifest_path"} <= found


def test_an_unknown_field_is_named_and_no_crash(run):
    make_card(run)
    edit(run / "run_card.json", metric_path="x")
    result = validate(run / "run_card.json")
    finding = next(f for f in result["findings"] if f["code"] == "run_card_unknown_field")
    assert finding["field"] == "metric_path" and "metrics_path" in finding["message"]


def test_an_ill_typed_field_is_named(run):
    make_card(run)
    edit(run / "run_card.json", thresholds={"effect": "much"})
    assert "run_card_invalid_field" in codes(validate(run / "run_card.json"))


def test_a_hand_written_promote_is_found(models):
    run = make_run(models)
    make_card(run, promotion=False)
    edit(run / "run_card.json", decision="promote")
    assert {"run_card_digest_mismatch", "decision_contradicts_findings"} <= codes(validate(run / "run_card.json"))


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"schema_version": "bashgym.run_card.v2"}', ""])
def test_another_kind_of_file_is_refused(tmp_path, text):
    path = tmp_path / "card.json"
    path.write_text(text)
    with pytest.raises(BashGymError) as caught:
        validate(path)
    assert caught.value.code == "run_card_invalid"


def test_an_unknown_decision_warns_and_an_unknown_tier_fails(run):
    result = make_card(run, decision="maybe", claim_tier="galaxy")
    assert "unknown_decision" in codes(result, "warn") and "unknown_claim_tier" in codes(result)


def test_an_unknown_method_fails(run):
    assert "unknown_training_method" in codes(make_card(run, training_method="magic"))


# -- the run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["failed", "cancelled", "running", "paused"])
def test_only_a_completed_run_is_promoted(run, status):
    edit(run / "run_state.json", status=status)
    assert "run_not_completed" in codes(make_card(run))


def test_the_method_must_be_the_one_that_trained(run):
    assert "run_strategy_mismatch" in codes(make_card(run, training_method="dpo"))


def test_the_base_model_must_be_the_one_that_was_trained(run):
    assert "run_base_model_mismatch" in codes(make_card(run, base_model="org/other"))


def test_a_run_that_is_not_here_cannot_be_promoted(run, tmp_path):
    path = tmp_path / "cards" / "card.json"
    assert "run_unbound" in codes(make_card(run, run_id="run_of_nobody", output=path))


def test_code_comes_from_the_manifest_and_no_git_leaves_it_out(run):
    card = make_card(run)["run_card"]
    assert card["git_commit"] == "c" * 40 and "c" * 40 in card["code"].values()
    card = make_card(run, no_git=True)["run_card"]
    assert card["git_commit"] == "" and card["code"] == {}


def test_another_model_in_final_after_the_card_is_found(run):
    make_card(run)
    (run / "final" / "adapter_model.safetensors").write_bytes(b"other weights")
    assert {"artifact_digest_mismatch", "evidence_run_mismatch"} <= codes(
        validate(run / "run_card.json", promotion=True)
    )


def test_a_forced_start_is_told(run):
    edit(run / "manifest.json", forced=["rows_truncated"])
    assert "run_forced_preflight" in codes(make_card(run), "warn")


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_empty_metrics_fail(run):
    (run / "metrics.jsonl").write_text("")
    assert "metrics_file_empty" in codes(make_card(run))
    (run / "metrics.jsonl").write_text("\n\n")
    assert "metrics_file_empty" in codes(make_card(run, promotion=False))


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 20, "loss": null, "non_finite": {"loss": "NaN"}}',
        '{"step": 20, "loss": NaN}',
        '{"step":20,"loss":Infinity}',
    ],
)
def test_metrics_that_are_not_finite_fail(run, line):
    with (run / "metrics.jsonl").open("a") as out:
        out.write(line + "\n")
    result = make_card(run, promotion=False)
    finding = next(f for f in result["findings"] if f["code"] == "metrics_not_finite")
    assert "step 20" in finding["message"] and "loss" in finding["message"]


def test_a_flagged_step_does_not_end_the_reading_of_the_others(run):
    with (run / "metrics.jsonl").open("a") as out:
        out.write('{"step": 20, "loss": null, "non_finite": {"loss": "NaN"}}\n{"step": 21, "loss": 0.1}\n')
    assert {"metrics_not_finite"} <= codes(make_card(run, promotion=False))


def test_a_card_is_judged_as_for_promotion_only_where_that_is_asked(models):
    run = make_run(models)
    assert make_card(run, promotion=False)["ok"]
    assert validate(run / "run_card.json")["ok"] and not validate(run / "run_card.json", promotion=True)["ok"]


def test_predictions_that_cannot_be_read_prove_no_metrics(run, tmp_path):
    rows = tmp_path / "scored.jsonl"
    rows.write_text('{"prompt": "x"\n')
    good = {"schema_version": "bashgym.reward_model_eval.v1", "ok": True, "metrics": {"heldout_pair_accuracy": 0.8}}
    path = write_json(
        tmp_path / "reward.json", {**good, "path": rows.name, "sha256": digest_file(rows), "split": "eval"}
    )
    assert "evidence_inconsistent" in codes(make_card(run, reward_eval=str(path)))


def test_a_value_that_was_reported_again_after_a_resume_counts(run):
    with (run / "metrics.jsonl").open("a") as out:
        out.write('{"step": 20, "loss": null, "non_finite": {"loss": "NaN"}}\n{"step": 20, "loss": 0.1}\n')
    assert "metrics_not_finite" not in codes(make_card(run))


def test_metrics_of_another_run_are_refused(run, tmp_path):
    other = write_lines(tmp_path / "better.jsonl", points(30))
    assert "evidence_run_mismatch" in codes(make_card(run, metrics=str(other)))


def test_metrics_without_the_methods_series_are_refused(run):
    write_lines(run / "metrics.jsonl", [{"step": 1, "grad_norm": 1.0, "learning_rate": 1.0}])
    assert "metrics_missing_series" in codes(make_card(run))


def test_torn_lines_are_told(run):
    with (run / "metrics.jsonl").open("a") as out:
        out.write('{"step": 21, "lo')
    assert "metrics_lines_skipped" in codes(make_card(run), "warn")


def test_a_named_file_that_is_not_there(run):
    assert "missing_metrics_path_file" in codes(make_card(run, metrics="nowhere.jsonl"))


# -- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"schema_version": "x"}, "invalid_source_manifest_schema"),
        ({"sources": []}, "invalid_source_manifest_schema"),
        ({"use_verdict": None}, "missing_source_manifest_use_verdict"),
        ({"use_verdict": "blocked"}, "source_manifest_use_blocked"),
        ({"use_verdict": "override"}, "source_manifest_override_reason_missing"),
        ({"use_verdict": "override", "override_reason": " "}, "source_manifest_override_reason_missing"),
        ({"sources": [{"sha256": "0" * 64}]}, "evidence_run_mismatch"),
        ({"run_id": "run_other"}, "evidence_run_mismatch"),
    ],
)
def test_source_manifest_rules(run, changes, code):
    edit(run / "source_manifest.json", **changes)
    assert code in codes(make_card(run, promotion=False))


def test_an_override_with_a_reason_is_a_warning(run):
    edit(run / "source_manifest.json", use_verdict="override", override_reason="licence cleared by mail")
    result = make_card(run)
    assert result["ok"] and "source_manifest_override" in codes(result, "warn")


def test_broken_documents(run):
    (run / "source_manifest.json").write_text("{")
    (run / "training_plan.json").write_text("[]")
    assert {"invalid_source_manifest_json", "invalid_training_plan_json"} <= codes(make_card(run))


def test_a_plan_for_another_method_is_refused(run):
    edit(run / "training_plan.json", strategy="grpo")
    assert "training_plan_strategy_mismatch" in codes(make_card(run))


# -- method, tier, thresholds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("dpo", {"missing_preference_pairs_path", "missing_heldout_preference"}),
        ("grpo", {"missing_canaries", "missing_zero_std_diagnostics"}),
        ("rlvr", {"missing_canaries", "missing_zero_std_diagnostics"}),
        ("distillation", {"missing_base_and_teacher_comparison"}),
        ("session_distillation", {"missing_session_distillation_records_path", "missing_heldout_recovery"}),
        ("reward_model", {"missing_reward_examples_path", "missing_reward_eval_path"}),
        ("rm", {"missing_reward_examples_path"}),
        ("dppo", {"missing_replay", "missing_replay_enrichment", "missing_smoke_bundle_path"}),
        ("cascade", {"missing_stage_run_cards", "missing_stage_gates"}),
    ],
)
def test_every_method_asks_for_its_own_evidence(run, method, expected):
    assert expected <= codes(make_card(run, training_method=method))


def test_zero_confidence_and_zero_tokens_are_values(run):
    found = codes(
        make_card(run, training_method="session_distillation", confidence_threshold=0.0, target_token_count=0)
    )
    assert not {c for c in found if "missing" in c and ("confidence" in c or "token_count" in c)}
    assert "invalid_session_distillation_target_token_count" in found, "zero trained tokens is a value, and a bad one"


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("confidence_threshold", 1.5, "invalid_session_distillation_confidence_threshold"),
        ("mask_policy", "all", "invalid_session_distillation_mask_policy"),
        ("target_token_count", -1, "invalid_session_distillation_target_token_count"),
    ],
)
def test_session_fields(run, field, value, code):
    assert code in codes(make_card(run, training_method="session_distillation", promotion=False, **{field: value}))


def test_an_unknown_evidence_kind_is_refused(run):
    with pytest.raises(BashGymError, match="no evidence kind"):
        make_card(run, evidence={"vibes": str(run / "manifest.json")})


def test_narrow_routing_holds_with_a_terminal_suite_and_broad_claims_do_not(run):
    assert make_card(run, claim_tier="narrow_routing")["ok"]
    assert {
        "claim_tier_external_benchmark_missing_or_failed",
        "claim_tier_split_manifest_missing",
        "claim_tier_decontamination_manifest_missing",
    } <= codes(make_card(run, claim_tier="broad_public_claim"))


def test_a_tier_needs_release_evidence(models):
    found = codes(make_card(make_run(models), promotion=False, claim_tier="narrow_routing"))
    assert "claim_tier_missing_release_evidence" in found


@pytest.mark.parametrize(
    ("threshold", "code"),
    [
        ("effect=0.4", None),
        ("effect=0.6", "threshold_not_met"),
        ("pass_at_1=0.75", None),
        ("min_pass_at_1=0.76", "threshold_not_met"),
        ("missing_rate=0", None),
        ("tamper_rate=0", None),
        ("max_effect=0.1", "threshold_not_met"),
        ("happiness=1", "threshold_unknown_metric"),
    ],
)
def test_thresholds_are_compared_with_what_was_observed(run, threshold, code):
    found = codes(make_card(run, threshold=[threshold]))
    assert (code in found) if code else not found


def test_a_threshold_that_nothing_observed_fails_a_promotion_and_waits_before_one(models, run):
    bare = make_run(models, run_id="run_bare")
    asked = {"run_id": "run_bare", "threshold": ["effect=0.1"], "output": bare / "run_card.json"}
    assert "threshold_unknown_metric" in codes(make_card(bare, **asked))
    assert "threshold_unknown_metric" not in codes(make_card(bare, promotion=False, **asked))
    said = [f for f in make_card(run, threshold=["happiness=1"])["findings"] if f["code"] == "threshold_unknown_metric"]
    assert "effect" in said[0]["message"] and "nothing" not in said[0]["message"]


@pytest.mark.parametrize("text", ["effect", "effect=", "effect=much", "=1", "effect=nan", "effect=inf"])
def test_a_threshold_is_a_number(run, text):
    with pytest.raises(BashGymError) as caught:
        make_card(run, threshold=[text])
    assert caught.value.code == "invalid_field"


def test_preference_pairs_are_the_rows_that_were_trained_on(models, tmp_path):
    run = make_run(models, strategy="dpo")
    pairs = write_lines(tmp_path / "pairs.jsonl", [{"prompt": "p", "chosen": "a", "rejected": "b"}] * 2)
    assert "evidence_run_mismatch" in codes(make_card(run, training_method="dpo", preference_pairs=str(pairs)))


def test_pairs_without_a_difference_fail(models, tmp_path):
    run = make_run(models, strategy="dpo")
    pairs = write_lines(tmp_path / "pairs.jsonl", [{"prompt": "p", "chosen": "a", "rejected": "a"}] * 3)
    found = codes(make_card(run, training_method="dpo", preference_pairs=str(pairs), promotion=False))
    assert any(code.startswith("preference_pairs_") for code in found)


def test_empty_pairs_fail(models, tmp_path):
    run = make_run(models, strategy="dpo")
    (tmp_path / "pairs.jsonl").write_text("")
    result = make_card(run, training_method="dpo", preference_pairs=str(tmp_path / "pairs.jsonl"), promotion=False)
    assert "evidence_file_empty" in codes(result)


def test_a_reward_evaluation_that_leaks_is_refused(run, tmp_path):
    good = {"schema_version": "bashgym.reward_model_eval.v1", "ok": True, "metrics": {"heldout_pair_accuracy": 0.8}}
    path = write_json(tmp_path / "reward.json", good)
    assert not {c for c in codes(make_card(run, reward_eval=str(path))) if c.startswith(("reward", "invalid_reward"))}
    edit(path, metrics={"heldout_pair_accuracy": 0.8, "eval_only_leakage_count": 1})
    assert "reward_eval_eval_only_leakage" in codes(make_card(run, reward_eval=str(path)))
    edit(path, ok=False)
    assert "reward_eval_not_ok" in codes(make_card(run, reward_eval=str(path)))
    edit(path, metrics={}, schema_version="x")
    assert {"reward_eval_missing_metrics", "invalid_reward_eval_schema"} <= codes(make_card(run, reward_eval=str(path)))


def test_session_files(run, tmp_path):
    span = {"start": 0, "end": 2}
    record = {
        **{name: "x" for name in ("trace_id", "session_id", "decision_id", "reader_model", "verifier_outcome")},
        "record_id": "0" * 24,
        "step_index": 0,
        "original_context": "a",
        "hinted_context": "a [Session Distillation Hint] look",
        "hint_text": "look",
        "target_text": "ls",
        "target_type": "command",
        "target_span": span,
        "loss_mask": {"policy": "target_span_only", "target_span": span},
        "reader_confidence": 0.8,
        "quality_score": 0.8,
        "source_metadata": {},
    }
    good = write_lines(tmp_path / "good.jsonl", [record])
    cut = write_lines(tmp_path / "cut.jsonl", [{**record, "target_span": {"start": 0, "end": 1}}])
    none = write_lines(tmp_path / "none.jsonl", [{"step": 1, "session_distillation_masked_tokens": 0}])

    def judge(**files):
        return codes(make_card(run, training_method="session_distillation", promotion=False, **files))

    assert "session_distillation_record_invalid" not in judge(session_distillation_records=str(good))
    assert "session_distillation_record_invalid" in judge(session_distillation_records=str(cut))
    assert "session_distillation_metrics_missing_masked_loss" in judge(session_distillation_metrics=str(none))


# -- attach and list -------------------------------------------------------------------------------------------------


def test_attaching_release_evidence_later_makes_the_card_ok(models):
    run = make_run(models)
    assert not make_card(run)["ok"]
    build_release_evidence(make_report(run), run_dir=run, output=run / "release_evidence.json")
    result = attach_evidence(
        run / "run_card.json", release_evidence=str(run / "release_evidence.json"), promotion=True, models_dir=models
    )
    assert result["ok"], result["findings"]


def test_attaching_to_another_place_rebases_the_paths(run, tmp_path):
    make_card(run)
    target = tmp_path / "out" / "card.json"
    result = attach_evidence(run / "run_card.json", output=target, promotion=True, models_dir=run.parent)
    assert result["ok"] and result["run_card"]["metrics_path"] == str(run / "metrics.jsonl")


def test_attaching_does_not_seal_an_edit(run):
    make_card(run)
    edit(run / "run_card.json", decision="promote")
    with pytest.raises(BashGymError) as caught:
        attach_evidence(run / "run_card.json", models_dir=run.parent)
    assert caught.value.code == "run_card_invalid"


def test_attaching_does_not_bless_a_changed_file_that_was_not_given(run):
    make_card(run)
    write_lines(run / "metrics.jsonl", points(5))
    result = attach_evidence(run / "run_card.json", claim_tier="local_smoke", models_dir=run.parent)
    assert "evidence_digest_mismatch" in codes(result)


def test_list_is_newest_first_and_leaves_broken_files_out(models):
    for number, name in enumerate(("run_a", "run_b")):
        run = make_run(models, run_id=name)
        make_card(run, run_id=name, promotion=False)
        import os

        os.utime(run / "run_card.json", (1000 + number, 1000 + number))
    write_json(models / "run_c" / "run_card.json", {"schema_version": "x"})
    (models / "run_d").mkdir()
    (models / "run_d" / "run_card.json").write_text("{")
    cards = list_cards([models])["run_cards"]
    assert [card["run_id"] for card in cards] == ["run_b", "run_a"]
    assert cards[0]["base_model"] == BASE and len(list_cards([models], limit=1)["run_cards"]) == 1


def test_the_explanation_counts_and_says_what_to_do(models):
    result = make_card(make_run(models))
    explanation = result["promotion_explanation"]
    assert explanation["blocker_count"] == len(codes(result)) and not explanation["ok"]
    assert {gate["gate"] for gate in explanation["failed_gates"]} == {"card", "method"}
    assert all(gate["next_action"] and gate["codes"] for gate in explanation["failed_gates"])
    assert result["artifact_status"]["release_evidence"]["status"] == "not_given"
    assert result["artifact_status"]["metrics"]["status"] == "intact"


def test_items_that_only_the_baseline_missed_do_not_count_as_gains(models):
    run = make_run(models)
    dead = score_lines([None] * 40, status="error")
    report = make_report(run, scored_base=dead)
    with pytest.raises(BashGymError):
        build_release_evidence(report, run_dir=run)
