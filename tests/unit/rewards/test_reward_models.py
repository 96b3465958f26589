"""Reward examples, evaluations of reward models, and the fixture that proves the path."""

import json
import math
import random

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.findings import Collector
from bashgym.data.reward_examples import iter_examples, validate
from bashgym.evals.reward_eval import calibration_error, evaluate
from bashgym.evals.reward_fixture import train

META = {"reward_scale": "0..1", "label_source": "people", "source": "s1", "quality": 0.9, "domain": "shell", "split": "train",
        "decontamination_status": "checked"}  # fmt: skip
OUTCOME = {"example_id": "o", "reward_type": "outcome_reward", "prompt": "p", "response": "r", "reward": 1.0, **META}
PAIR = {"example_id": "p", "reward_type": "preference_reward", "prompt": "p", "chosen": "a", "rejected": "b", **META}
STEPS = [{"text": "one", "reward": 1}, {"text": "two", "reward": 0}]
PROCESS = {"example_id": "s", "reward_type": "prm", "prompt": "p", "steps": STEPS, **META}


def write(tmp_path, rows, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def codes(doc, level="fail"):
    return {f["code"] for f in doc["findings"] if f["level"] == level}


def test_all_three_kinds_pass_strictly_and_are_read_as_they_are(tmp_path):
    path = write(tmp_path, [OUTCOME, PAIR, PROCESS])
    doc = validate(path, strict=True)
    assert doc["ok"] and doc["kinds"] == {"outcome": 1, "preference": 1, "process": 1}, doc["findings"]
    outcome, pair, process = iter_examples(path)
    assert (outcome.reward, pair.chosen, pair.rejected) == (1.0, "a", "b")
    assert process.steps == (("one", 1.0), ("two", 0.0)) and [e.number for e in (outcome, pair, process)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({**OUTCOME, "example_id": ""}, "missing_example_id"),
        ({**OUTCOME, "reward_type": None}, "missing_reward_type"),
        ({**OUTCOME, "prompt": " "}, "missing_prompt"),
        ({**OUTCOME, "response": ""}, "missing_response_or_trajectory"),
        ({**OUTCOME, "reward": None}, "missing_reward_value"),
        ({**OUTCOME, "reward": "high"}, "missing_reward_value"),
        ({**PAIR, "rejected": ""}, "missing_reward_value"),
        ({**PAIR, "rejected": "a"}, "identical_chosen_rejected"),
        ({**PROCESS, "steps": []}, "missing_process_reward_steps"),
        ({**PROCESS, "steps": [{"text": "x"}]}, "missing_process_reward_steps"),
        ({**PROCESS, "steps": [{"text": "x", "reward": 1}, "y"]}, "missing_process_reward_steps"),
    ],
)
def test_each_fault_is_named_with_its_row(tmp_path, row, code):
    doc = validate(write(tmp_path, [{**OUTCOME, "example_id": "first"}, row]))
    assert doc["ok"] is False and code in codes(doc)
    assert next(f for f in doc["findings"] if f["code"] == code)["rows"] == [2]


def test_metadata_is_a_warning_and_strictly_a_failure(tmp_path):
    bare = {k: v for k, v in OUTCOME.items() if k not in META}
    path = write(tmp_path, [bare])
    lax, strict = validate(path), validate(path, strict=True)
    assert lax["ok"] and not strict["ok"]
    assert codes(lax, "warn") == codes(strict) == {
        "missing_reward_scale", "missing_label_source", "missing_source_provenance", "missing_quality_or_confidence",
        "missing_domain_or_task_family", "missing_split_metadata", "missing_decontamination_metadata"}  # fmt: skip


def test_unknown_types_are_warned_of_doubles_and_empty_files_refused(tmp_path):
    doc = validate(write(tmp_path, [{**OUTCOME, "reward_type": "vibes"}]))
    assert doc["ok"] and "unknown_reward_type" in codes(doc, "warn")
    assert "doubled_example_id" in codes(validate(write(tmp_path, [OUTCOME, OUTCOME])))
    with pytest.raises(BashGymError) as caught:
        validate(write(tmp_path, []))
    assert caught.value.code == "dataset_empty"
    path = tmp_path / "nan.jsonl"
    path.write_text(json.dumps(OUTCOME).replace("1.0", "NaN") + "\n")
    assert not validate(path)["ok"]


def test_iterating_leaves_out_what_cannot_be_trained_on(tmp_path):
    watch = Collector([])
    kept = list(iter_examples(write(tmp_path, [OUTCOME, {**PAIR, "chosen": ""}]), watch))
    assert [e.kind for e in kept] == ["outcome"] and watch.errors == 1


def scored(i, good, bad, **more):
    answers = {"chosen": "right " * (1 + i % 3), "rejected": "wrong wrong"}
    scores = {"predicted_chosen": good, "predicted_rejected": bad}
    return {"prompt": f"question {i}", "split": "eval", "domain": f"d{i % 4}", **answers, **scores, **more}


def test_accuracy_margin_and_interval_of_pairs(tmp_path):
    rows = [scored(i, 2.0 if i % 4 else 0.0, 1.0) for i in range(40)] + [scored(99, 1.0, 1.0)]
    doc = evaluate(write(tmp_path, rows))
    metrics = doc["metrics"]
    assert metrics["heldout_pair_accuracy"] == pytest.approx((30 + 0.5) / 41) and metrics["pair_count"] == 41
    low, high = metrics["pair_accuracy_interval"]
    assert 0 <= low < metrics["heldout_pair_accuracy"] < high <= 1
    assert metrics["reward_margin"] == pytest.approx((30 - 10) / 41)
    assert doc["ok"] and codes(doc, "warn") == {"calibration_unavailable"}
    assert sum(part["n"] for name, part in doc["slices"].items() if name.startswith("domain:")) == 41


def test_answers_to_one_prompt_are_pairs_and_are_calibrated(tmp_path):
    rows = []
    for i in range(20):
        for reward, predicted in ((1.0, 0.8), (0.0, 0.3)):
            rows.append(
                {
                    "prompt": f"p{i}",
                    "response": "x" * (i + 1),
                    "reward": reward,
                    "prediction": predicted,
                    "split": "eval",
                }
            )
    metrics = evaluate(write(tmp_path, rows))["metrics"]
    assert metrics["heldout_pair_accuracy"] == 1.0 and metrics["pair_count"] == 20
    assert metrics["calibration_error"] == pytest.approx(0.25) and metrics["brier_score"] == pytest.approx(
        (0.04 + 0.09) / 2
    )
    assert metrics["length_bias"] == pytest.approx(0.0, abs=1e-9)


def test_calibration_error_by_hand():
    points = [(0.9, 1.0), (0.9, 0.0), (0.1, 0.0), (1.0, 1.0)]
    # bins of tenths: [0.1]: |0 - 0.1|, [0.9]: |0.5 - 0.9| twice with 1.0 in the last bin
    assert calibration_error(points, 10) == pytest.approx((0.1 * 1 + abs(2 / 3 - 2.8 / 3) * 3) / 4)


def test_length_bias_is_seen(tmp_path):
    rows = [scored(i, float(1 + i % 3), 0.0) for i in range(12)]
    metrics = evaluate(write(tmp_path, rows))["metrics"]
    assert metrics["length_bias"] is not None and metrics["accuracy_chosen_shorter"] is not None


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([scored(0, 1.0, 0.0, split="train")], "no_records_for_split"),
        ([scored(0, None, 0.0)], "missing_reward_model_predictions"),
        ([scored(0, "x", 0.0), scored(1, 1, 0)], "missing_reward_model_predictions"),
        (
            [{"prompt": "p", "response": "r", "reward": 1.0, "prediction": 0.5, "split": "eval"}],
            "no_pairwise_comparisons",
        ),
        ([scored(0, 1.0, 1.0), scored(1, 1.0, 1.0)], "zero_reward_variance"),
        ([scored(0, 1.0, 0.0), {"prompt": " QUESTION  0 ", "split": "train"}], "eval_only_leakage"),
    ],
)
def test_what_makes_an_evaluation_unusable(tmp_path, rows, code):
    doc = evaluate(write(tmp_path, rows))
    assert doc["ok"] is False and code in codes(doc)


def test_an_evaluation_names_its_file_and_run(tmp_path):
    doc = evaluate(write(tmp_path, [scored(i, 1.0, 0.0) for i in range(4)]), run_id="run_x")
    assert doc["run_id"] == "run_x" and len(doc["sha256"]) == 64
    with pytest.raises(BashGymError):
        evaluate(write(tmp_path, [scored(0, 1, 0)]), bins=1)


def fixture_rows(n=120):
    draw = random.Random(0)
    for i in range(n):
        good, bad = ("please thanks", "rude shout") if draw.random() < 0.9 else ("rude", "thanks")
        yield {**PAIR, "example_id": f"e{i}", "prompt": f"q{i}", "chosen": f"{good} {i}", "rejected": f"{bad} {i}",
               "split": "train" if i % 3 else "eval"}  # fmt: skip


def test_the_fixture_learns_words_and_says_that_it_is_a_smoke(tmp_path):
    path = write(tmp_path, list(fixture_rows()))
    doc = train(path, tmp_path / "out")
    assert doc["ok"] and doc["smoke"] is True and doc["metrics"]["heldout_pair_accuracy"] > 0.8
    names = {"reward_model_fixture.json", "metrics.jsonl", "reward_predictions.jsonl", "reward_eval.json",
             "reward_model_fixture_report.json"}  # fmt: skip
    assert {p.name for p in (tmp_path / "out").iterdir()} == names
    losses = [json.loads(line)["loss"] for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert losses == sorted(losses, reverse=True) and losses[0] == pytest.approx(math.log(2))
    again = train(path, tmp_path / "again")
    assert again["metrics"] == doc["metrics"], "no randomness"


def test_the_fixture_refuses_what_it_cannot_split(tmp_path):
    path = write(tmp_path, [PAIR])
    with pytest.raises(BashGymError) as caught:
        train(path, tmp_path / "out")
    assert caught.value.code == "reward_rows_invalid" and not (tmp_path / "out").exists()
    with pytest.raises(BashGymError):
        train(path, tmp_path / "out", epochs=0)
