"""Detached evaluation jobs: real workers, killed, stopped, raced for, and left alone by the command that started them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.runtime import child_env
from bashgym.evals import heldout, jobs, registry
from tests.sandbox.test_rollouts import endpoint
from tests.unit.evals.test_heldout import failing, right, row, wrong

KEY = "sk-top-secret-7f3a"
BASHGYM = [sys.executable, "-m", "bashgym"]


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    assert found, "waited in vain"
    return found


def ended(settings, job_id):
    return until(lambda: (job := jobs.get(settings, job_id))["status"] != "running" and job)


def folder_of(settings, job_id):
    return settings.models_dir.parent / "evals/jobs" / job_id


def worker_of(settings, job_id):
    return json.loads((folder_of(settings, job_id) / "worker.json").read_text())["pid"]


def refused(code, function, *args):
    with pytest.raises(BashGymError) as caught:
        function(*args)
    assert caught.value.code == code
    return caught.value


@pytest.fixture()
def gate():
    """A base that answers 20 rows at once and then takes its time, until it is opened."""

    def policy(body):
        policy.count.append(body)
        time.sleep(0.0 if len(policy.count) <= 20 or policy.opened.is_set() else 0.1)
        return wrong(body)

    policy.opened, policy.count = threading.Event(), []
    return policy


def body_for(dataset, base, candidate, n=60, **more):
    rows = [row(i) for i in range(n)]
    return {"model_id": "m", "dataset_path": dataset(rows), "base": base, "candidate": candidate, **more}


def slow(body):
    time.sleep(0.01)
    return wrong(body)


def test_a_killed_job_is_interrupted_and_resumes_to_the_report_of_an_undisturbed_one(settings, dataset):
    with endpoint(slow) as (b, asked), endpoint(right) as (c, _):
        body = body_for(dataset, {**b, "api_key": KEY}, c, n=50, max_concurrency=1)
        job = heldout.submit(settings, body)
        assert job["status"] == "running" and job["report"] is None and len(job["job_id"]) == len("heldout_") + 22
        until(lambda: len(asked) >= 10)
        pid = worker_of(settings, job["job_id"])
        seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert KEY.encode() not in seen and b"bashgym.evals.jobs" in seen
        os.kill(pid, signal.SIGKILL)
        state = ended(settings, job["job_id"])
        assert state["status"] == "interrupted" and f"eval resume {job['job_id']}" in state["error"]["hint"]
        refused("interrupted", jobs.follow, settings, job["job_id"])
        before = len(asked)
        jobs.resume(settings, job["job_id"], {"base": KEY})
        done = ended(settings, job["job_id"])
        assert done["status"] == "completed" and done["report"]["ship"] is True, done
        assert before < len(asked) <= 51, "what was answered is not asked again"
        assert jobs.resume(settings, job["job_id"])["status"] == "completed" and len(asked) <= 51
        whole = ended(settings, heldout.submit(settings, body)["job_id"])["report"]
    assert done["report"] == whole and done["report"]["report_digest"] == whole["report_digest"]
    assert registry.verdict(settings, "m")["n_heldout_evals"] == 2
    for path in settings.models_dir.parent.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_a_stopped_job_is_cancelled_and_goes_on_only_with_the_same_data(settings, dataset, gate):
    with endpoint(gate) as (b, _), endpoint(right) as (c, _):
        job_id = heldout.submit(settings, body_for(dataset, b, c, max_concurrency=1))["job_id"]
        until(lambda: len(gate.count) > 20)
        refused("request_in_progress", jobs.resume, settings, job_id)
        pid = worker_of(settings, job_id)
        assert jobs.stop(settings, job_id)["status"] == "cancelled" and not Path(f"/proc/{pid}/fd").exists()
        refused("run_finished", jobs.stop, settings, job_id)
        assert "was stopped" in refused("interrupted", jobs.follow, settings, job_id).message
        gate.opened.set()
        kept = Path(dataset.path).read_bytes()
        dataset.path.write_bytes(kept + b"\n")
        jobs.resume(settings, job_id)
        state = ended(settings, job_id)
        assert (state["status"], state["error"]["code"]) == ("failed", "digest_mismatch")
        dataset.path.write_bytes(kept)
        jobs.resume(settings, job_id)
        assert ended(settings, job_id)["status"] == "completed"


def test_many_who_resume_at_once_get_one_worker(settings, dataset, gate):
    with endpoint(gate) as (b, _), endpoint(right) as (c, _):
        job_id = heldout.submit(settings, body_for(dataset, b, c, max_concurrency=1))["job_id"]
        until(lambda: len(gate.count) > 20)
        os.kill(worker_of(settings, job_id), signal.SIGTERM)
        state = ended(settings, job_id)
        assert state["status"] == "interrupted" and "resume" in state["error"]["hint"]

        def again(_):
            try:
                return jobs.resume(settings, job_id)["status"]
            except BashGymError as error:
                return error.code

        with ThreadPoolExecutor(8) as pool:
            found = sorted(pool.map(again, range(8)))
        assert found == ["request_in_progress"] * 7 + ["running"]
        assert jobs.stop(settings, job_id)["status"] == "cancelled", "the one that works is the one that is known"


def test_a_dead_endpoint_fails_the_job_before_a_row_is_sent(settings, dataset):
    with endpoint(right) as (there, asked):
        nowhere = {**there, "base_url": "http://127.0.0.1:9/v1"}
        both = {"base": there, "candidate": there}
        found = {
            dead: heldout.submit(settings, body_for(dataset, **{**both, dead: nowhere}))["job_id"] for dead in both
        }
        for dead, job_id in found.items():
            state = ended(settings, job_id)
            assert (state["status"], state["error"]["code"]) == ("failed", "endpoint_unreachable")
            assert state["error"]["message"].startswith(f"{dead}: ") and state["report"] is None
    assert asked == []
    refused("eval_not_found", registry.verdict, settings, "m")


def test_an_endpoint_that_dies_halfway_fails_the_job_and_a_mended_one_ends_it(settings, dataset):
    asked, broken = [], [True]

    def dying(body):
        asked.append(body)
        return failing(body) if broken and len(asked) > 30 else wrong(body)

    with endpoint(dying) as (b, _), endpoint(right) as (c, _):
        job_id = heldout.submit(settings, body_for(dataset, b, c, max_concurrency=4))["job_id"]
        state = ended(settings, job_id)
        assert (state["status"], state["error"]["code"]) == ("failed", "too_many_missing")
        broken.clear()
        jobs.resume(settings, job_id)
        done = ended(settings, job_id)
    assert done["status"] == "completed" and done["report"]["n_missing"] == {"base": 0, "candidate": 0}


def test_jobs_of_other_kinds_ids_and_requests(settings, dataset):
    request = {"suite": "terminal", "model": "none-such", "eval_id": "eval_x"}
    jobs.submit(settings, "suite", request, job_id="eval_x")
    state = ended(settings, "eval_x")
    assert (state["status"], state["error"]["code"]) == ("failed", "model_missing")
    error = refused("eval_incomplete", lambda: jobs.submit(settings, "suite", {**request, "seed": 1}, job_id="eval_x"))
    assert "seed" in error.message
    refused("eval_not_found", heldout.get, settings, "eval_x")
    refused("eval_not_found", jobs.get, settings, "heldout_none")
    refused("invalid_field", jobs.get, settings, "../eval_x")
    (folder_of(settings, "eval_bad")).mkdir()
    (folder_of(settings, "eval_bad") / "request.json").write_text("{")
    assert [job["job_id"] for job in jobs.list_jobs(settings)] == ["eval_x"]
    assert heldout.newest(settings) == [] == jobs.list_jobs(settings, "heldout")


def test_the_work_goes_on_when_the_command_ends_or_is_interrupted(settings, dataset, tmp_path, gate):
    env = child_env(BASHGYM_DIR=str(settings.home), BASHGYM_MODELS_DIR=str(settings.models_dir))
    with endpoint(gate) as (b, _), endpoint(right) as (c, _):
        file = tmp_path / "body.json"
        file.write_text(json.dumps(body_for(dataset, {**b, "api_key": KEY}, c, max_concurrency=1)))
        post = [*BASHGYM, "api", "POST", "/api/eval/heldout", "--data-file", str(file)]
        started = subprocess.run(post, capture_output=True, text=True, env=env, timeout=30)
        assert started.returncode == 0, started.stderr
        first = json.loads(started.stdout)
        assert first["status"] == "running" and jobs.get(settings, first["job_id"])["status"] == "running"

        follow = [*BASHGYM, "eval", "heldout", "--data-file", str(file), "--model-id", "m2"]
        watching = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        second = until(lambda: [j for j in heldout.newest(settings) if j["model_id"] == "m2"])[0]
        assert watching.stderr.readline().startswith("evaluation: ")
        watching.send_signal(signal.SIGINT)
        _, told = watching.communicate(timeout=10)
        assert watching.returncode != 0 and f"eval stop {second['job_id']}" in told and "Traceback" not in told
        gate.opened.set()
        reports = [ended(settings, job["job_id"])["report"] for job in (first, second)]
    assert all(report["ship"] for report in reports)
