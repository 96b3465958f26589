"""Rollouts as detached jobs: killed, resumed, with a dead endpoint, with a key; and the command that starts them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bashgym.api.app import create_app
from bashgym.core.errors import BashGymError
from bashgym.core.runtime import child_env
from bashgym.evals import jobs, rollout_job
from bashgym.workspace import Workspace
from tests.sandbox.test_rollouts import SPECS, endpoint, oracle, settings, spec  # noqa: F401
from tests.unit.api.conftest import Api

KEY = "sk-very-secret-4711"


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    assert found, "waited in vain"
    return found


def ended(settings, job_id):  # noqa: F811
    return until(lambda: (job := jobs.get(settings, job_id))["status"] != "running" and job)


def folder_of(settings, job_id):  # noqa: F811
    return settings.models_dir.parent / "evals/jobs" / job_id


@pytest.fixture()
def slow():
    """The oracle, but an episode about c waits until it is let go."""
    opened = threading.Event()

    def policy(body):
        if "Write c" in body["messages"][1]["content"]:
            opened.wait(20)
        return oracle(body)

    policy.opened = opened
    yield policy
    opened.set()


def test_a_killed_job_goes_on_and_ends_in_the_report_that_it_would_have_given(settings, slow):  # noqa: F811
    body = {"environments": SPECS, "model_id": "m", "attempts_per_environment": 2, "temperature": 1, "seed": 5}
    body["max_concurrency"] = 1  # in order: c is the last
    with endpoint(oracle) as (where, _):
        undisturbed = rollout_job.submit(settings, {**body, "endpoint": where})["job_id"]
        expected = ended(settings, undisturbed)["report"]
    with endpoint(slow) as (where, bodies):
        job_id = rollout_job.submit(settings, {**body, "endpoint": {**where, "api_key": KEY}})["job_id"]
        journal = folder_of(settings, job_id) / "rollouts.jsonl"
        until(lambda: journal.is_file() and len(journal.read_bytes().splitlines()) == 4)
        os.kill(json.loads((journal.parent / "worker.json").read_text())["pid"], signal.SIGKILL)
        assert ended(settings, job_id)["status"] == "interrupted"
        slow.opened.set()
        time.sleep(0.2)
        paid = len(bodies)
        jobs.resume(settings, job_id, {"endpoint": KEY})
        done = ended(settings, job_id)
    assert done["status"] == "completed" and len(bodies) == paid + 4, "only the two lost episodes are paid for again"
    assert done["report"]["report"] == expected["report"] and done["report"]["attempts"] == expected["attempts"]
    for path in settings.models_dir.parent.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_an_endpoint_that_dies_halfway_fails_the_job_and_a_mended_one_ends_it(settings):  # noqa: F811
    broken = [True]

    def dying(body):
        lost = broken and "Write b" in body["messages"][1]["content"]
        return (400, {"error": {"message": "quota"}}) if lost else oracle(body)

    with endpoint(dying) as (where, bodies):
        job_id = rollout_job.submit(settings, {"endpoint": where, "environments": SPECS, "model_id": "m"})["job_id"]
        state = ended(settings, job_id)
        assert (state["status"], state["error"]["code"]) == ("failed", "too_many_missing")
        assert "quota" in state["error"]["message"]
        broken.clear()
        paid = len(bodies)
        jobs.resume(settings, job_id)
        done = ended(settings, job_id)
    assert done["report"]["report"]["pass_at_k"] == {"1": 1.0} and len(bodies) == paid + 2


def test_what_would_fail_is_refused_before_there_is_a_job(settings):  # noqa: F811
    where = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    bad = [
        ({"endpoint": where, "environments": SPECS, "k_values": [4]}, "", "attempts_invalid"),
        ({"endpoint": where, "environments": [spec("a", build={"base_image": "x"})]}, "", "container_unavailable"),
        ({"environments": SPECS}, "no-such-model", "model_missing"),
    ]
    for body, model, code in bad:
        with pytest.raises(BashGymError) as caught:
            rollout_job.submit(settings, body, model)
        assert caught.value.code == code
    assert jobs.list_jobs(settings) == []
    dead = rollout_job.submit(settings, {"endpoint": where, "environments": SPECS})["job_id"]
    assert ended(settings, dead)["error"]["code"] == "endpoint_unreachable"


def test_the_command_plays_a_file_with_a_key_from_a_variable(settings, tmp_path):  # noqa: F811
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(value) + "\n" for value in SPECS))
    env = child_env(
        BASHGYM_DIR=str(settings.home), BASHGYM_MODELS_DIR=str(settings.models_dir), MY_KEY=KEY, NO_COLOR="1"
    )

    def bashgym(*argv):
        command = [sys.executable, "-m", "bashgym", "eval", "rollouts", "--environments", "tasks.jsonl", *argv]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)

    with endpoint(oracle) as (where, _):
        there = ["--endpoint", where["base_url"], "--endpoint-model", "double", "--api-key-env", "MY_KEY"]
        more = ["--attempts", "2", "--k", "2", "--output", "whole.json", "--rollouts-path", "r.jsonl", "--json"]
        done = bashgym(*there, *more)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["report"]["pass_at_k"] == {"2": 1.0}
        detached = bashgym(*there, "--detach", "--json")
        job_id = json.loads(detached.stdout)["job_id"]
        assert ended(settings, job_id)["status"] == "completed" and KEY not in done.stdout + detached.stdout
    assert json.loads((tmp_path / "whole.json").read_text())["rollouts"][0]["messages"]
    assert len((tmp_path / "r.jsonl").read_bytes().splitlines()) == 6
    both = bashgym("--endpoint", "http://127.0.0.1:9/v1", "--model", "bashgym/tiny-qwen2", "--json")
    assert both.returncode != 0 and "--model" in both.stdout + both.stderr
    unset = bashgym("--endpoint", "http://127.0.0.1:9/v1", "--api-key-env", "NOT_SET", "--json")
    assert unset.returncode != 0 and "NOT_SET" in unset.stdout + unset.stderr
    for path in Path(tmp_path).rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_the_route_starts_a_job_that_the_routes_of_jobs_know(settings):  # noqa: F811
    api = Api(create_app(Workspace(settings)))
    with endpoint(oracle) as (where, _):
        body = {"endpoint": {**where, "api_key": KEY}, "environments": SPECS, "model_id": "m"}
        status, job, _ = api("POST", "/api/eval/environments/model-rollout-jobs", body)
        assert status == 202 and job["kind"] == "rollouts" and KEY not in str(job)
        ended(settings, job["job_id"])
        _, done, _ = api("GET", f"/api/eval/jobs/{job['job_id']}")
        assert done["report"]["report"]["pass_at_k"] == {"1": 1.0}
        status, wrong, _ = api("POST", "/api/eval/environments/model-rollout-jobs", {**body, "k_value": [1]})
        assert status == 422 and "k_value" in str(wrong)
