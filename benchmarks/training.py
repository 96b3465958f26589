"""Launch overhead, and training overhead against bare TRL on the same rows, seeds and steps, interleaved.

Both sides write the checkpoint of the last step.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.workspace import Workspace
from benchmarks.measure import Result

PAIRS = 5
HEAD = """
import json, sys, torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
torch.set_num_threads(2)
model_dir, data, out, steps = sys.argv[1:5]
tok = AutoTokenizer.from_pretrained(model_dir)
rows = Dataset.from_list([json.loads(line) for line in open(data)])
model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
shared = dict(output_dir=out, per_device_train_batch_size=16, max_steps=int(steps), learning_rate=1e-3, report_to="none",
    use_cpu=True, bf16=False, save_strategy="steps", save_steps=10_000, logging_steps=1, seed=1,
    gradient_checkpointing=False, disable_tqdm=True,
    optim="adamw_torch")
"""
SFT = """
config = SFTConfig(max_length=96, assistant_only_loss=True, **shared)
SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tok).train()
"""
DPO = """
ref = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
config = DPOConfig(max_length=96, beta=0.1, **shared)
DPOTrainer(model=model, ref_model=ref, args=config, train_dataset=rows, processing_class=tok).train()
"""
GRPO = """
def reward(completions, answer, **kwargs):
    return [float(c.strip() == a) for c, a in zip(completions, answer)]
config = GRPOConfig(max_completion_length=24, num_generations=4, temperature=0.7, loss_type="grpo", beta=0.0, epsilon=0.2,
    **shared)
GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=rows, processing_class=tok).train()
"""


@dataclass(frozen=True)
class Work:
    """The same training, told to TRL and to us."""

    strategy: str
    bare: str
    steps: int
    request: dict[str, Any]

    def row(self, i: int) -> dict[str, Any]:
        """Row `i` of its dataset."""
        question, answer = f"add {i} and {i + 3}", str(2 * i + 3)
        if self.strategy == "sft":
            return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        if self.strategy == "dpo":
            return {"prompt": question, "chosen": answer, "rejected": str(i)}
        return {"prompt": question, "answer": answer}


WORKS = (
    Work("sft", SFT, 150, {"max_seq_length": 96}),
    Work("dpo", DPO, 80, {"max_seq_length": 96, "dpo_beta": 0.1}),
    Work("grpo", GRPO, 60, {"max_seq_length": 96, "max_completion_length": 24, "grpo_reward_mode": "answer"}),
)


def run(work: Path) -> list[Result]:
    """Launch time, and for each strategy the time of the same steps with and without us."""
    settings = Settings.from_env({"BASHGYM_DIR": str(work / "train-home")}, work)
    workspace = Workspace.open(settings)
    small = _write(work / "small.jsonl", WORKS[0], 64)
    launches = [_ours(workspace, WORKS[0], small, max_steps=1)[1] for _ in range(PAIRS)]
    results = [Result("submit → the trainer's first line, 64 rows", statistics.median(launches), "ms", "≤ 300")]
    for job in WORKS:
        data = _write(work / f"{job.strategy}.jsonl", job, 3000)
        pairs = [(_ours(workspace, job, data)[0], _bare(workspace, job, data, work)) for _ in range(PAIRS)]
        results.append(_overhead(job, pairs))
    return results


def _overhead(job: Work, pairs: list[tuple[float, float]]) -> Result:
    """The fastest of each side, since what disturbs a run only ever adds to it; the pairs' median stands beside it."""
    ours, theirs = min(a for a, _ in pairs), min(b for _, b in pairs)
    median = statistics.median(100 * (a / b - 1) for a, b in pairs)
    name = f"{job.strategy}: {job.steps} steps, overhead {100 * (ours / theirs - 1):+.1f} % (median of pairs {median:+.1f} %)"
    return Result(name, ours, "s", "≤ 1 % over", "bare TRL", theirs)


def _write(path: Path, job: Work, n: int) -> Path:
    path.write_text("".join(json.dumps(job.row(i)) + "\n" for i in range(n)))
    return path


def _ours(workspace: Workspace, job: Work, data: Path, max_steps: int | None = None) -> tuple[float, float]:
    """(train_runtime in s, ms from submit to the trainer's first line)."""
    body = {
        "strategy": job.strategy, "base_model": "bashgym/tiny-qwen2", "dataset_path": str(data), "use_lora": False,
        "batch_size": 16, "gradient_accumulation_steps": 1, "max_steps": max_steps or job.steps, "learning_rate": 1e-3,
        "save_steps": 10_000, "warmup_ratio": 0.0, "seed": 1, "sample_prompts": 0, "torch_threads": 2, **job.request,
    }  # fmt: skip
    begin = time.time()
    run_id = workspace.runs.start(body)["run_id"]
    run = workspace.runs.locate(run_id)
    while (state := workspace.runs.get(run_id))["status"] not in ("completed", "failed"):
        time.sleep(0.2)
    if state["status"] == "failed":
        raise RuntimeError(state["error"])
    first = re.search(r"\[bashgym\] (\S+Z) trainer", run.log_path.read_text())
    launch = (
        (datetime.fromisoformat(first[1].replace("Z", "+00:00")).timestamp() - begin) * 1000 if first else float("nan")
    )
    runtime = next(p["train_runtime"] for p in run.metrics() if "train_runtime" in p)
    return float(runtime), launch


def _bare(workspace: Workspace, job: Work, data: Path, work: Path) -> float:
    model = workspace.model("bashgym/tiny-qwen2").path
    argv = [sys.executable, "-c", HEAD + job.bare, str(model), str(data), str(work / "bare"), str(job.steps)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=child_env(HF_HUB_OFFLINE="1"))
    return float(re.search(r"'train_runtime': '?([\d.]+)", done.stdout)[1])  # type: ignore[index]
