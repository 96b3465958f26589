"""Edges of the rules: exactly at a limit, one side only, and what is said when a file is there but was never bound."""

import json

import documents
import pytest
from evidence_run import RUN_ID, codes, edit, make_card, make_report, make_run, score_lines, write_json, write_lines

from bashgym.core.errors import BashGymError
from bashgym.evidence import manifests
from bashgym.evidence.archive import verify
from bashgym.evidence.binding import artifact_digests, find_run
from bashgym.evidence.bundle import measure
from bashgym.evidence.card import read_card, write_card
from bashgym.evidence.checks.claims import direction
from bashgym.evidence.findings import Book
from bashgym.evidence.release import FLOORS, build_release_evidence, gate
from bashgym.evidence.runcard import validate
from bashgym.evidence.scores import Pairing, read_scores
from bashgym.methods import registry


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


def test_two_files_of_one_kind_are_one_too_many(run):
    card = make_card(run)["run_card"]
    path = run / "run_card.json"
    sealed = read_card(path, Book())
    sealed.evidence = [*sealed.evidence, sealed.evidence[0]]
    write_card(path, sealed)
    assert "evidence_duplicate" in codes(validate(path)) and len(card["evidence"]) == len(sealed.evidence) - 1


def test_a_file_in_the_run_directory_speaks_about_the_run_unless_it_says_otherwise(run, tmp_path):
    outside = write_lines(tmp_path / "away.jsonl", [{"run_id": "run_other", "step": 1}])
    inside = write_lines(run / "here.jsonl", [{"step": 1}])
    named = write_json(run / "named.json", {"run_id": "run_other", "schema_version": "x.v1"})

    def measured(path, folder=run):
        return measure("metrics", path, card_dir=run, run_id=RUN_ID, run_dir=folder)

    assert measured(inside).run_id == RUN_ID and measured(inside, None).run_id == ""
    assert measured(outside).run_id == "", "only a JSON document is asked"
    assert (measured(named).run_id, measured(named).schema_version) == ("run_other", "x.v1")


def test_a_run_id_is_no_path(models, tmp_path):
    for name in ("..", ".", "a/b", ""):
        folder = models / name
        write_json(folder / "manifest.json", {"run_id": name})
        assert find_run(name, tmp_path / "cards", models) is None, name
    assert find_run("a\0b", tmp_path, models) is None
    write_json(models / "plain" / "manifest.json", {"run_id": "plain"})
    assert find_run("plain", tmp_path / "cards", models) == models / "plain"


def test_the_whole_range_may_be_asked_for(models):
    run = make_run(models)
    report = make_report(run)
    assert build_release_evidence(report, run_dir=run, min_effect=1.0)["ship"] is False
    moved = run.rename(run.parent / "moved")
    document = build_release_evidence(moved / "evals/eval_1/report.json", run_dir=moved)
    assert document["run_id"] == RUN_ID, "the manifest says which run it is, not the folder"


def test_what_was_not_looked_at_is_no_finding_of_its_own():
    unknown = {**good_observed(), "tamper_rate": None, "train_overlap": None}
    assert gate(REPORT, unknown, FLOORS)["ship"] is True


def test_a_score_without_an_item_is_unreadable(tmp_path):
    found = read_scores(
        write_lines(tmp_path / "s.jsonl", [{"item_id": 3, "passed": True}, {"item_id": "", "passed": True}])
    )
    assert found.unreadable == 2 and found.rate() is None


def manifests_of(run):
    heldout = make_report(run).with_name("candidate.jsonl")
    manifests.write(run, heldout)
    return {kind: run / f"{kind}.json" for kind in manifests.SCHEMAS}


def test_a_broad_claim_holds_with_benchmarks_and_both_manifests(models, tmp_path):
    run = make_run(models)
    files = manifests_of(run)
    beside = {"external_benchmarks": write_json(tmp_path / "b.json", documents.external())}
    build_release_evidence(run / "evals/eval_1/report.json", run_dir=run, output=run / "release_evidence.json", beside=beside,
                           min_scores={"gsm8k": 0.5})  # fmt: skip
    card = make_card(run, claim_tier="broad_public_claim", decision="promote", evidence=files)
    assert card["ok"], card["findings"]
    for kind, path in files.items():
        good = json.loads(path.read_text())
        bad = [{"run_id": "run_other"}, {"train_sha256": "0" * 64}, {"heldout_sha256": good["train_sha256"]},
               {"heldout_sha256": "0" * 63}, {"heldout_sha256": None}, {"schema_version": "x"}, {"simulated": True}]  # fmt: skip
        if kind == "decontamination_manifest":
            bad += [{"contaminated": {"1.0": {"kind": "exact", "row": 1}}}, {"n_checked": 0}, {"contaminated": None}]
        for change in bad:
            spoiled = write_json(run / "spoiled.json", {**good, **change})
            made = make_card(run, claim_tier="broad_public_claim", evidence={**files, kind: spoiled})
            assert f"claim_tier_{kind}_missing" in codes(made), (kind, change)
        saying = write_json(run / "saying.json", {"run_id": RUN_ID, "ok": True})
        assert f"{kind}_not_ok" in codes(make_card(run, evidence={kind: saying}))


def test_manifests_find_what_was_trained_on(models):
    run = make_run(models)
    held = write_lines(run / "held.jsonl", [{"prompt": "train 3"}, {"prompt": "quite another question"}])
    found = manifests.write(run, held)
    assert list(found["decontamination_manifest"]["contaminated"]) == ["1.0"]
    assert found["split_manifest"]["heldout_questions"] == 2 and found["split_manifest"]["train_rows"] == 8
    for bad in ([{"answer": "x"}],):
        with pytest.raises(BashGymError, match="no row with a prompt"):
            manifests.write(run, write_lines(run / "held.jsonl", bad))
    (models.parent / "train.jsonl").unlink()
    with pytest.raises(BashGymError, match="not there as it was"):
        manifests.write(run, held)


def test_metrics_count_only_when_nothing_is_wrong_with_them(models):
    whole = {"step": 1, "loss": 1.0, "grad_norm": 1.0, "learning_rate": 1e-4}
    for extra, fine in (({}, True), ({"non_finite": {"loss": "NaN"}, "loss": None}, False)):
        run = make_run(models, metrics=[{**whole, **extra}])
        assert make_card(run)["artifact_status"]["metrics"]["accepted"] is fine


def test_reward_spread_is_shown_by_both_series_of_sound_metrics(models):
    names = {"reward_std": 0.1, "frac_reward_zero_std": 0.1}
    for point, fine in (
        (names, True),
        ({"reward_std": 0.1}, False),
        ({"frac_reward_zero_std": 0.1}, False),
        ({**names, "loss": None, "non_finite": {"loss": "NaN"}}, False),
    ):
        series = dict.fromkeys(registry.must_emit(registry.get("grpo"), {}), 0.5)
        both = {name: value for name, value in series.items() if name not in names}
        run = make_run(models, strategy="grpo", metrics=[{"step": 1, **both, **point}])
        assert ("missing_zero_std_diagnostics" in codes(make_card(run, training_method="grpo"))) is not fine, point


def test_outputs_that_are_gone_are_told(run):
    (run / "made.txt").write_text("x")
    card = make_card(run, output_artifact=["final", str(run / "made.txt")])
    assert "missing_outputs_file" not in codes(card, "warn")
    (run / "made.txt").unlink()
    assert "missing_outputs_file" in codes(validate(run / "run_card.json"), "warn")


def test_branch_and_commit_are_those_of_the_training_code(run):
    manifest = json.loads((run / "manifest.json").read_text())
    edit(run / "manifest.json", code={**manifest["code"], "branch": "topic"})
    card = make_card(run)["run_card"]
    assert (card["branch"], card["git_commit"]) == ("topic", "c" * 40)
    edit(run / "manifest.json", code={})
    card = make_card(run)["run_card"]
    assert (card["branch"], card["git_commit"]) == ("", "")


def test_what_was_taken_as_stated_is_said(run, models):
    make_card(run, decision="promote")
    assert verify(run)["not_recomputed"] == []
    (models.parent / "train.jsonl").unlink()
    gate_ = write_json(run / "gate.json", documents.holdout())
    canaries = write_json(run / "canaries.json", documents.canaries())
    card = make_card(run, evidence={"holdout_gate": gate_, "canaries": canaries})
    assert "heldout_overlap_unchecked" in codes(card, "warn")
    assert any("held-out environments" in f["message"] for f in card["findings"])
    assert any("canaries" in line for line in verify(run)["not_recomputed"])


def test_a_replay_of_blank_lines_is_empty(models):
    run = make_run(models, strategy="dppo")
    (run / "blank.jsonl").write_text("\n\n")
    found = codes(make_card(run, training_method="dppo", evidence={"replay": run / "blank.jsonl"}))
    assert found & {"replay_not_ok", "invalid_replay_artifact"}


@pytest.mark.parametrize("path", ["", None, 7, ["scores.jsonl"]])
def test_a_score_entry_without_a_name_names_nothing(tmp_path, path):
    from bashgym.evidence.inspection import score_path

    assert score_path({"path": path}, tmp_path) is None and score_path({}, tmp_path) is None
