"""The queue, a repetition and a budget, on real runs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.runtime import child_env

from .conftest import wait_end, wait_for, wait_step

pytestmark = pytest.mark.train


def _cli(workspace, *argv):
    env = child_env(BASHGYM_DIR=str(workspace.settings.home), HF_HUB_OFFLINE="1")
    command = [sys.executable, "-m", "bashgym.cli.main", *argv, "--json"]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=os.getcwd(), check=False)


def test_one_trains_at_a_time_in_the_order_that_was_last_given_and_an_error_does_not_stop_the_rest(workspace, body):
    runs, small = workspace.runs, {**body, "max_steps": 4}
    busy = runs.start({**body, "max_steps": 5000})["run_id"]
    first = runs.start({**small, "run_id": "first"}, queued=True)
    runs.start({**small, "run_id": "second", "optim": "sgd", "trainer_args": {"optim_args": "no=such"}}, queued=True)
    runs.start({**small, "run_id": "third"}, queued=True)
    assert first["waiting"] and first["status"] == "queued"
    assert [entry["run_id"] for entry in runs.queue_list()["waiting"]] == ["first", "second", "third"]
    assert [entry["run_id"] for entry in runs.queue_move("third", 1)["waiting"]] == ["third", "first", "second"]
    assert runs.queue_remove("first")["status"] == "cancelled"
    with pytest.raises(BashGymError) as caught:
        runs.queue_move("first", 1)
    assert caught.value.code == "not_queued"
    wait_step(workspace, busy, 1)
    assert runs.locate("third").state().status == "queued", "one run per device"
    runs.stop(busy)
    # Nobody looks any more: the supervisors themselves launch what comes next.
    third, second = runs.locate("third"), runs.locate("second")
    wait_for(lambda: second.state().status in ("failed", "completed"), 120, "end of the queue")
    assert third.state().status == "completed"
    assert not second.file("trainer_process.json").stat().st_mtime_ns < third.file("metrics.jsonl").stat().st_mtime_ns


def test_a_queue_goes_on_after_its_supervisor_was_killed_and_two_starters_launch_one(workspace, body):
    runs = workspace.runs
    busy = runs.start({**body, "max_steps": 5000})["run_id"]
    waiting = runs.start({**body, "max_steps": 3}, queued=True)["run_id"]
    wait_step(workspace, busy, 1)
    state = runs.locate(busy).state()
    os.kill(state.supervisor["pid"], signal.SIGKILL)
    os.kill(state.trainer["pid"], signal.SIGKILL)
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "bashgym.cli.main", "training", "queue", "run", "--json"],
            stdout=subprocess.PIPE,
            env=child_env(BASHGYM_DIR=str(workspace.settings.home)),
        )
        for _ in range(2)
    ]
    launched = [run_id for child in both for run_id in json.loads(child.communicate(timeout=60)[0])["launched"]]
    assert wait_end(workspace, waiting)["status"] == "completed"
    assert launched.count(waiting) <= 1
    started = [e for e in runs.locate(waiting).events() if e["type"] == "training-started"]
    assert len(started) == 1


def test_a_run_reproduces_to_the_same_bits_and_a_diff_names_what_differs(workspace, body):
    runs = workspace.runs
    old = runs.start({**body, "max_steps": 4})["run_id"]
    assert wait_end(workspace, old)["status"] == "completed"
    dry = runs.reproduce(old, dry_run=True)
    assert dry["exact_possible"] or all("code" in d["what"] for d in dry["deviations"]), dry["deviations"]
    new = runs.reproduce(old)["run_id"]
    assert wait_end(workspace, new)["status"] == "completed"
    compared = runs.compare_reproduction(old, new)
    assert compared["identical"], compared
    assert any(e["type"] == "reproduces" for e in runs.locate(new).events())
    other = runs.start({**body, "max_steps": 5, "seed": 9})["run_id"]
    assert wait_end(workspace, other)["status"] == "completed"
    text = json.dumps(runs.diff(old, other))
    assert '"seed"' in text and '"max_steps"' in text
    assert not runs.compare_reproduction(old, other)["identical"]
    found = _cli(workspace, "training", "diff", old, other)
    assert found.returncode == 0 and "max_steps" in found.stdout
    data = Path(body["dataset_path"])
    data.write_text("".join(data.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(BashGymError) as caught:
        runs.reproduce(old)
    assert caught.value.code == "digest_mismatch" and "dataset.digest" in caught.value.fields


def test_money_ends_a_run_with_what_it_learnt_and_says_so(workspace, body):
    with pytest.raises(BashGymError) as caught:
        workspace.runs.start({**body, "max_cost": 1})
    assert "cost_per_hour" in caught.value.message
    run_id = workspace.runs.start({**body, "max_steps": 100_000, "max_cost": 0.01, "cost_per_hour": 3})["run_id"]
    final = wait_end(workspace, run_id, 60)
    assert final["status"] == "completed" and "max_cost" in final["message"], final
    run = workspace.runs.locate(run_id)
    assert run.file("final/adapter_config.json").is_file() and final["progress"]["step"] < 100_000


def test_a_probe_measures_this_request_and_leaves_nothing(workspace, body):
    done = _cli(
        workspace, "training", "plan", "--strategy", "sft", "--model", body["base_model"],
        "--dataset-path", body["dataset_path"], "--probe",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "seconds_per_step" in done.stdout
    assert not list(workspace.settings.models_dir.glob("*")) and not workspace.ledger.recent_runs(None, 10)
