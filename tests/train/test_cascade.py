"""Cascades that train for real: stage after stage, a killed driver, a failing stage, a skipped one, a student."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from bashgym.api.app import create_app
from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.core.process import ProcessIdentity, end_group
from bashgym.core.runtime import child_env
from bashgym.evals import jobs
from bashgym.evidence.runcard import create
from bashgym.runs import cascade, cascade_distill

from .conftest import TINY, wait_end, wait_for

pytestmark = pytest.mark.train
SETTINGS = {"batch_size": 4, "gradient_accumulation_steps": 1, "max_seq_length": 128, "sample_prompts": 0}
SETTINGS |= {"torch_threads": 1, "save_steps": 5}


def row(i, tool):
    call = {"id": f"c{i}", "type": "function", "function": {"name": tool, "arguments": {"path": f"f{i}"}}}
    return {
        "messages": [
            {"role": "user", "content": f"look at f{i} with {tool}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{i}", "content": f"line {i}"},
            {"role": "assistant", "content": f"f{i} holds line {i}"},
        ]
    }


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "traces.jsonl"

    def write(**counts):
        rows = [row(i, tool) for tool, count in counts.items() for i in range(count)]
        path.write_text("".join(json.dumps(value) + "\n" for value in rows))
        return str(path)

    return write


@pytest.fixture
def body(dataset):
    return {
        "base_model": TINY,
        "dataset_path": dataset(Read=16, Bash=16, Grep=3),
        "domains": ["file_operations", "bash_commands", "search_and_navigate"],
        "train_steps_per_stage": 10,
        "lora_r": 4,
        "lora_alpha": 8,
        "learning_rate": 1e-3,
        "settings": SETTINGS,
    }


@pytest.fixture
def service(workspace):
    yield workspace.runs
    for path in (workspace.settings.models_dir.parent / "evals" / "jobs").glob("*/worker.json"):
        end_group(ProcessIdentity.from_dict(read_object(path)), 0.0)


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


def ended(service, read, name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "POLL_S", 0.5)
        with suppress(BashGymError):
            jobs.follow(service.settings, name)
    return read(service, name)


def kill_driver(service, job_id):
    folder = service.settings.models_dir.parent / "evals" / "jobs" / job_id
    os.kill(ProcessIdentity.from_dict(read_object(folder / "worker.json")).pid, signal.SIGKILL)
    return wait_for(lambda: jobs.get(service.settings, job_id)["status"] == "interrupted")


def test_a_cascade_goes_on_after_its_driver_was_killed_and_teaches_one_student(service, workspace, body, tmp_path):
    name = cascade.submit(service, body)["cascade_id"]
    with pytest.raises(BashGymError, match="one cascade trains at a time") as refused:
        cascade.submit(service, body)
    assert refused.value.code == "request_in_progress" and refused.value.http_status == 409
    first = wait_for(lambda: cascade.read(service.settings, name)["stages"][0]["run_id"], 60, "first run")
    wait_for((service.settings.models_dir / first / "run_state.json").is_file)
    kill_driver(service, name)
    assert cascade.status(service, name)["stages"][0]["status"] == "running", "its run does not need the driver"
    wait_end(workspace, first)

    jobs.resume(service.settings, name)
    doc = ended(service, cascade.status, name)
    assert doc["status"] == "completed", doc["error"]
    one, two, three = doc["stages"]
    assert [stage["status"] for stage in doc["stages"]] == ["completed", "completed", "skipped"]
    assert one["run_id"] == first and one["earlier_runs"] == [], "the run that was under way was taken up"
    assert three["rows"] == 3 and three["run_id"] is None and "3 rows" in three["error"]["message"]
    assert two["start_from"] == str(service.settings.models_dir / first / "merged")
    assert doc["run_id"] == two["run_id"]
    for stage in (one, two):
        run = service.locate(stage["run_id"])
        assert run.manifest()["dataset"]["digest"] == stage["dataset_sha256"]
        assert stage["card"] == {
            "path": str(run.file("run_card.json")),
            "sha256": digest_file(run.file("run_card.json")),
        }
        assert stage["card_ok"] is False, "nothing was evaluated, so nothing is promoted"
        tools = {call["function"]["name"] for line in _rows(stage) for call in line["messages"][1]["tool_calls"]}
        assert tools == {"Read" if stage is one else "Bash"}
    assert (
        service.locate(two["run_id"]).manifest()["model"]["digest"]
        != service.locate(first).manifest()["model"]["digest"]
    )

    evidence = tmp_path / "cascade.json"
    evidence.write_text(json.dumps(doc))
    card = create(
        run_id=doc["run_id"],
        training_method="cascade",
        base_model=TINY,
        compute_target="local",
        output=tmp_path / "card.json",
        evidence={"stage_run_cards": evidence, "stage_gates": evidence},
        models_dir=service.settings.models_dir,
    )
    said = [found["message"] for found in card["findings"] if found["code"] == "stage_gates_not_ok"]
    assert len(said) == 1 and "file_operations: " in said[0] and "as it was" not in said[0], (
        "read, found, and not promoted"
    )

    student = cascade_distill.submit(
        service, {"student_model": TINY, "train_steps": 20, "settings": SETTINGS, "cascade_id": name}
    )
    taught = ended(service, cascade_distill.status, student["distill_id"])
    assert taught["status"] == "completed", taught["error"]
    left, right = taught["stages"]
    assert (
        taught["dataset"]["rows"] == 32 and "sequential" in taught["schedule"] and taught["run_id"] == right["run_id"]
    )
    assert [s["request"]["max_steps"] for s in (left, right)] == [10, 10]
    assert [s["teacher_run"] for s in (left, right)] == [one["run_id"], two["run_id"]]
    assert left["start_from"] == TINY and right["start_from"] == str(service.locate(left["run_id"]).file("merged"))
    teacher = service.locate(right["run_id"]).manifest()["teacher"]
    assert teacher["path"] == str(service.locate(two["run_id"]).file("merged"))
    assert json.loads(_rows(left, raw=True)[0])["teacher_response"] == "f0 holds line 0"


def test_a_failed_stage_fails_the_cascade_and_a_stop_ends_its_run(service, ask, body, tmp_path):
    steps = {"domains": ["bash_commands"], "train_steps_per_stage": 2000}
    name = cascade.submit(service, {**body, **steps})["cascade_id"]
    first = _training(service, name)
    with pytest.raises(BashGymError) as refused:
        cascade_distill.submit(service, {"student_model": TINY})
    assert refused.value.code == "request_in_progress"
    os.kill(service.locate(first).state().trainer["pid"], signal.SIGKILL)
    doc = ended(service, cascade.status, name)
    assert (doc["status"], doc["error"]["code"], doc["stages"][0]["status"]) == ("failed", "stage_failed", "failed")
    assert doc["run_id"] is None and doc["stages"][0]["card"] is None and first in doc["error"]["message"]
    with pytest.raises(BashGymError, match="only a completed cascade has teachers") as refused:
        cascade_distill.submit(service, {"student_model": TINY, "cascade_id": name})
    assert refused.value.http_status == 409

    jobs.resume(service.settings, name)
    second = _training(service, name, others=[first])
    status, doc = ask("POST", "/api/cascade/stop", {"cascade_id": name})
    assert (status, doc["status"], doc["stages"][0]["status"]) == (200, "cancelled", "cancelled")
    assert service.get(second)["status"] == "cancelled", "the driver ends the run that it began"
    assert ask("POST", "/api/cascade/stop", {})[0] == 409

    jobs.resume(service.settings, name)
    third = _training(service, name, others=[first, second])
    kill_driver(service, name)
    env = child_env(BASHGYM_DIR=str(service.settings.home), BASHGYM_MODELS_DIR=str(service.settings.models_dir))
    argv = [sys.executable, "-m", "bashgym", "cascade", "stop", name, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    doc = json.loads(done.stdout)
    assert (doc["status"], doc["stages"][0]["status"]) == ("cancelled", "cancelled")
    assert doc["stages"][0]["earlier_runs"] == [first, second]
    assert service.get(third)["status"] == "cancelled", "a dead driver's run is ended too"


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"mode": "simulate"}, "invalid_field", "simulate"),
        ({"early_stopping_patience": 3}, "unknown_field", "early_stopping_patience"),
        ({"train_step_per_stage": 9}, "unknown_field", "train_step_per_stage"),
        ({"train_steps_per_stage": 9}, "invalid_field", "train_steps_per_stage"),
        ({"domains": ["cooking"]}, "invalid_field", "cooking"),
        ({"domains": ["bash_commands"] * 2}, "invalid_field", "different"),
        ({"stage_strategies": {"bash_commands": "dppo"}}, "invalid_field", "dppo"),
        ({"stage_strategies": {"repo_x": "sft"}}, "invalid_field", "repo_x"),
        ({"settings": {"max_steps": 3}}, "field_has_flag", "max_steps"),
        ({"settings": {"batchsize": 3}}, "unknown_field", "stage file_operations"),
        ({"min_domain_examples": 17}, "invalid_field", "bash_commands 16"),
        ({"use_remote_ssh": True}, "target_unavailable", "stage file_operations"),
        ({"base_model": "none-such"}, "model_missing", "none-such"),
        ({"dataset_path": "none.jsonl"}, "dataset_missing", "none.jsonl"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_driver_starts(service, ask, body, change, code, says):
    status, doc = ask("POST", "/api/cascade/start", {**body, **change})
    assert status >= 400 and doc["detail"]["code"] == code and says in doc["detail"]["message"], doc
    assert [ask("GET", f"/api/cascade/{path}")[0] for path in ("status", "distill/status")] == [404, 404]
    assert jobs.list_jobs(service.settings) == []
    assert [path.name for path in cascade.home(service.settings).glob("*") if path.is_dir()] == []


def _training(service, name, others=()):
    def stepped():
        run_id = cascade.read(service.settings, name)["stages"][0]["run_id"]
        if run_id in (None, *others) or not (service.settings.models_dir / run_id / "run_state.json").is_file():
            return None
        return run_id if service.locate(run_id).metrics() else None

    return wait_for(stepped, 90, "a first step")


def _rows(stage, raw=False):
    lines = Path(stage["request"]["dataset_path"]).read_text().splitlines()
    return lines if raw else [json.loads(line) for line in lines]
