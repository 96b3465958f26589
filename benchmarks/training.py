"""Launch overhead, and training overhead against bare TRL on the same tokens, paired."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.workspace import Workspace
from benchmarks.measure import Result

STEPS = 150
PAIRS = 4
BARE = """
import json, sys, time
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
torch.set_num_threads(2)
model_dir, data, out, steps = sys.argv[1:5]
tok = AutoTokenizer.from_pretrained(model_dir)
rows = Dataset.from_list([json.loads(line) for line in open(data)])
config = SFTConfig(output_dir=out, per_device_train_batch_size=16, max_steps=int(steps), learning_rate=1e-3, max_length=96,
    assistant_only_loss=True, report_to="none", use_cpu=True, bf16=False, save_strategy="no", logging_steps=1, seed=1,
    gradient_checkpointing=False, disable_tqdm=True, optim="adamw_torch")
model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tok).train()
"""


def run(work: Path) -> list[Result]:
    """Two quantities."""
    settings = Settings.from_env({"BASHGYM_DIR": str(work / "train-home")}, work)
    workspace = Workspace.open(settings)
    data = work / "train.jsonl"
    data.write_text("".join(_row(i) for i in range(3000)))
    small = work / "small.jsonl"
    small.write_text("".join(_row(i) for i in range(64)))
    launches = [_ours(workspace, small, max_steps=1)[1] for _ in range(PAIRS)]
    ours, theirs = [], []
    for _ in range(PAIRS):
        ours.append(_ours(workspace, data)[0])
        theirs.append(_bare(workspace, data, work))
    # The fastest of each side: what disturbs a run only ever adds to it.
    overhead = 100 * (min(ours) / min(theirs) - 1)
    return [
        Result("submit → the trainer's first line, 64 rows", statistics.median(launches), "ms", "≤ 300"),
        Result(
            f"training time, {STEPS} steps (overhead {overhead:+.1f} %)",
            min(ours),
            "s",
            "≤ 1 % over",
            "bare TRL",
            min(theirs),
        ),
    ]


def _ours(workspace: Workspace, data: Path, max_steps: int = STEPS) -> tuple[float, float]:
    """(train_runtime in s, ms from submit to the trainer's first line)."""
    body = {
        "strategy": "sft", "base_model": "bashgym/tiny-qwen2", "dataset_path": str(data), "use_lora": False, "batch_size": 16,
        "gradient_accumulation_steps": 1, "max_steps": max_steps, "learning_rate": 1e-3, "max_seq_length": 96,
        "save_steps": 10_000, "warmup_ratio": 0.0, "seed": 1, "sample_prompts": 0, "torch_threads": 2,
    }  # fmt: skip
    begin = time.time()
    run_id = workspace.runs.start(body)["run_id"]
    run = workspace.runs.locate(run_id)
    while workspace.runs.get(run_id)["status"] not in ("completed", "failed"):
        time.sleep(0.2)
    first = re.search(r"\[bashgym\] (\S+Z) trainer", run.log_path.read_text())
    launch = (
        (datetime.fromisoformat(first[1].replace("Z", "+00:00")).timestamp() - begin) * 1000 if first else float("nan")
    )
    runtime = next(p["train_runtime"] for p in run.metrics() if "train_runtime" in p)
    return float(runtime), launch


def _bare(workspace: Workspace, data: Path, work: Path) -> float:
    model = workspace.model("bashgym/tiny-qwen2").path
    argv = [sys.executable, "-c", BARE, str(model), str(data), str(work / "bare"), str(STEPS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=child_env(HF_HUB_OFFLINE="1"))
    return float(re.search(r"'train_runtime': '?([\d.]+)", done.stdout)[1])  # type: ignore[index]


def _row(i: int) -> str:
    return (
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": f"add {i} and {i + 3}"},
                    {"role": "assistant", "content": str(2 * i + 3)},
                ]
            }
        )
        + "\n"
    )
