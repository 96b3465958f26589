"""Several training processes of one run: they train together, obey together and end together."""

import os
import signal
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from bashgym.core.errors import BashGymError
from bashgym.core.process import ProcessIdentity
from bashgym.store.checkpoints import problems

from .conftest import wait_end, wait_for, wait_step
from .strategies import body as body_of

pytestmark = pytest.mark.train


@pytest.fixture
def two(body):
    return {**body, "num_processes": 2, "batch_size": 4, "lora_dropout": 0.0}


def _weights(run):
    (path,) = run.file("final").glob("*.safetensors")
    return load_file(path)


def _losses(run):
    return [point["loss"] for point in run.metrics() if "loss" in point]


def _members(run):
    """Live pids of the trainer's process group, the trainer first."""
    leader = ProcessIdentity.from_dict(run.state().trainer).pid
    found = [int(name) for name in os.listdir("/proc") if name.isdigit() and _live_in(int(name), leader)]
    return sorted(found, key=lambda pid: (pid != leader, pid))


def _live_in(pid, group):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in ("Z", "X") and int(fields[2]) == group


def test_two_processes_train_like_one_with_twice_the_batch(workspace, two):
    one = workspace.runs.start({**two, "num_processes": 1, "batch_size": 8})["run_id"]
    both = workspace.runs.start(two)["run_id"]
    for run_id in (one, both):
        final = wait_end(workspace, run_id)
        assert final["status"] == "completed", final
    a, b = workspace.runs.locate(one), workspace.runs.locate(both)
    assert b.manifest()["backend"]["processes"] == "2 with ddp over gloo"
    assert _losses(a) == pytest.approx(_losses(b), rel=0.02), "each row is seen at the same step, on one of the two"
    totals = [run.metrics()[-1]["num_tokens"] for run in (a, b)]
    assert totals[0] == totals[1], "tokens are counted over all processes"
    lines = b.metrics_path.read_text().splitlines()
    assert len(lines) == len(a.metrics_path.read_text().splitlines()), "one process writes metrics"
    kinds = [event["type"] for event in b.events()]
    assert kinds.count("final-saved") == 1 and kinds.count("checkpoints-pruned") == 1
    assert not b.file(".rendezvous").exists()


def test_pause_and_resume_with_two_processes_changes_nothing(workspace, two):
    request = {**two, "num_epochs": 3, "lora_dropout": 0.1, "save_steps": 5}
    straight = workspace.runs.start(request)["run_id"]
    assert wait_end(workspace, straight)["status"] == "completed"
    halted = workspace.runs.start(request)["run_id"]
    run = workspace.runs.locate(halted)
    wait_step(workspace, halted, 3)
    workspace.runs.pause(halted)
    paused = wait_end(workspace, halted)
    assert paused["status"] == "paused" and paused["exit"] == {"code": 75, "signal": None}, paused
    checkpoint = run.file(paused["last_checkpoint"])
    assert problems(checkpoint) == []
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    workspace.runs.resume(halted)
    assert wait_end(workspace, halted)["status"] == "completed"
    a, b = _weights(workspace.runs.locate(straight)), _weights(run)
    assert a.keys() == b.keys() and all((a[key] == b[key]).all() for key in a)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_fails_the_run_with_its_signal_and_leaves_nobody(workspace, two, victim):
    run_id = workspace.runs.start({**two, "num_epochs": 100})["run_id"]
    run = workspace.runs.locate(run_id)
    wait_step(workspace, run_id, 6)
    _, *ranks = _members(run)
    assert len(ranks) == 2
    begin = time.monotonic()
    os.kill(ranks[victim], signal.SIGKILL)
    final = wait_end(workspace, run_id, 30)
    assert time.monotonic() - begin < 15
    assert final["status"] == "failed" and final["exit"] == {"code": None, "signal": "SIGKILL"}, final
    assert final["error"]["message"].startswith(f"training process {victim} ")
    assert final["last_checkpoint"] in final["error"]["hint"]
    assert _members(run) == []
    again = workspace.runs.resume(run_id)["run_id"]
    wait_step(workspace, again, 6)
    workspace.runs.stop(again)


def test_a_killed_launcher_leaves_no_rank(workspace, two):
    run_id = workspace.runs.start({**two, "num_epochs": 100})["run_id"]
    run = workspace.runs.locate(run_id)
    wait_step(workspace, run_id, 1)
    os.kill(_members(run)[0], signal.SIGKILL)
    assert wait_end(workspace, run_id, 30)["status"] == "failed"
    wait_for(lambda: not _members(run), 10, "end of the ranks")


def test_stop_ends_all_processes(workspace, two):
    run_id = workspace.runs.start({**two, "num_epochs": 100})["run_id"]
    run = workspace.runs.locate(run_id)
    wait_step(workspace, run_id, 2)
    workspace.runs.stop(run_id)
    assert wait_end(workspace, run_id, 30)["status"] == "cancelled"
    assert _members(run) == []


def test_an_error_in_the_ranks_is_the_error_of_the_run(workspace, two):
    run_id = workspace.runs.start({**two, "lora_target_modules": ["no_such_module"]})["run_id"]
    final = wait_end(workspace, run_id, 60)
    assert final["status"] == "failed" and final["error"]["code"] == "training_failed"
    assert "no_such_module" in final["error"]["message"], final["error"]
    assert _members(workspace.runs.locate(run_id)) == []


@pytest.mark.parametrize("strategy", ["dpo", "grpo"])
def test_other_strategies_train_in_two_processes(strategy, workspace, tmp_path):
    request = body_of(strategy, tmp_path, num_processes=2, max_steps=4)
    run_id = workspace.runs.start(request)["run_id"]
    final = wait_end(workspace, run_id)
    assert final["status"] == "completed", final
    points = workspace.runs.locate(run_id).metrics()
    assert [point["step"] for point in points] == [1, 2, 3, 4]
    assert not any(point.get("non_finite") for point in points)


@pytest.mark.parametrize("how", ["fsdp", "deepspeed"])
def test_sharding_is_refused_where_it_would_be_a_copy(workspace, two, how):
    with pytest.raises(BashGymError) as caught:
        workspace.runs.check({**two, "distributed": how})
    assert caught.value.code == {"fsdp": "target_unavailable", "deepspeed": "missing_extra"}[how]
    assert caught.value.fields == ["distributed"]
