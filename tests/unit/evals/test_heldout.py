"""The held-out trace gate: who ships, who does not, and what is no observation at all."""

import json
import os
import signal
import time

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.evals import heldout, jobs, registry
from bashgym.evals.heldout_rows import read_rows
from bashgym.evals.tool_metrics import arg_f1, score
from tests.sandbox.test_rollouts import call, completion, endpoint

GOLD = {"id": "c", "type": "function", "function": {"name": "run_command", "arguments": '{"command": "ls"}'}}


def row(i, **more):
    messages = [
        {"role": "user", "content": f"List folder {i}"},
        {"role": "assistant", "content": None, "tool_calls": [GOLD]},
    ]
    return {"session_id": f"s{i % 10}", "messages": messages, **more}


@pytest.fixture()
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("BASHGYM_MODELS_DIR", str(tmp_path / "data/models"))
    return Settings.from_env()


@pytest.fixture()
def dataset(tmp_path):
    def write(rows):
        path = tmp_path / "heldout.jsonl"
        path.write_text("".join(json.dumps(value) + "\n" for value in rows))
        return str(path)

    return write


def right(body):
    return completion(None, tool_calls=call("ls"), finish="tool_calls")


def wrong(body):
    return completion("I would list it.")


def judged(settings, dataset, base, candidate, rows=None, **more):
    """The report, made in this process."""
    with endpoint(base) as (b, _), endpoint(candidate) as (c, asked):
        body = {
            "model_id": "m",
            "dataset_path": dataset(rows or [row(i) for i in range(30)]),
            "base": b,
            "candidate": c,
            **more,
        }
        request = heldout.decode(body, heldout.HeldoutRequest)
        heldout._check(request)
        folder = settings.models_dir.parent / f"work-{time.monotonic_ns()}"
        folder.mkdir(parents=True)
        plain = heldout.msgspec.to_builtins(request)
        return heldout.run(folder, plain, {}, lambda *_: None), asked


def test_a_better_candidate_ships_and_its_verdict_is_bound(settings, dataset):
    report, asked = judged(settings, dataset, wrong, right)
    assert report["ship"] is True and report["reasons"] == [] and report["trace_delta"] == 1.0
    assert report["mcnemar"]["p_value"] < 1e-6 and report["n_clusters"] == 10
    assert all(body["tools"][0]["function"]["name"] == "run_command" for body in asked), "the tools are sent"
    assert all(len(body["messages"]) == 1 for body in asked), "only what stands before the gold call"
    bound = report["bound"]
    assert len(bound["dataset"]["sha256"]) == 64 and set(bound["endpoints"]) == {"base", "candidate"}
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


def test_an_endpoint_error_is_no_miss_and_too_many_fail_the_job(settings, dataset):
    def failing(body):
        return 400, {"error": {"message": "model is loading"}}

    with pytest.raises(BashGymError) as caught:
        judged(settings, dataset, failing, right)
    assert caught.value.code == "too_many_missing" and "model is loading" in caught.value.message

    rows = [row(i) for i in range(60)]

    def once(body):
        return failing(body) if body["messages"][0]["content"] == "List folder 7" else wrong(body)

    report, _ = judged(settings, dataset, once, right, rows)
    assert (report["n"], report["n_missing"]) == (59, {"candidate": 0, "base": 1}) and report["ship"] is True


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


def test_held_out_questions_in_the_training_data_stop_it(settings, dataset, tmp_path):
    train = tmp_path / "train.jsonl"
    train.write_text(json.dumps({"messages": [{"role": "user", "content": "list folder 3"}]}) + "\n")
    report, _ = judged(settings, dataset, wrong, right, train_dataset_path=str(train))
    assert report["ship"] is False and report["contaminated_rows"] == [4]


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ([], "dataset_empty", "no row"),
        ([{"session_id": "a", "messages": [{"role": "user", "content": "x"}]}], "dataset_empty", "tool call"),
        ([row(0), row(0)], "too_few_clusters", "no two sessions"),
        (
            [row(0), {**row(1), "messages": [{"role": "assistant", "tool_calls": [GOLD]}]}],
            "dataset_unreadable",
            "line 2",
        ),
        ([row(0), {**row(1), "messages": "x"}], "dataset_unreadable", "line 2"),
        ([row(0), {**row(1), "messages": [1]}], "dataset_unreadable", "messages[0]"),
    ],
)
def test_bad_rows_are_refused_by_line(dataset, tmp_path, rows, code, said):
    with pytest.raises(BashGymError) as caught:
        read_rows(tmp_path / dataset(rows))
    assert caught.value.code == code and said in caught.value.message


def test_a_line_that_is_no_json_is_named_not_skipped(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(row(0)) + "\n{bad\n" + json.dumps(row(1)) + "\n")
    with pytest.raises(BashGymError, match="line 2"):
        read_rows(path)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"metric": "bleu"}, "invalid_field"),
        ({"n_resamples": 10}, "invalid_field"),
        ({"limit": 0}, "invalid_field"),
        ({"forgetting_drops": {"mmlu": float("nan")}}, "invalid_field"),
        ({"dataset_path": "/none.jsonl"}, "dataset_missing"),
        ({"base": {"base_url": "ftp://x"}}, "endpoint_invalid"),
        ({"nresamples": 200}, "unknown_field"),
    ],
)
def test_a_bad_request_starts_no_job(settings, dataset, change, code):
    body = {"model_id": "m", "dataset_path": dataset([row(0), row(1)]), "base": {"base_url": "http://127.0.0.1:9/v1"},
            "candidate": {"base_url": "http://127.0.0.1:9/v1"}, **change}  # fmt: skip
    with pytest.raises(BashGymError) as caught:
        heldout.submit(settings, body)
    assert caught.value.code == code and jobs.list_jobs(settings) == []


def wait(settings, job_id, seconds=60):
    end = time.monotonic() + seconds
    while (state := jobs.get(settings, job_id))["status"] == "running" and time.monotonic() < end:
        time.sleep(0.05)
    return state


def test_a_job_goes_on_by_itself_survives_a_kill_and_keeps_no_key(settings, dataset):
    def slow(body):
        time.sleep(0.02)
        return wrong(body)

    with endpoint(slow) as (b, asked), endpoint(right) as (c, _):
        body = {"model_id": "m", "dataset_path": dataset([row(i) for i in range(60)]), "max_concurrency": 1,
                "base": {**b, "api_key": "sk-top-secret"}, "candidate": c}  # fmt: skip
        job = heldout.submit(settings, body)
        folder = settings.models_dir.parent / "evals/jobs" / job["job_id"]
        end = time.monotonic() + 30
        while len(asked) < 5 and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(json.loads((folder / "worker.json").read_text())["pid"], signal.SIGKILL)
        state = wait(settings, job["job_id"])
        assert state["status"] == "interrupted" and "resume" in state["error"]["hint"]
        with pytest.raises(BashGymError, match="worker is gone"):
            jobs.follow(settings, job["job_id"])
        before = len(asked)
        jobs.resume(settings, job["job_id"], {"base": "sk-top-secret"})
        done = wait(settings, job["job_id"])
        assert done["status"] == "completed" and done["report"]["ship"] is True, done
        assert before + len(asked) - before < 75, "what was answered is not asked again"
        straight = heldout.submit(settings, body)
        whole = wait(settings, straight["job_id"])["report"]
    for report in (done["report"], whole):
        report.pop("scores"), report.pop("report_digest")
    assert done["report"] == whole
    assert all(
        "sk-top-secret" not in p.read_text(errors="replace")
        for p in settings.models_dir.parent.rglob("*")
        if p.is_file()
    )


def test_a_job_can_be_stopped_and_a_dead_base_fails_it(settings, dataset):
    def stuck(body):
        time.sleep(0.3)
        return wrong(body)

    with endpoint(stuck) as (b, _), endpoint(right) as (c, _):
        body = {
            "model_id": "m",
            "dataset_path": dataset([row(i) for i in range(200)]),
            "base": b,
            "candidate": c,
            "max_concurrency": 1,
        }
        job = heldout.submit(settings, body)
        assert jobs.stop(settings, job["job_id"])["status"] == "cancelled"
        with pytest.raises(BashGymError) as caught:
            jobs.stop(settings, job["job_id"])
        assert caught.value.code == "run_finished"
        dead = heldout.submit(settings, {**body, "base": {**b, "base_url": "http://127.0.0.1:9/v1"}})
        state = wait(settings, dead["job_id"])
    assert state["status"] == "failed" and state["error"]["code"] == "endpoint_unreachable" and state["report"] is None
    assert {j["status"] for j in jobs.list_jobs(settings, "heldout")} == {"cancelled", "failed"}
    with pytest.raises(BashGymError) as caught:
        jobs.get(settings, "heldout_none")
    assert caught.value.code == "eval_not_found"


@pytest.mark.parametrize(
    ("ours", "gold", "f1"),
    [
        ({}, {}, 1.0),
        ({}, {"a": 1}, 0.0),
        ('{"a": " X "}', {"a": "x"}, 1.0),
        ({"a": 1, "b": 2}, {"a": 1}, 2 / 3),
        ({"a": True}, {"a": 1}, 0.0),
        ("{", {"a": 1}, 0.0),
        ("", {}, 1.0),
        ({"a": {"b": "X"}}, {"a": {"b": "x"}}, 1.0),
    ],
)
def test_argument_f1(ours, gold, f1):
    assert arg_f1(ours, gold) == pytest.approx(f1)


def test_the_four_metrics():
    gold = ("f", {"a": 1, "b": 2})
    assert [score(m, ("f", {"a": 1}), gold) for m in ("exact_match", "name_match", "arg_f1", "soft")] == [
        0.0, 1.0, pytest.approx(2 / 3), pytest.approx(0.8)]  # fmt: skip
    assert [score(m, ("g", gold[1]), gold) for m in ("exact_match", "name_match", "arg_f1", "soft")] == [
        0.0,
        0.0,
        1.0,
        0.0,
    ]
    assert score("soft", None, gold) == 0.0 and score("exact_match", gold, gold) == 1.0
    assert score("name_match", ("", {}), ("", {})) == 0.0
