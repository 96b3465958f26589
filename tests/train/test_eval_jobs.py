"""Whole evaluations in workers of their own: started over HTTP, stopped, taken up from the command line."""

import asyncio
import json
import subprocess
import sys
import time

import httpx
import pytest

from bashgym.api.app import create_app
from bashgym.core.runtime import child_env
from bashgym.evals import jobs
from tests.train.test_eval_run import SMALL, TINY, scoring_processes

pytestmark = [pytest.mark.train, pytest.mark.sandbox]
RUN = ["eval", "run", "--model", TINY, "--baseline", TINY, "--per-family", "1", "--max-new-tokens", "6"]


@pytest.fixture
def ask(workspace):
    app = create_app(workspace)

    def ask(method, path, body=None):
        async def send():
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.request(method, path, json=body)

        reply = asyncio.run(send())
        return reply.status_code, reply.json()

    return ask


@pytest.fixture
def bashgym(workspace, tmp_path):
    settings = workspace.settings
    env = child_env(BASHGYM_DIR=str(settings.home), BASHGYM_MODELS_DIR=str(settings.models_dir))

    def call(*argv):
        command = [sys.executable, "-m", "bashgym", *argv, "--json"]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120)

    return call


def until(condition, seconds=90):
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    assert found, "waited in vain"
    return found


def test_an_evaluation_started_over_http_is_followed_stopped_and_ended_from_the_command_line(
    ask, bashgym, workspace, tmp_path
):
    eval_id = f"eval_{tmp_path.name}"
    body = {**SMALL, "n_resamples": 10_000, "eval_id": eval_id}
    status, job = ask("POST", "/api/evals", body)
    assert (status, job["eval_id"], job["job_id"], job["status"]) == (202, eval_id, eval_id, "running")
    assert ask("GET", f"/api/evals/{eval_id}")[1]["status"] == "running"
    assert ask("POST", "/api/evals", body)[1]["detail"]["code"] == "request_in_progress"
    until(lambda: scoring_processes(eval_id))
    assert ask("POST", f"/api/eval/jobs/{eval_id}/stop", {})[1]["status"] == "cancelled"
    assert not scoring_processes(eval_id), "what the worker started ends with it"
    assert ask("GET", f"/api/evals/{eval_id}")[1]["status"] == "interrupted"

    other = bashgym(*RUN, "--seed", "1", "--eval-id", eval_id)
    assert other.returncode == 1 and "seed" in json.loads(other.stdout or other.stderr)["detail"]["message"]
    done = bashgym(*RUN, "--eval-id", eval_id)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["eval_id"] == eval_id and report["comparison"]["verdict"] == "inconclusive"
    assert ask("GET", f"/api/evals/{eval_id}") == (200, report) == (200, workspace.evals.get(eval_id))
    assert ask("GET", f"/api/eval/jobs/{eval_id}")[1]["report"] == report
    assert json.loads(bashgym("eval", "resume", eval_id).stdout)["report"] == report
    again = bashgym(*RUN, "--eval-id", eval_id, "--detach")
    assert json.loads(again.stdout)["status"] == "completed"


def test_a_bad_evaluation_is_refused_before_a_worker_starts(ask, workspace):
    for body, code in (
        ({}, "missing_field"),
        ({"model": TINY, "atempts": 2}, "unknown_field"),
        ({"model": "none-such"}, "model_missing"),
        ({"model": TINY, "attempts": 2}, "invalid_field"),
        ({"model": TINY, "eval_id": "../x"}, "invalid_field"),
    ):
        status, doc = ask("POST", "/api/evals", body)
        assert status >= 400 and doc["detail"]["code"] == code, doc
    assert jobs.list_jobs(workspace.settings) == [] and ask("GET", "/api/evals/none")[0] == 404
