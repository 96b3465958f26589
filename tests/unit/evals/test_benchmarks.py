"""What other harnesses wrote is read as it is, or refused by name."""

import json

import pytest
from scipy.stats import norm

from bashgym.core.errors import BashGymError
from bashgym.evals.benchmark_commands import INCLUDES, commands
from bashgym.evals.benchmarks import ExternalRequest, IngestRequest, external, forgetting


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
    scored = {"metric": "exact_match", "filter": "strict-match", "value": 0.7, "stderr": 0.02}
    assert found["tasks"]["t"] == {**scored, "n": None, "n_shot": None, "version": None}
    assert found["harness"] == "lm-eval"


def written(**more):
    """What lm_eval 0.4 writes of a group, of ifeval and of a translation task, shortened."""
    return {
        "results": {
            "leaderboard": {"alias": "leaderboard", " ": " "},
            "ifeval": {
                "alias": " - ifeval",
                "prompt_level_strict_acc,none": 0.42,
                "prompt_level_strict_acc_stderr,none": 0.021,
                "inst_level_strict_acc,none": 0.55,
                "inst_level_strict_acc_stderr,none": "N/A",
            },
            "wikitext": {"alias": "wikitext", "word_perplexity,none": 9.5, "word_perplexity_stderr,none": "N/A"},
            "mafand": {"alias": "mafand", "bleu,none": 21.0, "chrf,none": 44.0},
        },
        "higher_is_better": {
            "leaderboard": {},
            "ifeval": {"prompt_level_strict_acc": True, "inst_level_strict_acc": True},
            "wikitext": {"word_perplexity": False},
            "mafand": {"bleu": True, "chrf": True},
        },
        "versions": {"ifeval": 4.0},
        "n-shot": {"ifeval": 0},
        "n-samples": {"ifeval": {"original": 541, "effective": 541}},
        **more,
    }


def test_a_task_without_a_usual_metric_is_read_by_what_the_file_calls_better_and_the_rest_is_named():
    found = external(ExternalRequest(model_id="m", results=written()))
    assert found["tasks"] == {
        "ifeval": {
            "metric": "prompt_level_strict_acc",
            "filter": "none",
            "value": 0.42,
            "stderr": 0.021,
            "n": 541,
            "n_shot": 0,
            "version": 4.0,
        }
    }
    assert set(found["unscored"]) == {"leaderboard", "wikitext", "mafand"}, "a perplexity or a BLEU is no share"
    both = ingest(written(), written())["forgetting"]
    assert both["drops"] == {"ifeval": 0.0} and set(both["unscored"]["base"]) == set(found["unscored"])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"n-shot": {"ifeval": 5}}, "number of shots 0 and 5"),
        ({"versions": {"ifeval": 3.0}}, "task version 4.0 and 3.0"),
        ({"n-samples": {"ifeval": {"original": 541, "effective": 50}}}, "number of items 541 and 50"),
    ],
)
def test_the_same_task_asked_in_another_way_does_not_compare(more, said):
    with pytest.raises(BashGymError) as caught:
        ingest(written(), written(**more))
    assert caught.value.code == "benchmark_invalid" and said in caught.value.message


def test_p_of_drops_are_adjusted_for_the_number_of_tasks_and_a_drop_that_may_be_too_large_is_named():
    base, candidate = lm_eval(a=0.6, b=0.5, c=0.4), lm_eval(a=0.56, b=0.5, c=0.4)
    found = ingest(base, candidate)["forgetting"]
    raw = 2 * norm.sf(0.04 / (2**0.5 * 0.01))
    assert found["p_values"] == {"a": pytest.approx(3 * raw), "b": 1.0, "c": 1.0}
    assert found["regressed"] == [] and found["uncertain"] == ["a"], "its interval reaches over the limit"
    del base["results"]["a"]["acc_stderr,none"]
    found = ingest(base, candidate)["forgetting"]
    assert set(found["p_values"]) == {"b", "c"} and found["intervals"]["a"] is None


def test_an_interval_that_ends_at_the_limit_leaves_nothing_uncertain():
    half = 1.959963984540054 * (2 * 0.01**2) ** 0.5
    for limit, uncertain in ((0.25 + half, []), (0.25 + half - 1e-9, ["a"]), (0.25, ["a"]), (0.2499, [])):
        found = ingest(lm_eval(a=0.5), lm_eval(a=0.25), max_forgetting_drop=limit)["forgetting"]
        assert found["uncertain"] == uncertain, limit


def test_shares_of_nothing_and_of_all_are_shares():
    for value in (0.0, 1.0):
        own = {"results": {"t": {"own,none": value}}, "higher_is_better": {"t": {"own": True}}}
        assert external(ExternalRequest(model_id="m", results=own))["tasks"]["t"]["value"] == value
    own = {"results": {"t": {"own,none": 1.5}}, "higher_is_better": {"t": {"own": True}}}
    with pytest.raises(BashGymError, match="no task has one"):
        external(ExternalRequest(model_id="m", results=own))


def test_a_drop_of_just_the_limit_is_no_regression():
    assert ingest(lm_eval(a=0.5), lm_eval(a=0.25), max_forgetting_drop=0.25)["forgetting"]["regressed"] == []
    assert ingest(lm_eval(a=0.5), lm_eval(a=0.25), max_forgetting_drop=0.24)["forgetting"]["regressed"] == ["a"]
    assert ingest(lm_eval(a=0.5), lm_eval(a=0.5), max_forgetting_drop=0)["forgetting_ok"] is True
    assert ingest(lm_eval(a=1.0), lm_eval(a=0.0), max_forgetting_drop=1)["forgetting_ok"] is True


def test_a_limit_that_is_no_share_is_refused():
    with pytest.raises(BashGymError) as caught:
        ingest(lm_eval(a=0.1), lm_eval(a=0.1), max_forgetting_drop=1.5)
    assert caught.value.fields == ["max_forgetting_drop"]


def test_a_score_that_is_not_a_number_is_not_replaced_by_another_metric():
    with pytest.raises(BashGymError, match="exact_match,none is not a finite number"):
        external(
            ExternalRequest(model_id="m", results={"results": {"t": {"exact_match,none": 1e999, "acc,none": 0.5}}})
        )


def test_an_inspect_log_counts_only_when_it_succeeded():
    score = {"name": "match", "metrics": {"accuracy": {"value": 2 / 3}, "stderr": {"value": 0.33}}}
    log = {"eval": {"task": "popularity"}, "results": {"completed_samples": 3, "scores": [score]}, "status": "success"}
    found = external(ExternalRequest(model_id="m", results=log))["tasks"]
    scored = {"metric": "accuracy", "filter": None, "value": 2 / 3, "stderr": 0.33}
    assert found == {"popularity": {**scored, "n": 3, "n_shot": None, "version": None}}
    two = {**log, "results": {"scores": [score, {**score, "name": "includes"}]}}
    assert set(external(ExternalRequest(model_id="m", results=two))["tasks"]) == {
        "popularity/match",
        "popularity/includes",
    }
    with pytest.raises(BashGymError, match="cancelled"):
        external(ExternalRequest(model_id="m", results={**log, "status": "cancelled"}))


@pytest.mark.parametrize(
    "results",
    [
        {"results": {}},
        {"results": None},
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


def test_every_command_reaches_the_endpoint_and_the_model():
    found = commands("http://localhost:8000/v1/", "team/model", include=INCLUDES)
    assert {name.removesuffix("_evaluate").removesuffix("_loglikelihood") for name in found} == set(INCLUDES)
    for name, argv in found.items():
        if not name.endswith("_evaluate"):
            assert any("http://localhost:8000/v1" in part for part in argv), name
            assert any("team/model" in part for part in argv), name


def test_tasks_that_compare_likelihoods_do_not_go_to_the_chat_endpoint():
    found = commands("http://h/v1", "m", ["mmlu", "gsm8k", "ifeval", "hellaswag", "mmlu_generative", "mmlu_pro"])
    assert found["forgetting"][-4:-3] == ["gsm8k,ifeval,mmlu_generative,mmlu_pro"]
    assert "local-chat-completions" in found["forgetting"]
    assert "mmlu,hellaswag" in found["forgetting_loglikelihood"]
    assert any("base_url=http://h/v1/completions," in part for part in found["forgetting_loglikelihood"])
    assert set(commands("http://h/v1", "m", ["gsm8k"])) == {"forgetting"}


@pytest.mark.parametrize(
    ("base_url", "model", "more", "field"),
    [
        ("http://h/v1", "m", {"include": ("mmmu",)}, "include"),
        ("ftp://h/v1", "m", {}, "base_url"),
        ("http://h/v1,num_concurrent=999", "m", {}, "base_url"),
        ("http://h/v1", "m,base_url=http://elsewhere", {}, "model"),
        ("http://h/v1", "--help", {}, "model"),
        ("http://h/v1", "m", {"tasks": ["gsm8k,evil"]}, "tasks"),
    ],
)
def test_names_that_would_be_read_as_other_options_are_refused(base_url, model, more, field):
    with pytest.raises(BashGymError) as caught:
        commands(base_url, model, **more)
    assert (caught.value.code, caught.value.fields) == ("invalid_field", [field])


def test_results_without_a_task_are_none():
    from bashgym.evals.benchmarks import read_results

    for empty in ({"results": {}}, {"results": []}, {}):
        with pytest.raises(BashGymError) as caught:
            read_results(empty, "base")
        assert caught.value.code == "benchmark_invalid"


def test_requests_are_closed_and_recorded_unless_they_say_otherwise():
    from bashgym.evals.wire import decode

    body = {"model_id": "m", "base_results": {}, "candidate_results": {}}
    assert decode(body, IngestRequest).record_to_registry is True
    for kind, more in (
        (IngestRequest, body),
        (ExternalRequest, {"model_id": "m", "results": {}, "benchmark_name": "b"}),
    ):
        with pytest.raises(BashGymError) as caught:
            decode({**more, "base_result": 1}, kind)
        assert caught.value.code == "unknown_field"
