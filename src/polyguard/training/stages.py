"""The two training stages as their scripts run them: a BashGym run, its artifact in `checkpoints/`, its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_json, read_object
from bashgym.store.run_dir import RunDir
from bashgym.workspace import Workspace
from polyguard.training import corpus, reports, reward_function, runs

Say = Callable[[str], None]
SFT_ADAPTER, GRPO_ADAPTER = Path("checkpoints/sft_adapter"), Path("checkpoints/grpo_adapter")
SFT_REPORT, GRPO_REPORT = Path("outputs/reports/sft_trl_run.json"), Path("outputs/reports/grpo_trl_run.json")


class Order(msgspec.Struct, kw_only=True):
    """What both stages are told."""

    model_id: str
    epochs: int = 1
    max_steps: int = 0
    """0 and below: whole epochs over the corpus."""
    lora_r: int = 16
    """0 trains all weights."""
    learning_rate: float = 2e-4
    batch_size: int = 4
    max_length: int = 1280
    seed: int = 42
    use_unsloth: bool = False
    ask: int = 24
    """Situations of each split in which the artifact is asked at the end."""
    settings: dict[str, Any] = {}
    """Further fields of the BashGym request."""


def _body(order: Order, strategy: str, dataset: Path) -> dict[str, Any]:
    if not dataset.is_file():
        hint = "Run build_training_corpus.py --profile small --with-local --with-synthetic first."
        raise fail("dataset_missing", f"{dataset} is not there", hint, ["corpus"])
    body: dict[str, Any] = {
        "strategy": strategy,
        "dataset_path": str(dataset),
        "num_epochs": order.epochs,
        "learning_rate": order.learning_rate,
        "batch_size": order.batch_size,
        "gradient_accumulation_steps": 1,
        "max_seq_length": order.max_length,
        "use_lora": order.lora_r > 0,
        "save_steps": 100_000,
        "sample_prompts": 0,
        "artifact_retention": "adapter_only",
        "seed": order.seed,
    }
    body |= {"lora_rank": order.lora_r, "lora_alpha": 2 * order.lora_r} if order.lora_r else {}
    body |= {"max_steps": order.max_steps} if order.max_steps > 0 else {}
    return body | order.settings


def sft(
    order: Order, *, data: Path = corpus.SFT, target: Path = SFT_ADAPTER, report: Path = SFT_REPORT, say: Say
) -> dict[str, Any]:
    """Supervised: the teacher's answers."""
    workspace = Workspace.open()
    run = runs.train(workspace, {**_body(order, "sft", data), "base_model": order.model_id}, say)
    return _finished(order, run, "sft", target=target, report=report, start=None, say=say)


def grpo(
    order: Order,
    *,
    num_generations: int = 8,
    max_prompts: int = 0,
    max_completion_length: int = 64,
    beta: float = 0.0,
    start: Path | None = None,
    data: Path = corpus.PROMPTS,
    target: Path = GRPO_ADAPTER,
    report: Path = GRPO_REPORT,
    say: Say,
) -> dict[str, Any]:
    """On-policy: answers are steps in the environment. From the SFT artifact where it is of this model, else from the model."""
    start = start if start is not None else _own(SFT_ADAPTER, order.model_id)
    chosen = _first(data, max_prompts)
    body = _body(order, "grpo", chosen)
    per_pass = max(order.batch_size, num_generations)
    body |= {
        "grpo_reward_mode": f"python:{reward_function.__file__}:reward",
        "grpo_num_generations": num_generations,
        "batch_size": per_pass - per_pass % num_generations,
        "max_completion_length": max_completion_length,
        "grpo_beta": beta,
        "base_model": order.model_id if start is None else str(start.absolute()),
        **order.settings,
    }
    run = runs.train(Workspace.open(), body, say)
    return _finished(order, run, "grpo", target=target, report=report, start=start, say=say)


def _own(folder: Path, model_id: str) -> Path | None:
    """The artifact at `folder` if it was trained from that model."""
    note = folder / "run.json"
    return folder if note.is_file() and read_object(note).get("model_id") == model_id else None


def _first(data: Path, n: int) -> Path:
    """The first n rows as a file of their own; all if n is 0."""
    if n <= 0 or not data.is_file():
        return data
    made = data.with_name(f"{data.stem}.first_{n}.jsonl")
    made.write_bytes(b"".join(data.read_bytes().splitlines(keepends=True)[:n]))
    return made


def _finished(
    order: Order, run: RunDir, stage: str, *, target: Path, report: Path, start: Path | None, say: Say
) -> dict[str, Any]:
    from polyguard.policies.local_model import ModelPolicy

    artifact = runs.publish(run, target)
    note = {
        "model_id": order.model_id,
        "run_id": run.run_id,
        "stage": stage,
        "start": start.as_posix() if start else order.model_id,
    }
    atomic_write_json(artifact / "run.json", note)
    base = Path(run.manifest()["model"]["path"])
    say(f"{stage}: asking the saved artifact in {2 * order.ask} situations")
    tasks = _tasks(run.request()["dataset_path"])
    found = reports.ask(ModelPolicy(str(artifact)), tasks, order.ask)
    asked = {
        "model_id": order.model_id,
        "seed": order.seed,
        "max_steps": order.max_steps,
        "unsloth": runs.accelerator(order.use_unsloth),
    }
    delta = reports.weight_delta(artifact, start if start is not None else base)
    made = reports.build(run, stage, artifact, asked=asked, answers=found, delta=delta)
    reports.write(report, made)
    return made


def _tasks(dataset: str) -> list[str]:
    """The tasks of a corpus, sorted."""
    lines = Path(dataset).read_bytes().splitlines()
    return sorted({name for line in lines if (name := msgspec.json.decode(line).get("task_id"))})
