"""The same over HTTP and the command line."""

import asyncio
import json

import httpx
import pytest

from bashgym.api.app import create_app
from bashgym.cli.main import main
from bashgym.core.settings import Settings
from bashgym.workspace import Workspace

from .replay_data import TINY, attempt, write

BASE = "/api/eval/environments/dppo-replay"


@pytest.fixture
def post(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path / "home"))
    app = create_app(Workspace(Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path)))

    def send(path, body):
        async def go():
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.post(f"{BASE}/{path}", json=body)

        reply = asyncio.run(go())
        return reply.status_code, reply.json()

    return send


def entries(count):
    return [
        {"environment_id": f"env_{i // 4}", "attempt_index": i % 4, "token_logprobs": [-2.0, -0.5]}
        for i in range(count)
    ]


def test_enrich_then_plan(post, tmp_path):
    replay, out = write(tmp_path, [attempt(i) for i in range(8)]), tmp_path / "scored.jsonl"
    status, doc = post("enrich", {"input_path": str(replay), "output_path": str(out), "train_logprobs": entries(8)})
    assert status == 200 and doc["dppo_replay"]["telemetry"]["masked_updates"] == 0
    status, doc = post("smoke-plan", {"replay_path": str(out), "output_dir": str(tmp_path / "s"), "base_model": TINY})
    plan = doc["plan"]
    assert status == 200 and plan["verdict"]["level"] == "ready" and plan["backend"] == "bashgym"
    documented = {"backend", "requested_backend", "available", "fallback_to_grpo", "runnable", "reason", "command"}
    documented |= {"cwd", "env", "warnings", "script_path", "contract_ready", "optimizer_ready", "backend_launch_ready"}
    assert documented <= plan.keys()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"input_path": "a", "output_path": "b", "train_logprobs": [], "treshold": 1}, "unknown_field"),
        ({"output_path": "b", "train_logprobs": []}, "missing_field"),
        ({"input_path": "absent.jsonl", "output_path": "b", "train_logprobs": entries(1)}, "file_missing"),
    ],
)
def test_refusals_are_typed(post, body, code):
    status, doc = post("enrich", body)
    assert 400 <= status < 500 and doc["detail"]["code"] == code


def test_a_replay_of_a_plain_recording_is_planned_as_blocked(post, tmp_path):
    record = attempt(0)
    record["behavior_policy"]["response_logprobs"] = []
    replay = write(tmp_path, [record])
    body = {"replay_path": str(replay), "output_dir": str(tmp_path / "s"), "base_model": TINY}
    status, doc = post("smoke-plan", body)
    assert status == 200 and doc["plan"]["verdict"]["level"] == "blocked"


def run(capfd, *argv):
    status = main([*argv, "--json"])
    return status, json.loads(capfd.readouterr().out)


def test_the_command_line_says_blocked_by_its_exit_status(post, tmp_path, capfd):
    replay = write(tmp_path, [attempt(i) for i in range(4)])
    argv = [
        "training",
        "smoke-bundle",
        "--replay",
        str(replay),
        "--output-dir",
        str(tmp_path / "s"),
        "--base-model",
        TINY,
    ]
    status, doc = run(capfd, *argv)
    assert status == 2 and doc["verdict"]["level"] == "blocked"  # ECHO and RWML are asked for unless disabled
    status, doc = run(capfd, *argv, "--disable-echo", "--disable-rwml", "--no-script")
    assert status == 0 and doc["verdict"]["level"] == "needs_train_logprob_replay"
    assert doc["launch_plan"]["script_path"] is None


def test_enrich_summarize_and_scrub(post, tmp_path, capfd):
    replay, out = write(tmp_path, [attempt(i) for i in range(4)]), tmp_path / "scored.jsonl"
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"input_path": str(replay), "output_path": str(out), "train_logprobs": entries(4)}))
    assert run(capfd, "eval", "replay-enrich", "--data-file", str(body))[0] == 0
    status, doc = run(capfd, "replay", "summarize", str(out))
    assert status == 0 and doc["train_logprobs_ready"] == 4 and doc["mean_reward"] == 0.5
    status, doc = run(capfd, "replay", "scrub", str(out))
    assert status == 0 and doc["output_path"] == str(tmp_path / "scored.scrubbed.jsonl")


def test_a_file_that_cannot_be_read_is_status_2(post, tmp_path, capfd):
    (tmp_path / "broken.jsonl").write_text("{")
    for name in ("broken.jsonl", "absent.jsonl"):
        status, doc = run(capfd, "replay", "summarize", str(tmp_path / name))
        assert status == 2 and doc["ok"] is False
