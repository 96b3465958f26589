"""The release gate: what ships, and what a forged or partial evaluation meets."""

import json
import shutil

import pytest
from evidence_run import (
    BASE_DIGEST,
    RUN_ID,
    codes,
    edit,
    make_card,
    make_report,
    make_run,
    score_lines,
    write_json,
    write_lines,
)

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.evidence.model_card import base_license, model_card
from bashgym.evidence.release import build_release_evidence
from bashgym.evidence.runcard import validate


def build(run, report, **kw):
    return build_release_evidence(report, run_dir=run, output=run / "release_evidence.json", **kw)


def comparison(**changes):
    return {"comparison": {"effect": 0.5, "ci_low": 0.3, "ci_high": 0.7, "verdict": "improved", "looks": 1, **changes}}


@pytest.fixture
def bare(models):
    return make_run(models)


def test_a_clear_gain_ships(bare):
    document = build(bare, make_report(bare))
    assert document["ship"] is True and document["release_gate"]["reasons"] == []
    assert document["release_gate"]["environment_ship"] is True
    assert document["release_gate"]["external_benchmark_ship"] is None
    assert document["run_id"] == RUN_ID
    assert document["eval_report"]["path"] == "evals/eval_1/report.json"


def test_a_suite_that_executes_nothing_gives_no_environment_evidence(bare):
    suite = {"name": "sft-heldout", "digest": "5" * 64, "split": "heldout", "n_items": 40}
    document = build(bare, make_report(bare, suite=suite))
    assert document["ship"] and document["release_gate"]["environment_ship"] is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"simulated": True}, "simulated"),
        ({"simulated": None}, "simulated"),
        (comparison(verdict="inconclusive"), "inconclusive"),
        (comparison(ci_low=0.0), "exclude zero"),
        (comparison(ci_low=-0.1), "exclude zero"),
        (comparison(ci_low=None), "exclude zero"),
        ({"suite": {"name": "terminal", "digest": "5" * 64, "split": "train", "n_items": 40}}, "training split"),
        ({"n_items": 41}, "not observed"),
        ({"suite": {"name": "terminal", "digest": "5" * 64, "split": "heldout", "n_items": 60}}, "not observed"),
    ],
)
def test_what_does_not_ship(bare, changes, word):
    document = build(bare, make_report(bare, **changes))
    assert document["ship"] is False
    assert any(word in reason for reason in document["release_gate"]["reasons"])


def test_twenty_items_are_enough_and_nineteen_are_not(bare):
    assert build(bare, make_report(bare, n=20, **comparison()))["ship"]
    nineteen = make_report(bare, n=19)
    assert any("items" in reason for reason in build(bare, nineteen)["release_gate"]["reasons"])


def test_one_cluster_is_not_enough(bare):
    one = [{**line, "cluster": "count"} for line in score_lines([i % 4 != 0 for i in range(40)])]
    assert any("cluster" in reason for reason in build(bare, make_report(bare, scored=one))["release_gate"]["reasons"])


def test_an_effect_below_the_asked_minimum_does_not_ship(bare):
    assert not build(bare, make_report(bare), min_effect=0.51)["ship"]
    assert build(bare, make_report(bare), min_effect=0.5)["ship"]


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_senseless_minimum_is_refused(bare, value):
    with pytest.raises(BashGymError) as caught:
        build(bare, make_report(bare), min_effect=value)
    assert caught.value.code == "invalid_field"


def test_noise_that_the_report_calls_an_improvement_does_not_ship(bare):
    scored = score_lines([i % 4 != 0 or i < 4 for i in range(40)])
    base = score_lines([i % 4 != 0 for i in range(40)])
    report = make_report(bare, scored=scored, scored_base=base, **comparison(effect=0.025))
    reasons = build(bare, report)["release_gate"]["reasons"]
    assert reasons and all("computed again" in reason for reason in reasons)


def test_a_failed_scoring_is_a_missing_observation(bare):
    lines = score_lines([i % 4 != 0 for i in range(40)])
    for line in lines[:2]:
        line.update(passed=None, status="error")
    document = build(bare, make_report(bare, scored=lines))
    assert not document["ship"] and document["release_gate"]["observed"]["missing_rate"] == pytest.approx(0.05)


def test_tampering_does_not_ship(bare):
    lines = score_lines([i % 4 != 0 for i in range(40)])
    lines[0]["status"] = "tampered"
    assert any(
        "touched" in reason for reason in build(bare, make_report(bare, scored=lines))["release_gate"]["reasons"]
    )


def test_held_out_questions_among_the_training_rows_do_not_ship(bare):
    lines = score_lines([i % 4 != 0 for i in range(40)])
    lines[3]["prompt"] = [{"role": "system", "content": "s"}, {"role": "user", "content": " Train   3\n"}]
    document = build(bare, make_report(bare, scored=lines))
    assert document["release_gate"]["observed"]["train_overlap"] == 1 and not document["ship"]


def test_an_overlap_that_cannot_be_checked_is_told(bare, models):
    (models.parent / "train.jsonl").unlink()
    assert build(bare, make_report(bare))["release_gate"]["observed"]["train_overlap"] is None
    assert "heldout_overlap_unchecked" in codes(make_card(bare), "warn")


@pytest.mark.parametrize("side", ["candidate", "baseline"])
def test_a_changed_score_file_is_refused(bare, side):
    report = make_report(bare)
    with (report.parent / f"{side}.jsonl").open("a") as out:
        out.write(json.dumps(score_lines([True] * 41)[40]) + "\n")
    with pytest.raises(BashGymError) as caught:
        build(bare, report)
    assert caught.value.code == "digest_mismatch"


def test_an_attempt_that_only_one_side_has_is_refused(bare):
    base = score_lines([i % 4 == 1 for i in range(39)])
    with pytest.raises(BashGymError) as caught:
        build(bare, make_report(bare, scored_base=base))
    assert caught.value.code == "eval_incomplete"


def test_an_evaluation_without_a_baseline_says_so(bare):
    with pytest.raises(BashGymError, match="names no baseline"):
        build(bare, make_report(bare, baseline=None, comparison=None))


def test_a_report_elsewhere_is_copied_into_the_run(bare, tmp_path):
    make_report(bare)
    elsewhere = tmp_path / "data" / "evals" / "eval_1"
    elsewhere.parent.mkdir()
    shutil.move(bare / "evals" / "eval_1", elsewhere)
    document = build(bare, elsewhere / "report.json")
    assert document["eval_report"]["path"] == "evals/eval_1/report.json"
    shutil.rmtree(elsewhere)
    assert make_card(bare)["ok"]


def test_an_eval_report_given_as_release_evidence_is_made_into_it(bare):
    result = make_card(bare, release_evidence=str(make_report(bare)))
    assert result["ok"], result["findings"]
    assert result["run_card"]["release_evidence_path"] == "release_evidence.json"
    bad = make_report(bare, candidate={"digest": "a" * 64})
    assert "invalid_eval_report" in codes(make_card(bare, release_evidence=str(bad)))


def test_doubled_items_are_refused(bare):
    lines = score_lines([i % 4 != 0 for i in range(40)])
    with pytest.raises(BashGymError) as caught:
        build(bare, make_report(bare, scored=[*lines, lines[1]]))
    assert caught.value.code == "eval_incomplete"


@pytest.mark.parametrize(
    "changes",
    [
        {"candidate": {"digest": "a" * 64}},
        {"candidate": {}},
        {"baseline": {}},
        {"baseline": {"digest": "a" * 64}},
        {"suite": {"name": "terminal", "split": "heldout", "n_items": 40}},
        {"pass_rate": {"candidate": {"value": 0.9}, "baseline": {"value": 0.25}}},
        comparison(effect=0.6),
        comparison(effect=None),
    ],
)
def test_a_report_that_is_not_about_this_run_or_not_what_its_scores_say(bare, changes):
    with pytest.raises(BashGymError) as caught:
        build(bare, make_report(bare, **changes))
    assert caught.value.code == "digest_mismatch"
    assert not (bare / "release_evidence.json").exists()


def test_a_model_compared_with_itself_is_refused(bare):
    report = json.loads(make_report(bare).read_text())
    with pytest.raises(BashGymError):
        build(bare, make_report(bare, baseline={"digest": report["candidate"]["digest"]}))


def test_another_schema_is_refused(bare):
    with pytest.raises(BashGymError) as caught:
        build(bare, write_json(bare / "evals" / "x.json", {"schema_version": "other"}))
    assert caught.value.code == "file_unreadable"


# -- as evidence on a card -------------------------------------------------------------------------------------------


def rewrite(run, **changes):
    """A forger edits the release evidence and only then makes the card."""
    edit(run / "release_evidence.json", **changes)
    return make_card(run)


def no_ship(run):
    build(run, make_report(run, **comparison(verdict="inconclusive", ci_low=-0.1)))


def test_evidence_that_says_no_does_not_promote_but_may_be_recorded(bare):
    no_ship(bare)
    assert "release_evidence_not_shippable" in codes(make_card(bare))
    assert make_card(bare, promotion=False, decision="reject")["ok"]


def test_a_forged_verdict_is_computed_anew(bare):
    no_ship(bare)
    gate = {**json.loads((bare / "release_evidence.json").read_text())["release_gate"], "ship": True, "reasons": []}
    assert "release_gate_ship_mismatch" in codes(rewrite(bare, ship=True, release_gate=gate))


def test_lax_thresholds_are_refused(run):
    gate = json.loads((run / "release_evidence.json").read_text())["release_gate"]
    gate["thresholds"]["min_items"] = 5
    assert "release_gate_thresholds_lax" in codes(rewrite(run, release_gate=gate))


def test_forged_observations_are_not_used(run):
    gate = json.loads((run / "release_evidence.json").read_text())["release_gate"]
    gate["observed"]["effect"] = 0.99
    edit(run / "release_evidence.json", release_gate=gate)
    assert "threshold_not_met" in codes(make_card(run, threshold=["effect=0.9"]))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ship": None}, "release_evidence_missing_ship_verdict"),
        ({"ship": False}, "release_gate_ship_mismatch"),
        ({"simulated": True}, "release_evidence_simulated"),
        ({"smoke": True}, "release_evidence_smoke"),
        ({"run_id": "run_other"}, "evidence_run_mismatch"),
        ({"eval_report": None}, "release_evidence_unbound"),
        ({"schema_version": "bashgym.release_gate.v1"}, "release_evidence_unbound"),
        ({"eval_report": {"path": "evals/eval_1/report.json", "sha256": "0" * 64}}, "evidence_digest_mismatch"),
        ({"eval_report": {"path": "manifest.json", "sha256": None}}, "evidence_digest_mismatch"),
    ],
)
def test_release_evidence_rules(run, changes, code):
    assert code in codes(rewrite(run, **changes))


def test_a_report_of_another_kind_below_the_evidence(run):
    report = {"path": "manifest.json", "sha256": digest_file(run / "manifest.json")}
    assert "invalid_eval_report" in codes(rewrite(run, eval_report=report))


def test_broken_release_evidence(run):
    (run / "release_evidence.json").write_text("[1")
    assert "invalid_release_evidence_json" in codes(make_card(run))


def test_a_missing_gate_is_told(run):
    assert "release_evidence_missing_release_gate" in codes(rewrite(run, release_gate=None), "warn")


def test_world_model_quality_is_only_a_diagnostic(run):
    result = rewrite(run, world_model_quality={"signal": "needs_attention"})
    assert result["ok"]
    assert "world_model_quality_needs_attention" in codes(result, "warn")
    assert "world_model_quality_diagnostic_only" in codes(result, "diagnostic")


def test_smoke_evidence_holds_for_local_smoke_only(bare):
    build(bare, make_report(bare, smoke=True))
    assert make_card(bare, promotion=False)["ok"]
    assert "release_evidence_smoke" in codes(make_card(bare))
    assert "release_evidence_smoke" in codes(make_card(bare, promotion=False, claim_tier="narrow_routing"))


def test_hiding_the_smoke_label_does_not_help(bare):
    build(bare, make_report(bare, smoke=True))
    assert "release_evidence_smoke" in codes(rewrite(bare, smoke=False))


def test_a_terminal_task_needs_an_executed_held_out_suite(bare):
    edit(bare / "request.json", tracking={"task_type": "terminal-agent"})
    suite = {"name": "sft-heldout", "digest": "5" * 64, "split": "heldout", "n_items": 40}
    build(bare, make_report(bare, suite=suite))
    found = codes(make_card(bare))
    assert {"missing_environment_passk", "missing_holdout_gate"} <= found and "missing_heldout_behaviour" not in found


def test_answers_that_stop_parsing_fail_format_validity(bare):
    lines = score_lines([i % 4 != 0 for i in range(40)])
    for line in lines:
        line["status"] = "passed" if line["passed"] else "format_error"
    build(bare, make_report(bare, scored=lines))
    assert "missing_format_validity" in codes(make_card(bare))


def test_a_new_report_under_the_old_card_is_found(run):
    assert make_card(run)["ok"]
    lines = score_lines([True] * 40)
    write_lines(run / "evals" / "eval_1" / "candidate.jsonl", lines)
    assert "evidence_digest_mismatch" in codes(validate(run / "run_card.json", promotion=True))


# -- model card ------------------------------------------------------------------------------------------------------


def test_the_licence_is_the_base_models_or_unknown(run, tmp_path):
    assert "license: unknown" in model_card(run)
    base = tmp_path / "data" / "base"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: llama3.2\n---\n# x\n")
    assert base_license(base) == "llama3.2" and "license: llama3.2" in model_card(run)


def test_the_model_card_tells_the_interval_or_that_there_is_none(run, models):
    assert "+0.500" in model_card(run) and "+0.300 to +0.700" in model_card(run)
    (run / "release_evidence.json").unlink()
    assert "Not evaluated" in model_card(run)


def test_a_model_card_claims_no_more_than_a_card_that_holds(run):
    assert "there is no RunCard" in model_card(run)
    make_card(run)
    assert "nothing is said about quality" in model_card(run), "local_smoke"
    make_card(run, claim_tier="narrow_routing", decision="promote")
    text = model_card(run)
    assert "better on the task family" in text and "in general" not in text and "+0.500" in text
    make_card(run, claim_tier="broad_public_claim")
    text = model_card(run)
    assert "does not hold" in text and "in general" not in text
    edit(run / "run_state.json", status="failed")
    make_card(run, claim_tier="narrow_routing")
    assert "does not hold" in model_card(run)
    edit(run / "run_state.json", status="completed")
    make_card(run)
    edit(run / "release_evidence.json", ship=False)
    text = model_card(run)
    assert "+0.500" not in text and "Nothing that the RunCard accepts" in text
    (run / "run_card.json").write_text("{}")
    assert "does not hold" in model_card(run)


def test_names_cannot_break_out_of_the_model_card(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["model"]["name"] = "x\n---\n<script>|`"
    write_json(run / "manifest.json", manifest)
    text = model_card(run)
    assert "<script>" not in text and text.count("\n---\n") == 1
    assert BASE_DIGEST[:12] in text
