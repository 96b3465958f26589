"""`report_to`: the tracker gets the run's scalars, inside the run directory and nowhere else."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .conftest import wait_end

pytestmark = pytest.mark.train
SECRET = "do-not-write-this-key-4711"


def test_tensorboard_gets_every_step_below_the_run_directory(workspace, body, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "elsewhere"))
    before = {path.name for path in tmp_path.iterdir()}
    run_id = workspace.runs.start({**body, "report_to": ["tensorboard"]})["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    run = workspace.runs.locate(run_id)
    events = EventAccumulator(str(run.file("trackers/tensorboard"))).Reload()
    losses = {point["step"]: point["loss"] for point in run.metrics() if "loss" in point}
    scalars = {event.step: event.value for event in events.Scalars("train/loss")}
    assert scalars == pytest.approx(losses, abs=1e-5) and len(scalars) == 8
    assert {path.name for path in tmp_path.iterdir()} - before <= {"home", "data"}
    for path in run.path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_run_without_trackers_has_no_folder_for_them(workspace, body):
    run_id = workspace.runs.start({**body, "max_steps": 1})["run_id"]
    assert wait_end(workspace, run_id)["status"] == "completed"
    assert not workspace.runs.locate(run_id).file("trackers").exists()
