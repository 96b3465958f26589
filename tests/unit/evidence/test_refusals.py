"""Each method has a card that is promoted; with one thing wrong in it, the same card is refused, and for that reason."""

import json
from pathlib import Path

import documents
import pytest
from evidence_run import RUN_ID, codes, make_card, make_report, score_lines, write_json, write_lines
from whole_cards import METHODS, evidence_of, predictions, whole_card, whole_run

from bashgym.core.errors import BashGymError
from bashgym.evals.reward_eval import evaluate
from bashgym.evidence.release import build_release_evidence
from bashgym.evidence.runcard import validate

BASE = score_lines([i % 4 == 1 for i in range(40)])
WEAK = {
    "a 0 % candidate": {"scored": score_lines([False] * 40)},
    "a 0 % candidate against a 0 % base": {
        "scored": score_lines([False] * 40),
        "scored_base": score_lines([False] * 40),
    },
    "an equal candidate": {"scored": BASE},
    "a candidate better by noise": {"scored": score_lines([i % 4 == 1 or i == 0 for i in range(40)])},
    "a simulated evaluation": {"simulated": True},
    "a smoke evaluation": {"smoke": True},
}


@pytest.mark.parametrize("method", METHODS)
def test_with_all_its_evidence_a_run_is_promoted(models, method):
    run, card = whole_card(models, method)
    assert card["ok"] and card["run_card"]["decision"] == "promote", card["findings"]
    assert validate(run / "run_card.json", promotion=True, models_dir=models)["ok"]


@pytest.mark.parametrize("what", WEAK)
@pytest.mark.parametrize("method", METHODS)
def test_a_candidate_that_is_not_better_is_refused(models, method, what):
    report = {"scored_base": BASE, **WEAK[what]}
    _, card = whole_card(models, method, report=report)
    found = codes(card)
    reason = "release_evidence_smoke" if "smoke" in what else "release_evidence_not_shippable"
    assert reason in found and card["run_card"]["decision"] == "hold", found


@pytest.mark.parametrize("method", METHODS)
def test_a_dead_base_gives_no_evidence(models, method):
    run = whole_run(models, method)
    dead = [{**line, "passed": None, "status": "error"} for line in BASE]
    with pytest.raises(BashGymError) as caught:
        build_release_evidence(make_report(run, scored_base=dead), run_dir=run)
    assert caught.value.code == "digest_mismatch"
    card = make_card(run, training_method=method, decision="promote", **evidence_of(run, method))
    assert "missing_release_evidence_path" in codes(card) and card["run_card"]["decision"] == "hold"


@pytest.mark.parametrize("method", METHODS)
def test_a_contaminated_hold_out_is_refused(models, method):
    run, card = whole_card(models, method)
    trained = json.loads((run / "manifest.json").read_text())["dataset"]
    with open(trained["path"]) as file:
        row = json.loads(file.readline())
    asked = row["messages"][0]["content"] if "messages" in row else row.get("prompt") or row["original_context"]
    lines = score_lines([i % 4 != 0 for i in range(40)])
    base = [{**line, "prompt": asked} if i == 3 else line for i, line in enumerate(BASE)]
    lines[3]["prompt"] = asked
    _, card = whole_card(models, method, report={"scored": lines, "scored_base": base})
    assert "release_evidence_not_shippable" in codes(card) and card["run_card"]["decision"] == "hold"
    assert "in the training rows" in str(card["findings"])


@pytest.mark.parametrize("method", METHODS)
def test_an_edited_file_is_found_whichever_it_is(models, method):
    run, card = whole_card(models, method)
    bound = [run / entry["path"] for entry in card["run_card"]["evidence"]]
    beneath = sorted((run / "evals").rglob("*.json*"))
    for path in {*bound, *beneath}:
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"0", b"1", 1))
        found = codes(validate(run / "run_card.json", models_dir=models))
        assert found, path
        path.write_bytes(whole)
    assert validate(run / "run_card.json", models_dir=models)["ok"]


@pytest.mark.parametrize("method", [m for m in METHODS if m != "sft"])
def test_nothing_that_the_method_asks_for_can_be_left_out_or_be_anothers(models, method):
    run, _ = whole_card(models, method)
    given = evidence_of(run, method)
    asked = {"training_method": method, "decision": "promote"}
    names = [name for name in given if name != "evidence"] + [*given.get("evidence", {})]
    for name in names:
        less = {key: value for key, value in given.items() if key != name}
        less["evidence"] = {key: value for key, value in given.get("evidence", {}).items() if key != name}
        card = make_card(run, **asked, **less)
        assert any(code.startswith("missing_") for code in codes(card)), name
    for name, path in given.get("evidence", {}).items():
        other = write_json(run / "other.json", {**json.loads(Path(path).read_text()), "run_id": "run_other"})
        card = make_card(run, **{**asked, **given, "evidence": {name: str(other)}})
        assert "evidence_run_mismatch" in codes(card), name


def reward_card(models, change):
    run, _ = whole_card(models, "reward_model")
    report = change(run, evaluate(predictions(run), run_id=RUN_ID))
    write_json(run / "reward_eval.json", {**json.loads((run / "reward_eval.json").read_text()), **report})
    return codes(
        make_card(
            run,
            training_method="reward_model",
            reward_examples=str(run / "examples.jsonl"),
            reward_eval=str(run / "reward_eval.json"),
        )
    )


def test_a_reward_model_is_judged_by_its_predictions(models):
    assert reward_card(models, lambda run, report: report) == set()
    weak = reward_card(models, lambda run, _: evaluate(predictions(run, right=5), run_id=RUN_ID))
    assert "reward_eval_not_better_than_chance" in weak
    edge = reward_card(models, lambda run, _: evaluate(predictions(run, right=6), run_id=RUN_ID))
    assert "reward_eval_not_better_than_chance" not in edge

    def flattered(run, report):
        return {"metrics": {**report["metrics"], "heldout_pair_accuracy": 1.0}}

    assert "evidence_inconsistent" in reward_card(models, flattered)
    assert "evidence_run_mismatch" in reward_card(models, lambda run, _: {"run_id": "run_other"})
    assert "evidence_run_mismatch" in reward_card(models, lambda run, _: {"run_id": ""})
    assert "evidence_smoke" not in reward_card(models, lambda run, _: {"smoke": False})
    assert "evidence_smoke" in reward_card(models, lambda run, _: {"smoke": True})


def test_predictions_that_are_gone_are_said_to_be(models):
    run, card = whole_card(models, "reward_model")
    assert "not_recomputed" not in codes(card, "diagnostic")
    (run / "predictions.jsonl").unlink()
    assert "not_recomputed" in codes(validate(run / "run_card.json", models_dir=models), "diagnostic")


def smoke(run, **changes):
    sha = json.loads((run / "manifest.json").read_text())["dataset"]["digest"]
    document = {
        "schema_version": "bashgym.backend_smoke_bundle.v1",
        "replay_sha256": sha,
        "contract_ready": True,
        "optimizer_ready": True,
        "checks": [{"code": "backend_launch_plan", "level": "warn", "message": "none"}],
        **changes,
    }
    path = write_json(run / "smoke.json", document)
    card = make_card(run, training_method="dppo", smoke_bundle=str(path))
    return card["artifact_status"]["smoke_bundle"]["accepted"], codes(card) | codes(card, "warn")


def test_a_smoke_bundle_is_of_the_replay_that_was_trained_on(models):
    run = whole_run(models, "dppo")
    assert smoke(run)[0] is True
    for changes, code in (
        ({"replay_sha256": "0" * 64}, "evidence_run_mismatch"),
        ({"schema_version": "x"}, "invalid_smoke_bundle_schema"),
        ({"simulated": True}, "invalid_smoke_bundle_schema"),
        ({"optimizer_ready": False}, "smoke_bundle_not_ready"),
        ({"contract_ready": None}, "smoke_bundle_not_ready"),
        ({"checks": [{"level": "fail"}]}, "smoke_bundle_not_ready"),
        ({"checks": None}, "smoke_bundle_not_ready"),
    ):
        accepted, found = smoke(run, **changes)
        assert not accepted and code in found, changes


def test_evidence_from_elsewhere_is_brought_into_the_run_with_its_scores(models, tmp_path):
    run, _ = whole_card(models, "dpo")
    away = write_json(tmp_path / "job/report.json", documents.heldout(tmp_path / "job"))
    given = evidence_of(run, "dpo")
    card = make_card(run, training_method="dpo", **{**given, "evidence": {"heldout_preference": str(away)}})
    entry = next(e for e in card["run_card"]["evidence"] if e["kind"] == "heldout_preference")
    assert entry["path"] == "evals/heldout_preference/report.json"
    assert (run / "evals/heldout_preference/scores.jsonl").is_file() and card["ok"], card["findings"]


def test_a_report_cannot_make_us_pick_up_what_it_has_no_digest_of(models, tmp_path):
    run, _ = whole_card(models, "dpo")
    secret = write_lines(tmp_path / "secret.txt", ["private"])
    document = {**documents.heldout(tmp_path / "job"), "scores": {"path": str(secret), "sha256": "0" * 64}}
    away = write_json(tmp_path / "job/report.json", document)
    make_card(run, training_method="dpo", evidence={"heldout_preference": str(away)})
    assert not list(run.rglob("secret.txt"))
