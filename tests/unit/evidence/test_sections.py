"""What stands beside the paired evaluation in a release gate, and what happens where it is asked for and absent."""

import json

import documents
import pytest
from evidence_run import codes, edit, make_card, make_report, make_run, score_lines, write_json

from bashgym.core.errors import BashGymError
from bashgym.evals.release_sections import quality
from bashgym.evidence.release import build_release_evidence
from bashgym.evidence.runcard import validate
from bashgym.evidence.sections import DIAGNOSTICS, PARTS, SECTIONS, judge, ships

MAKE = {
    "heldout": lambda run, folder: documents.heldout(folder),
    "holdout_gate": lambda *_: documents.holdout(),
    "holdout_comparison": lambda *_: documents.comparison(),
    "spurious_reward_control": lambda *_: documents.control(),
    "external_benchmarks": lambda *_: documents.external(),
    "forgetting": lambda *_: documents.forgetting(),
    "parity": lambda run, _: documents.parity(run),
}


@pytest.fixture
def bare(models):
    return make_run(models)


def build(run, beside=None, **more):
    return build_release_evidence(
        make_report(run), run_dir=run, output=run / "release_evidence.json", beside=beside, **more
    )


def beside(run, folder, *names, **changes):
    return {
        name: write_json(folder / name / "report.json", {**MAKE[name](run, folder / name), **changes}) for name in names
    }


def test_every_section_ships_with_the_right_document_and_holds_in_the_card(bare, tmp_path):
    documents.parity(bare)
    files = beside(bare, tmp_path, *SECTIONS)
    document = build(bare, files, min_scores={"gsm8k": 0.6}, required=PARTS)
    gate = document["release_gate"]
    assert document["ship"] and all(gate[f"{part}_ship"] is True for part in PARTS), gate["reasons"]
    assert all((bare / "evals" / name / "report.json").is_file() for name in SECTIONS)
    card = make_card(bare, decision="promote", claim_tier="narrow_routing")
    assert card["ok"], card["findings"]
    for name in SECTIONS:
        path = bare / "evals" / name / "report.json"
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"1", b"2", 1))
        assert "evidence_digest_mismatch" in codes(validate(bare / "run_card.json", promotion=True)), name
        path.write_bytes(whole)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_that_is_foreign_simulated_or_of_another_kind_stops_the_release(bare, tmp_path, name):
    def reason(**changes):
        least = {"gsm8k": 0.5} if name == "external_benchmarks" else {}
        document = build(bare, beside(bare, tmp_path, name, **changes), min_scores=least)
        assert document["ship"] == (not document["release_gate"]["reasons"])
        return " ".join(document["release_gate"]["reasons"])

    assert reason() == ""
    assert "schema_version" in reason(schema_version="x")
    for label in ("simulated", "smoke"):
        assert label in reason(**{label: True})
    if name != "parity":
        assert "neither this run" in reason(model_id="another") and "neither this run" in reason(model_id="")
    (tmp_path / name / "report.json").write_text("no json")
    assert not build(bare, {name: tmp_path / name / "report.json"})["ship"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("heldout", {"ship": False}),
        ("holdout_gate", {"gate": {"ship": False, "reasons": ["0 %"]}}),
        ("holdout_comparison", {"comparison": {}}),
        ("spurious_reward_control", {"gate": {"ship": False}}),
        ("spurious_reward_control", {"observed": {"n_attempts": 96, "n_passed": 5}}),
        ("spurious_reward_control", {"observed": {"n_attempts": 96, "n_passed": 0}}),
        ("spurious_reward_control", {"observed": {"n_attempts": 5, "n_passed": 6}}),
        ("spurious_reward_control", {"observed": {"n_attempts": 5.0, "n_passed": 5}}),
        ("spurious_reward_control", {"control": {"kind": "given", "pass_at_1": 0.6, "p_value": 0.05}}),
        ("spurious_reward_control", {"control": {"kind": "given", "pass_at_1": 0.9, "p_value": 0.01}}),
        ("spurious_reward_control", {"control": {"kind": "given", "p_value": 0.01}}),
        ("forgetting", {"forgetting_ok": False}),
        ("forgetting", {"forgetting": {}}),
        ("forgetting", documents.forgetting(0.54)),
        ("parity", {"ok": False}),
        ("parity", {"n_mismatches": 1}),
        ("parity", {"n_comparisons": 0}),
        ("parity", {"tokenizer": {}}),
        ("parity", {"tokenizer": {"tokenizer.json": "0" * 64}}),
        ("parity", {"tokenizer": {"absent.json": "0" * 64}}),
    ],
)
def test_a_section_that_does_not_hold_stops_the_release(bare, tmp_path, name, change):
    document = build(bare, beside(bare, tmp_path, name, **change))
    part = SECTIONS[name][0]
    assert document["ship"] is False and document["release_gate"][f"{part}_ship"] is False
    assert document["release_gate"]["reasons"][0].startswith(name)


def test_a_given_control_below_the_candidate_is_enough(bare, tmp_path):
    control = {"kind": "given", "pass_at_1": 0.2, "p_value": 0.049}
    assert build(bare, beside(bare, tmp_path, "spurious_reward_control", control=control))["ship"]


def test_forgetting_is_computed_from_both_sides_and_up_to_the_limit(bare, tmp_path):
    def ships_with(**changes):
        found = {**documents.forgetting()["forgetting"], **changes}
        return build(bare, beside(bare, tmp_path, "forgetting", forgetting=found))["ship"]

    assert ships_with() and ships_with(base={"gsm8k": 0.05}, candidate={"gsm8k": 0.0})
    assert not ships_with(base={"gsm8k": 0.641}), "over the limit, whatever `drops` says"
    assert not ships_with(max_forgetting_drop=0.005) and not ships_with(max_forgetting_drop=None)
    assert not ships_with(base={"gsm8k": 0.9}, max_forgetting_drop=0.5), "no limit is laxer than the floor"
    assert not ships_with(base={}) and not ships_with(candidate={})
    assert not ships_with(missing={"candidate": ["mmlu"]})


def test_benchmarks_need_a_least_score_and_reach_it(bare, tmp_path):
    files = beside(bare, tmp_path, "external_benchmarks")
    assert build(bare, files, min_scores={"gsm8k": 0.6})["ship"]
    assert not build(bare, files, min_scores={"gsm8k": 0.61})["ship"]
    assert not build(bare, files, min_scores={"gsm8k": 0.5, "mmlu": 0.1})["ship"]
    assert not build(bare, files)["ship"], "nothing says what would be enough"
    absent = build(bare, min_scores={"gsm8k": 0.5})
    assert (
        absent["release_gate"]["external_benchmark_ship"] is False
        and "there is none" in absent["release_gate"]["reasons"][0]
    )


@pytest.mark.parametrize("part", [p for p in PARTS if p not in ("trace", "environment")])
def test_what_is_required_and_absent_does_not_ship(bare, part):
    assert build(bare)["release_gate"][f"{part}_ship"] is None
    document = build(bare, required=[part])
    assert document["ship"] is False and document["release_gate"][f"{part}_ship"] is False
    with pytest.raises(BashGymError, match="no part"):
        build(bare, required=["vibes"])


def test_an_executed_suite_is_environment_evidence_and_text_is_not():
    assert ships({}, [], True, True)[0]["environment"] is True
    assert ships({}, [], False, True)[0]["environment"] is False
    assert ships({}, [], True, False) == ({**dict.fromkeys(PARTS), "trace": True}, [])
    parts, reasons = ships({}, ["environment"], True, False)
    assert parts["environment"] is False and reasons == ["environment evidence is required and there is none"]
    both = {
        "a": {"part": "environment", "ship": True, "reason": ""},
        "b": {"part": "environment", "ship": False, "reason": "x"},
    }
    assert ships(both, [], True, True)[0]["environment"] is False


def test_an_unknown_section_is_refused(bare, tmp_path):
    with pytest.raises(BashGymError, match="no section 'vibes'"):
        judge({"vibes": write_json(tmp_path / "v.json", {})}, bare, bare.name, {})


def test_what_the_evidence_asked_for_is_asked_again(bare, tmp_path):
    build(bare, beside(bare, tmp_path, "external_benchmarks"), min_scores={"gsm8k": 0.6})
    path = bare / "release_evidence.json"
    stated = json.loads(path.read_text())
    edit(path, release_gate={**stated["release_gate"], "min_scores": {"gsm8k": 0.7}})
    assert "release_gate_ship_mismatch" in codes(make_card(bare))
    edit(path, release_gate={**stated["release_gate"], "required": ["parity"]})
    assert "release_gate_ship_mismatch" in codes(make_card(bare))
    edit(
        path,
        evidence=[e for e in stated["evidence"] if e["kind"] != "external_benchmarks"],
        release_gate=stated["release_gate"],
    )
    assert "release_gate_ship_mismatch" in codes(make_card(bare)), "the benchmarks were taken out of the list"


def test_a_broad_claim_needs_benchmarks_that_were_recomputed(bare, tmp_path):
    build(bare, beside(bare, tmp_path, "external_benchmarks"), min_scores={"gsm8k": 0.5})
    found = codes(make_card(bare, claim_tier="broad_public_claim"))
    assert "claim_tier_external_benchmark_missing_or_failed" not in found
    build(bare)
    assert "claim_tier_external_benchmark_missing_or_failed" in codes(make_card(bare, claim_tier="broad_public_claim"))


@pytest.mark.parametrize(
    ("metrics", "status"),
    [
        (None, "missing"),
        ({}, "missing_quality_metrics"),
        ({"heldout_pair_accuracy": 0.59}, "needs_attention"),
        ({"heldout_pair_accuracy": 0.6}, "present"),
        ({"heldout_pair_accuracy": 0.69}, "present"),
        ({"heldout_pair_accuracy": 0.7}, "healthy"),
        ({"heldout_pair_accuracy": 0.8, "reward_variance": 0}, "needs_attention"),
        ({"heldout_pair_accuracy": 0.8, "eval_only_leakage_count": 1}, "needs_attention"),
        ({"leakage": 1}, "needs_attention"),
        ({"rwml_pass_rate": 0.5}, "healthy"),
        ({"rwml_pass_rate": 0.49}, "needs_attention"),
        ({"embedding_distance_mean": 0.2}, "healthy"),
        ({"embedding_distance_mean": 0.21}, "needs_attention"),
        ({"calibration_error": 0.21}, "needs_attention"),
        ({"echo_loss": [2.0, 1.0]}, "improving"),
        ({"echo_loss": [1.0, 1.0]}, "present"),
        ({"echo_loss": [1.0, 1.1]}, "needs_attention"),
        ({"echo_loss": [1.0]}, "missing_quality_metrics"),
    ],
)
def test_the_status_of_a_diagnostic(metrics, status):
    assert quality(metrics)["status"] == status


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_a_diagnostic_is_told_and_decides_nothing(bare, tmp_path, name):
    bad = write_json(tmp_path / "bad.json", {"metrics": {"heldout_pair_accuracy": 0.1}})
    document = build(bare, {name: bad})
    assert document["ship"] is True and document[name]["status"] == "needs_attention"
    card = make_card(bare, decision="promote")
    assert card["ok"] and f"{name}_needs_attention" in codes(card, "warn")
    assert f"{name}_diagnostic_only" in codes(card, "diagnostic")
    plain = write_json(tmp_path / "plain.json", {"rwml_pass_rate": 0.9})
    assert build(bare, {name: plain})[name]["status"] == "healthy"
    assert f"{name}_needs_attention" not in codes(make_card(bare), "warn")


def test_the_trace_part_fails_with_a_held_out_report_that_does_not_ship(bare, tmp_path):
    document = build(bare, beside(bare, tmp_path, "heldout", ship=False))
    assert document["release_gate"]["trace_ship"] is False and document["release_gate"]["environment_ship"] is True
    weak = make_report(bare, scored=score_lines([False] * 40))
    gate = build_release_evidence(weak, run_dir=bare)["release_gate"]
    assert gate["trace_ship"] is False and gate["environment_ship"] is False
