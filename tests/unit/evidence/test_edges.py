"""Edges of the rules: exactly at a limit, one side only, and what is said when a file is there but was never bound."""

import json

import pytest
from evidence_run import RUN_ID, codes, edit, make_card, make_report, make_run, score_lines, write_lines

from bashgym.core.errors import BashGymError
from bashgym.evidence.binding import artifact_digests
from bashgym.evidence.card import read_card, write_card
from bashgym.evidence.checks.claims import direction
from bashgym.evidence.findings import Book
from bashgym.evidence.release import FLOORS, build_release_evidence, gate
from bashgym.evidence.runcard import validate
from bashgym.evidence.scores import Pairing, read_scores


def in_clusters(lines, n):
    return [{**line, "cluster": f"c{i % n}"} for i, line in enumerate(lines)]


def test_two_clusters_are_enough_for_the_gate_and_one_is_not(models):
    run = make_run(models)
    better, base = score_lines([True] * 40), score_lines([False] * 40)
    made = make_report(run, scored=in_clusters(better, 2), scored_base=in_clusters(base, 2))
    assert build_release_evidence(made, run_dir=run)["ship"] is True
    made = make_report(run, scored=in_clusters(better, 1), scored_base=in_clusters(base, 1))
    assert build_release_evidence(made, run_dir=run)["ship"] is False


def good_observed():
    return {"effect": 0.5, "ci_low": 0.3, "rechecked_ci_low": 0.3, "n_scored": 20.0, "n_clusters": 2.0, "missing_rate": 0.02,
            "tamper_rate": 0.0, "train_overlap": 0.0}  # fmt: skip


REPORT = {
    "suite": {"split": "heldout_values", "executed": True},
    "simulated": False,
    "comparison": {"verdict": "improved"},
}


def test_the_gate_ships_exactly_at_its_floors():
    assert gate(REPORT, good_observed(), FLOORS)["ship"] is True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("effect", 0.0), ("effect", None), ("ci_low", 0.0), ("ci_low", None),
        ("rechecked_ci_low", 0.0), ("rechecked_ci_low", None),
        ("n_scored", 19.0), ("n_scored", None), ("n_clusters", 1.0), ("n_clusters", None), ("missing_rate", 0.021),
        ("missing_rate", None), ("tamper_rate", 0.001), ("train_overlap", 1.0),
    ],
)  # fmt: skip
def test_the_gate_ships_nothing_beyond_a_floor(name, value):
    assert gate(REPORT, {**good_observed(), name: value}, FLOORS)["ship"] is False


@pytest.mark.parametrize(
    "change",
    [{"suite": {"split": "train"}}, {"suite": {"split": "training_values"}}, {"simulated": True}, {"simulated": None},
     {"comparison": {"verdict": "inconclusive"}}, {"comparison": {}}],
)  # fmt: skip
def test_the_gate_ships_no_training_split_no_simulation_and_no_other_verdict(change):
    assert gate({**REPORT, **change}, good_observed(), FLOORS)["ship"] is False


def test_a_smallest_effect_of_ones_own_is_a_limit_too():
    limits = {**FLOORS, "min_effect": 0.5}
    assert gate(REPORT, good_observed(), limits)["ship"] is True
    assert gate(REPORT, {**good_observed(), "effect": 0.49}, limits)["ship"] is False


def test_a_run_without_a_saved_model_promotes_nothing(run):
    for path in (run / "final").iterdir():
        path.unlink()
    assert artifact_digests(run) == {}, "an empty folder is no model"
    assert "artifact_missing" in codes(make_card(run))
    assert "artifact_missing" not in codes(make_card(run, promotion=False, decision="pending"))


def test_an_empty_score_path_names_no_file(run):
    report = run / "evals/eval_1/report.json"
    scores = json.loads(report.read_text())["scores"]
    edit(report, scores={**scores, "candidate": {**scores["candidate"], "path": ""}})
    with pytest.raises(BashGymError):
        build_release_evidence(report, run_dir=run)


def resealed(run, **changes):
    path = run / "run_card.json"
    card = read_card(path, Book())
    for name, value in changes.items():
        setattr(card, name, value)
    write_card(path, card)
    return codes(validate(path))


def test_a_path_that_was_never_bound_is_only_a_claim(run):
    make_card(run)
    (run / "other.jsonl").write_text("{}\n")
    found = resealed(run, metrics_path="other.jsonl")
    assert "evidence_unbound" in found and "missing_metrics_path_file" not in found
    found = resealed(run, metrics_path="gone.jsonl")
    assert "missing_metrics_path_file" in found and "evidence_unbound" not in found


def test_confidence_may_be_anything_from_zero_to_one(run):
    for value in (0.0, 1.0):
        card = make_card(run, training_method="session_distillation", promotion=False, confidence_threshold=value)
        assert "invalid_session_distillation_confidence_threshold" not in codes(card)
    card = make_card(run, training_method="session_distillation", promotion=False, confidence_threshold=-0.01)
    assert "invalid_session_distillation_confidence_threshold" in codes(card)


def test_the_direction_of_a_threshold():
    cases = {"p_value": True, "eval_loss": True, "loss": True, "timeout_rate": True, "pass_rate": False, "success_rate": False,
             "effect": False, "accuracy": False, "train_overlap": True, "calibration_error": True}  # fmt: skip
    assert {name: direction(name)[1] for name in cases} == cases
    assert direction("min_loss") == ("loss", False) and direction("max_accuracy") == ("accuracy", True)


def test_what_score_files_say(tmp_path):
    lines = [*score_lines([True, False, True]), {**score_lines([False])[0], "item_id": "odd", "status": "format_error"}]
    found = read_scores(write_lines(tmp_path / "s.jsonl", [*lines, lines[0], {"no": "item"}]))
    assert found.rate() == 0.5 and found.format_validity() == 0.75
    assert found.doubled == ["item0#0"] and found.unreadable == 1
    assert Pairing([0.5, 0.5], ["a", "b"]).lower_bound() is not None
    assert Pairing([0.5], ["a"]).lower_bound() is None and Pairing([0.5, 0.5], ["a", "a"]).lower_bound() is None
    assert Pairing([], []).effect is None and Pairing([1.0, 0.0], ["a", "b"]).effect == 0.5


def test_reward_examples_satisfy_their_kind_only_strictly(run, tmp_path):
    from tests.unit.rewards.test_reward_models import OUTCOME

    for row, code in (
        (OUTCOME, ""),
        ({**OUTCOME, "prompt": ""}, "reward_examples_missing_prompt"),
        ({**OUTCOME, "split": ""}, "reward_examples_missing_split_metadata"),
    ):
        path = write_lines(tmp_path / "rows.jsonl", [row])
        found = codes(make_card(run, training_method="reward_model", reward_examples=str(path)))
        assert (code in found) if code else not any(c.startswith("reward_examples_") for c in found), (row, found)
        assert ("missing_reward_examples" in found) is bool(code)


def test_the_run_that_a_card_names_is_the_run_that_is_judged(run):
    made = make_card(run)
    assert made["run_card"]["run"]["run_id"] == RUN_ID
    edit(run / "manifest.json", seed=8)
    assert "run_binding_mismatch" in codes(validate(run / "run_card.json", promotion=True))
