"""What holds for every strategy beyond SFT: pausing, killing and stopping, on real runs."""

import os
import signal

import pytest
from safetensors.numpy import load_file

from bashgym.methods import registry

from .conftest import wait_end, wait_for, wait_step
from .strategies import body

pytestmark = pytest.mark.train
STRATEGIES = [name for name in registry.direct_names() if name != "sft"]


def _weights(run):
    (path,) = run.file("final").glob("*.safetensors")
    return load_file(path)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_was_paused_and_then_killed_ends_in_the_bits_of_an_undisturbed_one(strategy, workspace, tmp_path):
    runs, request = workspace.runs, body(strategy, tmp_path)
    straight = runs.start(request)["run_id"]
    assert wait_end(workspace, straight)["status"] == "completed"

    first = runs.start(request)["run_id"]
    wait_step(workspace, first, 2)
    runs.pause(first)
    paused = wait_end(workspace, first)
    assert paused["status"] == "paused", paused
    at = runs.locate(first).metrics()[-1]["step"]
    runs.resume(first)
    wait_step(workspace, first, at + 5)
    os.kill(runs.locate(first).state().trainer["pid"], signal.SIGKILL)
    failed = wait_end(workspace, first)
    assert failed["status"] == "failed" and "SIGKILL" in str(failed["error"]), failed
    assert failed["last_checkpoint"]

    second = runs.resume(first)["run_id"]
    assert wait_end(workspace, second)["status"] == "completed"
    a, b = _weights(runs.locate(straight)), _weights(runs.locate(second))
    assert a.keys() == b.keys()
    assert all((a[key] == b[key]).all() for key in a), f"paused at {at}, continued at {failed['last_checkpoint']}"

    points = runs.locate(straight).metrics()
    names = {name for point in points for name in point}
    missing = set(registry.get(strategy).must_emit) - names
    assert not missing, f"{strategy} does not report {missing}"
    assert not any(point.get("non_finite") for point in points)
    assert runs.classification(straight)["method"] == strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stopped_run_is_cancelled_and_its_processes_are_gone(strategy, workspace, tmp_path):
    run_id = workspace.runs.start(body(strategy, tmp_path, max_steps=5000))["run_id"]
    wait_step(workspace, run_id, 1)
    trainer = workspace.runs.locate(run_id).state().trainer["pid"]
    workspace.runs.stop(run_id)
    final = wait_end(workspace, run_id, 30)
    assert final["status"] == "cancelled", final
    wait_for(lambda: not os.path.exists(f"/proc/{trainer}"), 10, "end of the trainer")
