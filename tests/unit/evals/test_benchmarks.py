"""What other harnesses wrote is read as it is, or refused by name."""

import json

import pytest

from bashgym.core.errors import BashGymError
from bashgym.evals.benchmarks import ExternalRequest, IngestRequest, commands, external, forgetting


def lm_eval(**scores):
    """The object that lm_eval writes, with a standard error and an alias beside each score."""
    results = {task: {"alias": task, "acc,none": value, "acc_stderr,none": 0.01} for task, value in scores.items()}
    return {"results": results, "n-samples": {task: {"original": 100, "effective": 100} for task in scores}}


def ingest(base, candidate, **more):
    return forgetting(IngestRequest(model_id="m", base_results=base, candidate_results=candidate, **more))


def test_drops_are_base_minus_candidate_with_intervals():
    found = ingest(lm_eval(mmlu=0.6, gsm8k=0.4), lm_eval(mmlu=0.5, gsm8k=0.45))
    assert found["forgetting"]["drops"] == {"mmlu": pytest.approx(0.1), "gsm8k": pytest.approx(-0.05)}
    assert found["forgetting"]["regressed"] == ["mmlu"] and found["forgetting_ok"] is False
    assert found["worst"] == {"task": "mmlu", "drop": pytest.approx(0.1)}
    low, high = found["forgetting"]["intervals"]["mmlu"]
    assert (high - low) / 2 == pytest.approx(1.959963984540054 * (2 * 0.01**2) ** 0.5)
    assert ingest(lm_eval(mmlu=0.6), lm_eval(mmlu=0.6))["forgetting_ok"] is True


def test_a_task_that_the_candidate_was_not_asked_is_not_unforgotten():
    found = ingest(lm_eval(mmlu=0.6, ifeval=0.4), lm_eval(mmlu=0.6))
    assert found["forgetting"]["missing"] == {"candidate": ["ifeval"], "base": []} and found["forgetting_ok"] is False


def test_the_headline_metric_follows_the_order(tmp_path):
    mixed = {
        "results": {"t": {"acc,none": 0.1, "exact_match,strict-match": 0.7, "exact_match_stderr,strict-match": 0.02}}
    }
    path = tmp_path / "results.json"
    path.write_text(json.dumps(mixed))
    found = external(ExternalRequest(model_id="m", results=str(path), benchmark_name="b"))
    assert found["tasks"]["t"] == {"metric": "exact_match", "value": 0.7, "stderr": 0.02, "n": None}


def test_an_inspect_log_counts_only_when_it_succeeded():
    score = {"name": "match", "metrics": {"accuracy": {"value": 2 / 3}, "stderr": {"value": 0.33}}}
    log = {"eval": {"task": "popularity"}, "results": {"completed_samples": 3, "scores": [score]}, "status": "success"}
    found = external(ExternalRequest(model_id="m", results=log))["tasks"]
    assert found == {"popularity": {"metric": "accuracy", "value": 2 / 3, "stderr": 0.33, "n": 3}}
    with pytest.raises(BashGymError, match="cancelled"):
        external(ExternalRequest(model_id="m", results={**log, "status": "cancelled"}))


@pytest.mark.parametrize(
    "results",
    [
        {"results": {}},
        {"results": []},
        {"results": {"t": 3}},
        {"results": {"t": {"acc,none": "high"}}},
        {"results": {"t": {"acc,none": float("nan")}}},
        {"results": {"t": {"acc,none": True}}},
        {"eval": {"task": "t"}, "results": None, "status": "success"},
        {"eval": {"task": "t"}, "results": {"scores": []}, "status": "success"},
    ],
)
def test_what_is_no_result_is_refused(results):
    with pytest.raises(BashGymError) as caught:
        external(ExternalRequest(model_id="m", results=results))
    assert caught.value.code == "benchmark_invalid"


def test_results_that_do_not_compare_are_refused(tmp_path):
    for base, candidate, said in (
        (lm_eval(a=0.1), lm_eval(b=0.1), "share no task"),
        (lm_eval(a=0.1), {"results": {"a": {"f1,none": 0.1}}}, "do not compare"),
    ):
        with pytest.raises(BashGymError, match=said):
            ingest(base, candidate)
    with pytest.raises(BashGymError) as caught:
        ingest(str(tmp_path / "none.json"), lm_eval(a=0.1))
    assert caught.value.fields == ["base_results"]


def test_commands_are_argv_and_unknown_ones_are_refused():
    every = ("forgetting", "terminal_bench", "harbor_terminal_bench", "bfcl", "swebench")
    found = commands("http://localhost:8000/v1/", "my model; rm -rf", include=every)
    assert set(found) == set(every)
    assert any("base_url=http://localhost:8000/v1/chat/completions" in part for part in found["forgetting"])
    with pytest.raises(BashGymError, match="no benchmark"):
        commands("http://localhost/v1", "m", include=("mmmu",))
