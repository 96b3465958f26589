"""The held-out trace gate: who ships, who does not, and what is no observation at all."""

import json
import re
import time

import pytest

from bashgym.core.canonical import digest_file, digest_json
from bashgym.core.errors import BashGymError
from bashgym.evals import heldout, jobs, registry
from tests.sandbox.test_rollouts import call, completion, endpoint

GOLD = {"id": "c", "type": "function", "function": {"name": "run_command", "arguments": '{"command": "ls"}'}}


def row(i, **more):
    messages = [
        {"role": "user", "content": f"List folder {i}"},
        {"role": "assistant", "content": None, "tool_calls": [GOLD]},
    ]
    return {"session_id": f"s{i % 10}", "messages": messages, **more}


def right(body):
    return completion(None, tool_calls=call("ls"), finish="tool_calls")


def wrong(body):
    return completion("I would list it.")


def judged(settings, dataset, base, candidate, rows=None, **more):
    """(the report, made in this process and left where jobs leave it; what the candidate was asked)."""
    with endpoint(base) as (b, _), endpoint(candidate) as (c, asked):
        path = dataset(rows or [row(i) for i in range(30)])
        body = {"model_id": "m", "dataset_path": path, "base": b, "candidate": c, **more}
        request = heldout.decode(body, heldout.HeldoutRequest)
        held = heldout._check(request)
        folder = settings.models_dir.parent / f"evals/jobs/heldout_{time.monotonic_ns()}"
        folder.mkdir(parents=True)
        work = heldout._Work(request=request, digests={path: held.sha256})
        report = heldout.run(folder, heldout.msgspec.to_builtins(work), {}, lambda *_: None)
        (folder / "report.json").write_text(json.dumps(report))
        assert report["scores"]["sha256"] == digest_file(folder / report["scores"]["path"])
        return report, asked


def test_a_better_candidate_ships_and_its_verdict_is_bound(settings, dataset):
    report, asked = judged(settings, dataset, wrong, right)
    assert report["ship"] is True and report["reasons"] == [] and report["trace_delta"] == 1.0
    assert report["mcnemar"]["p_value"] < 1e-6 and report["n_clusters"] == 10
    assert all(body["tools"][0]["function"]["name"] == "run_command" for body in asked), "the tools are sent"
    assert all(len(body["messages"]) == 1 for body in asked), "only what stands before the gold call"
    bound = report["bound"]
    assert bound["dataset"]["sha256"] == digest_file(dataset.path) and bound["dataset"]["n_scored"] == 30
    assert bound["endpoints"]["base"] != bound["endpoints"]["candidate"] and "api_key" not in str(bound)
    assert (bound["model_id"], bound["thresholds"], bound["seed"]) == ("m", report["thresholds"], 0)
    assert report["answers"]["base"] == {"without_call": 30, "cut_at_max_tokens": 0}
    digest = report.pop("report_digest")
    assert digest == digest_json(report)
    assert registry.verdict(settings, "m")["n_heldout_evals"] == 1


def by_number(passing):
    def policy(body):
        number = int(body["messages"][0]["content"].split()[-1])
        return right(body) if number in passing else wrong(body)

    return policy


@pytest.mark.parametrize(
    ("base", "candidate", "said"),
    [
        (right, right, "not better"),
        (wrong, wrong, "not better"),
        (right, wrong, "not better"),
        (by_number(range(10)), by_number(range(12)), "inconclusive"),
    ],
)
def test_equal_dead_worse_and_better_by_noise_do_not_ship(settings, dataset, base, candidate, said):
    report, _ = judged(settings, dataset, base, candidate)
    assert report["ship"] is False and said in " ".join(report["reasons"])


def failing(body):
    return 400, {"error": {"message": "model is loading"}}


def test_an_endpoint_error_is_no_miss(settings, dataset):
    def once(body):
        return failing(body) if body["messages"][0]["content"] == "List folder 7" else wrong(body)

    report, _ = judged(settings, dataset, once, right, [row(i) for i in range(60)])
    assert (report["n"], report["n_missing"]) == (59, {"candidate": 0, "base": 1}) and report["ship"] is True


@pytest.mark.parametrize("dead", ["base", "candidate"])
def test_too_many_errors_fail_the_job_before_the_rest_is_paid_for(settings, dataset, dead):
    asked = []

    def dying(body):
        asked.append(body)
        return right(body) if len(asked) <= 50 else failing(body)

    sides = {"base": right, "candidate": right, dead: dying}
    with pytest.raises(BashGymError) as caught:
        judged(settings, dataset, **sides, rows=[row(i) for i in range(400)], max_concurrency=2)
    assert caught.value.code == "too_many_missing" and "model is loading" in caught.value.message
    assert dead in caught.value.message and len(asked) < 70


def test_the_same_candidate_is_one_look_and_each_other_one_asks_for_more(settings, dataset):
    rows = [row(i) for i in range(30)]

    def looks(candidate, **more):
        with_base = by_number(range(10))
        return judged(settings, dataset, with_base, candidate, rows, **more)[0]["bootstrap"]["gate"]

    first = looks(by_number(range(22)))
    assert (first["looks"], first["alpha"]) == (1, 0.05)
    assert looks(by_number(range(22))) == first, "the same answers, judged the same"
    second = looks(by_number(range(24)))
    assert (second["looks"], second["alpha"]) == (2, 0.025)
    assert looks(by_number(range(24)), metric="name_match")["looks"] == 3, "another metric is another try"
    assert looks(by_number(range(22)))["looks"] == 1
    for i, text in enumerate(["{", "{}", json.dumps({"schema_version": "bashgym.heldout_report.v1", "bound": []})]):
        (settings.models_dir.parent / f"evals/jobs/other_{i}").mkdir()
        (settings.models_dir.parent / f"evals/jobs/other_{i}/report.json").write_text(text)
    assert looks(by_number(range(24)))["looks"] == 2, "what is no report of ours is no look"
    other, _ = judged(settings, dataset, wrong, right, rows)
    assert other["bootstrap"]["gate"]["looks"] == 1, "another base, another question"


def test_a_job_that_is_worked_on_twice_is_recorded_once(settings, dataset):
    with endpoint(wrong) as (b, _), endpoint(right) as (c, asked):
        path = dataset([row(i) for i in range(20)])
        body = {"model_id": "m", "dataset_path": path, "base": b, "candidate": c}
        work = {"request": body, "digests": {path: digest_file(dataset.path)}}
        folder = settings.models_dir.parent / "evals/jobs/heldout_a"
        folder.mkdir(parents=True)
        first = heldout.run(folder, work, {}, lambda *_: None)
        (folder / "answers.jsonl").write_bytes((folder / "answers.jsonl").read_bytes()[:-20])
        assert heldout.run(folder, work, {}, lambda *_: None) == first and len(asked) <= 21
    found = registry.verdict(settings, "m")
    assert found["n_heldout_evals"] == 1 and found["latest_heldout_eval"]["document"]["job_id"] == "heldout_a"


def test_giving_the_interval_up_is_on_record(settings, dataset):
    report, _ = judged(settings, dataset, by_number(range(10)), by_number(range(12)), require_ci_excludes_zero=False)
    assert report["ship"] is True and any("includes zero" in reason for reason in report["waived"])
    assert report["bootstrap"]["better"] is False and report["thresholds"]["require_ci_excludes_zero"] is False


DEEP = '{"command":' * 900 + "1" + "}" * 900
SAYS = '<tool_call>{"name": "%s", "arguments": %s}</tool_call>'


def calls(arguments):
    function = {"name": "run_command", "arguments": arguments}
    return completion(None, tool_calls=[{"id": "c", "type": "function", "function": function}])


@pytest.mark.parametrize(
    "made",
    [
        calls("{}"),
        calls(DEEP),
        calls(json.dumps({"command": "x" * (2 << 20)})),
        completion(SAYS % ("run_command", DEEP)),
        completion(SAYS % ("\\ud800", '{"command": "\\ud800"}')),
        completion(SAYS % ("run_command", '{"command": NaN}')),
    ],
    ids=["empty", "deep", "long", "deep text", "half a character", "nan"],
)
def test_a_hostile_answer_is_a_wrong_answer(settings, dataset, made):
    report, _ = judged(settings, dataset, right, lambda body: made)
    assert report["candidate_pass_rate"] == 0 and report["base_pass_rate"] == 1 and report["n"] == 30


def test_a_tool_call_in_the_text_counts(settings, dataset):
    said = completion('I look.\n<tool_call>{"name": "run_command", "arguments": {"command": " LS "}}</tool_call>')
    report, _ = judged(settings, dataset, wrong, lambda body: said)
    assert report["candidate_pass_rate"] == 1 and report["ship"] is True


@pytest.mark.parametrize(
    "more",
    [
        {"forgetting_drops": {"mmlu": 0.06}},
        {"environment_evidence": {"required": True}},
        {"environment_evidence": {"holdout_gate": {"gate": {"ship": False, "reasons": ["weak"]}}}},
        {"environment_evidence": {"external_benchmarks_required": True}},
        {
            "environment_evidence": {
                "external_benchmark_min_scores": {"mmlu": 0.5},
                "external_benchmarks": {"mmlu": 0.4},
            }
        },
        {"min_trace_delta": 1.0, "metric": "soft"},
    ],
)
def test_each_limit_can_stop_a_better_candidate(settings, dataset, more):
    candidate = right if "metric" not in more else by_number(range(20))
    report, _ = judged(settings, dataset, wrong, candidate, **more)
    assert report["ship"] is False and len(report["reasons"]) >= 1


def test_given_gates_that_ship_let_it_ship(settings, dataset):
    gate = {"gate": {"ship": True, "reasons": []}}
    evidence = {"holdout_gate": gate, "required": True, "external_benchmarks": {"mmlu": 0.6},
                "external_benchmark_min_scores": {"mmlu": 0.5}, "world_model_quality": {"rwml_pass_rate": 0.1}}  # fmt: skip
    report, _ = judged(settings, dataset, wrong, right, environment_evidence=evidence)
    assert report["ship"] is True
    assert report["environment_evidence"]["diagnostics"]["world_model_quality"]["status"] == "needs_attention"


QUESTION = "List what is in folder {} of the archive, then count the lines of every report that is there"


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (QUESTION.format(3).upper(), "exact"),
        ("Please! " + QUESTION.format(3) + " Thank you.", "exact"),
        ("Folder 3 of the archive, then count the lines of every report that is there", "13gram_overlap"),
        ("List what is in folder 77 of another place", None),
        ("go on", None),
    ],
)
def test_held_out_questions_in_the_training_data_stop_it(settings, dataset, tmp_path, turn, kind):
    rows = [row(i) for i in range(30)]
    rows[3]["messages"][:1] = [
        {"role": "user", "content": QUESTION.format(3)},
        {"role": "assistant", "content": "Shall I?"},
        {"role": "user", "content": "go on"},
    ]
    train = tmp_path / "train.jsonl"
    train.write_text(json.dumps({"messages": [{"role": "user", "content": turn}]}) + "\n")
    report, _ = judged(settings, dataset, wrong, right, rows, train_dataset_path=str(train))
    assert report["contaminated_rows"] == ({"4": {"kind": kind, "row": 1}} if kind else {})
    assert report["ship"] is (kind is None) and report["bound"]["train_dataset"]["sha256"] == digest_file(train)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"metric": "bleu"}, "invalid_field"),
        ({"n_resamples": 10}, "invalid_field"),
        ({"limit": 0}, "invalid_field"),
        ({"forgetting_drops": {"mmlu": float("nan")}}, "invalid_field"),
        ({"dataset_path": "/none.jsonl"}, "dataset_missing"),
        ({"train_dataset_path": "/none.jsonl"}, "dataset_missing"),
        ({"base": {"base_url": "ftp://x"}}, "endpoint_invalid"),
        ({"base": {"base_url": "http://user:sk-1@127.0.0.1/v1"}}, "endpoint_invalid"),
        ({"base": {"base_url": "http://127.0.0.1:9/v1", "modle": "x"}}, "unknown_field"),
        ({"environment_evidence": {"holdout_gate": {"ship": True}}}, "invalid_field"),
        ({"environment_evidence": {"holdout": {}}}, "unknown_field"),
        ({"max_forgetting_drop": float("nan")}, "invalid_field"),
        ({"seed": -1}, "invalid_field"),
        ({"model_id": ""}, "invalid_field"),
        ({"nresamples": 200}, "unknown_field"),
    ],
)
def test_a_bad_request_starts_no_job(settings, dataset, change, code):
    body = {"model_id": "m", "dataset_path": dataset([row(0), row(1)]), "base": {"base_url": "http://127.0.0.1:9/v1"},
            "candidate": {"base_url": "http://127.0.0.1:9/v1"}, **change}  # fmt: skip
    with pytest.raises(BashGymError) as caught:
        heldout.submit(settings, body)
    assert caught.value.code == code and jobs.list_jobs(settings) == []


def test_a_refusal_names_the_side_and_the_field(settings, dataset):
    body = {"model_id": "m", "dataset_path": dataset([row(0), row(1)]), "base": {"base_url": "http://127.0.0.1:9/v1"},
            "candidate": {"base_url": "nowhere"}}  # fmt: skip
    with pytest.raises(BashGymError, match=re.escape("candidate: ")) as caught:
        heldout.submit(settings, body)
    assert caught.value.fields == ["candidate.base_url"]
