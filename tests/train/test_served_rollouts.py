"""A local model that is served for its rollouts alone: journals know it again, and the server ends with who started it."""

import json
import os
import signal
import subprocess
import sys
import time

from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.evals import jobs, rollout_job
from tests.sandbox.test_rollouts import SPECS

TINY = "bashgym/tiny-qwen2"


def test_a_served_model_is_known_again_on_another_port(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    home = {"BASHGYM_DIR": str(tmp_path / "home"), "BASHGYM_MODELS_DIR": str(tmp_path / "data/models")}
    settings = Settings.from_env(home, tmp_path)
    body = {"environments": SPECS[:1], "max_tokens": 4, "capture_logprobs": True}
    body |= {"rollouts_path": str(tmp_path / "r.jsonl"), "dppo_replay_output_path": str(tmp_path / "replay.jsonl")}
    found = []
    for _ in range(2):
        job_id = rollout_job.submit(settings, body, TINY)["job_id"]
        found.append(jobs.follow(settings, job_id)["report"])
    assert found[0]["rollouts"] == found[1]["rollouts"] and found[0]["model_id"] == TINY
    assert (found[0]["usage"]["completion_tokens"], found[1]["usage"]["requests"]) == (12, 0)
    assert found[0]["endpoint"] != found[1]["endpoint"] and found[0]["request_digest"] == found[1]["request_digest"]
    assert found[0]["dppo_report"]["logprob_coverage"] == 1.0 and len(found[0]["model"]["digest"]) == 64


def test_the_server_ends_with_who_started_it(tmp_path):
    script = (
        "import json, time\n"
        "from bashgym.core.settings import Settings\n"
        "from bashgym.evals.served import served\n"
        "from bashgym.models.catalog import resolve\n"
        "settings = Settings.from_env()\n"
        f"with served(resolve({TINY!r}, settings), settings) as endpoint:\n"
        "    print(endpoint.base_url, flush=True)\n"
        "    time.sleep(60)\n"
    )
    env = child_env(BASHGYM_DIR=str(tmp_path / "home"), OMP_NUM_THREADS="1")
    owner = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, cwd=tmp_path)
    assert owner.stdout.readline().startswith(b"http://127.0.0.1:")
    with open(f"/proc/{owner.pid}/task/{owner.pid}/children") as handle:
        server = int(handle.read().split()[0])
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 15
    while alive(server) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(server), json.dumps({"server": server})


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
