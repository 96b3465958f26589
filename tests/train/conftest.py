"""Real runs with the real trainer on the tiny model: one workspace a test, small datasets, processes that are always ended."""

import json
import os
import time

import pytest

from bashgym.core.process import ProcessIdentity, end_group
from bashgym.core.settings import Settings
from bashgym.store.run_dir import TERMINAL, RunStatus
from bashgym.workspace import Workspace

TINY = "bashgym/tiny-qwen2"
END = {str(s) for s in TERMINAL} | {str(RunStatus.PAUSED)}


@pytest.fixture(scope="session")
def model_home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in [name for name in os.environ if name.startswith("BASHGYM_") and name != "BASHGYM_TRAINING_PYTHON"]:
        monkeypatch.delenv(name)
    made = Workspace.open(Settings.from_env({**os.environ, "BASHGYM_DIR": str(tmp_path / "home")}, tmp_path))
    yield made
    for path in made.settings.models_dir.glob("*/run_state.json"):
        state = json.loads(path.read_text())
        for who in (state.get("supervisor"), state.get("trainer")):
            if who:
                end_group(ProcessIdentity.from_dict(who), 0.0)


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {i % 10} plus {i * 7 % 10}?"},
                {"role": "assistant", "content": str(i % 10 + i * 7 % 10)},
            ]
        }
        for i in range(64)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def body(dataset):
    return {
        "strategy": "sft",
        "base_model": TINY,
        "dataset_path": str(dataset),
        "num_epochs": 1,
        "batch_size": 8,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
        "max_seq_length": 128,
        "lora_rank": 4,
        "lora_alpha": 8,
        "save_steps": 4,
        "sample_prompts": 0,
        "torch_threads": 1,
    }


def wait_for(check, seconds=120.0, what="condition"):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := check():
            return value
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {seconds} s")


def wait_end(workspace, run_id, seconds=180.0):
    def ended():
        found = workspace.runs.get(run_id)
        return found if found["status"] in END else None

    return wait_for(ended, seconds, f"end of {run_id}")


def wait_step(workspace, run_id, step, seconds=120.0):
    run = workspace.runs.locate(run_id)
    return wait_for(lambda: any(p["step"] >= step for p in run.metrics()), seconds, f"step {step} of {run_id}")
