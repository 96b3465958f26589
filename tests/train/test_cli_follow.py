"""Ctrl-C while following a run: the command ends, the run goes on and finishes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BASHGYM = [sys.executable, "-m", "bashgym"]
SMALL = {
    "max_seq_length": 64,
    "batch_size": 4,
    "gradient_accumulation_steps": 1,
    "num_epochs": 5,
    "use_lora": False,
    "sample_prompts": 0,
}


@pytest.mark.train
def test_an_interrupted_follow_leaves_the_run_going(tmp_path: Path) -> None:
    env = {**os.environ, "BASHGYM_DIR": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    rows = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]}
        for i in range(64)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    start = [
        "training",
        "start",
        "--model",
        "bashgym/tiny-qwen2",
        "--dataset-path",
        "train.jsonl",
        "--config",
        "config.json",
    ]
    follow = subprocess.Popen(
        [*BASHGYM, *start, "--run-id", "run_f", "--wait"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    )
    assert follow.stderr is not None
    said = ""
    while "run_f" not in said:
        said = follow.stderr.readline()
        assert said or follow.poll() is None
    follow.send_signal(signal.SIGINT)
    rest = follow.communicate(timeout=30)[1]
    assert follow.returncode == 130 and "goes on" in rest and "Traceback" not in rest

    state = tmp_path / "data/models/run_f/run_state.json"
    end = time.monotonic() + 120
    while (status := json.loads(state.read_text())["status"]) not in ("completed", "failed", "cancelled"):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert status == "completed"
    done = subprocess.run(
        [*BASHGYM, "training", "log", "run_f", "--follow"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout
