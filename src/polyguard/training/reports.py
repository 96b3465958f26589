"""What a training report says (`outputs/reports/*_trl_run.json`): the run in numbers, every one of them measured.

Owns the schema of both stages and how a saved artifact is asked: does it answer, legally, honestly, and better than it did?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.clock import utc_now
from bashgym.core.files import atomic_write_json, writable_dir
from bashgym.store.run_dir import RunDir
from polyguard import DISCLAIMER
from polyguard.evaluation.play import Scenario
from polyguard.training import runs
from polyguard.training.teacher import at

SCHEMA = "polyguard.training_report.v1"
ACCEPTED = ("trl_unsloth", "trl_transformers")
"""Back ends that the gate accepts."""
MAX_SAMPLES = 8


def build(
    run: RunDir, stage: str, artifact: Path, *, asked: dict[str, Any], answers: dict[str, Any], delta: float
) -> dict[str, Any]:
    """The report of a completed run. `answers`: `ask` of training and held-out situations; `delta`: `weight_delta`."""
    manifest, state, points = run.manifest(), run.state(), list(run.metrics())
    rewards = [_reward_point(point) for point in points if isinstance(point.get("reward"), float)]
    moved = stage == "sft" or (delta > 0 and bool(points))
    return {
        "schema_version": SCHEMA,
        "disclaimer": DISCLAIMER,
        "status": "ok" if moved else "failed",
        "stage": stage,
        "backend": "trl_transformers",
        "run_id": run.run_id,
        "model_id": asked["model_id"],
        "model_revision": manifest["model"].get("revision") or manifest["model"].get("digest"),
        "artifact_path": artifact.as_posix(),
        "artifact_sha256": digests(artifact),
        "started_at": state.started_at,
        "finished_at": utc_now(),
        "seed": asked["seed"],
        "versions": runs.versions(run),
        "device": (manifest.get("hardware") or {}).get("device") or "cpu",
        "examples_used" if stage == "sft" else "prompts_used": (manifest.get("dataset") or {}).get("rows"),
        "steps_completed": max((int(point["step"]) for point in points), default=0),
        "max_steps": asked["max_steps"],
        "hyperparameters": {key: value for key, value in run.request().items() if key in _SHOWN},
        "loss_history": [{"step": p["step"], "loss": p["loss"]} for p in points if isinstance(p.get("loss"), float)],
        "reward_history": rewards,
        **answers,
        "weight_delta_norm": delta,
        "unsloth": asked["unsloth"],
    }


_SHOWN = frozenset(
    {
        *("learning_rate", "batch_size", "gradient_accumulation_steps", "num_epochs", "max_seq_length", "use_lora"),
        *("lora_rank", "lora_alpha", "grpo_num_generations", "grpo_beta", "grpo_loss_type", "grpo_temperature"),
        *("max_completion_length", "lr_scheduler_type", "seed"),
    }
)


def _reward_point(point: dict[str, Any]) -> dict[str, Any]:
    names = {"reward": "reward", "reward_std": "reward_std", "kl": "kl", "frac_reward_zero_std": "frac_reward_zero_std"}
    found = {ours: point.get(theirs) for ours, theirs in names.items()}
    lengths = {"completions_mean_length": "completions/mean_length", "clipped_ratio": "completions/clipped_ratio"}
    found |= {ours: point.get(theirs) for ours, theirs in lengths.items()}
    parts = {
        key.removeprefix("rewards/").removesuffix("/mean"): v for key, v in point.items() if key.startswith("rewards/")
    }
    return {"step": point["step"], **found, "per_component": {k: v for k, v in parts.items() if isinstance(v, float)}}


def situations(split: str, n: int, tasks: Sequence[str]) -> list[Scenario]:
    """Where an artifact is asked: the beginnings of scenarios."""
    from polyguard.evaluation.play import scenarios

    return scenarios(split, n, tasks)


def ask(policy: Any, tasks: Sequence[str], n: int) -> dict[str, Any]:
    """One answer in each of n training and n held-out situations: rewards, validity, legality, exploits, channels, samples."""
    found: dict[str, Any] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for split in ("train", "test"):
        rows[split] = answers(policy, situations(split, n, tasks))
    train, held = rows["train"], rows["test"]
    found["train_reward"], found["holdout_reward"] = _mean(train, "reward"), _mean(held, "reward")
    found["train_holdout_gap"] = found["train_reward"] - found["holdout_reward"]
    for name in ("validity", "legality", "exploit"):
        found[f"{name}_rate"] = _mean(held, name)
    flags = Counter(flag.partition(":")[2] for row in held for flag in row["flags"])
    found["anti_cheat_counts"] = dict(sorted(flags.items()))
    names = held[0]["channels"] if held else {}
    found["primary_reward_channels"] = {k: sum(r["channels"][k] for r in held) / len(held) for k in names}
    keep = ("scenario_id", "raw", "reward", "legal")
    found["sample_generations"] = [{k: row[k] for k in keep} for row in held[:MAX_SAMPLES]]
    return found


def answers(policy: Any, places: Sequence[Scenario]) -> list[dict[str, Any]]:
    """The policy's answer in each situation, carried out in the environment."""
    engines = [at(item.task_id, item.split, item.index, []) for item in places]
    policy.begin(len(engines))
    said = policy.act([engine.observation for engine in engines])
    rows = []
    for place, engine, text in zip(places, engines, said, strict=True):
        result = engine.step(text)
        rows.append(
            {
                "scenario_id": place.id,
                "task_id": place.task_id,
                "raw": str(text)[:600],
                "reward": result.reward,
                "validity": float(result.checks["readable"]),
                "listed": result.checks["listed"],
                "legality": float(result.verdict.legal),
                "legal": result.verdict.legal,
                "exploit": float(any(flag.startswith("hard:") for flag in result.anti_cheat)),
                "flags": result.anti_cheat,
                "channels": result.channels,
            }
        )
    return rows


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    return math.fsum(row[name] for row in rows) / len(rows) if rows else 0.0


def digests(folder: Path) -> dict[str, str]:
    """File -> sha256 of an artifact's weights and configuration."""
    kept = (".safetensors", ".json", ".jinja")
    return {p.name: digest_file(p) for p in sorted(folder.iterdir()) if p.is_file() and p.name.endswith(kept)}


def write(path: Path, report: dict[str, Any]) -> None:
    """Writes a report; an accepted one is not replaced by one that is not."""
    before = runs.kept(path)
    if (
        before
        and before.get("backend") in ACCEPTED
        and before.get("status") == "ok"
        and report["backend"] not in ACCEPTED
    ):
        path = path.with_name(f"{path.stem}.fallback.json")
    writable_dir(path.parent)
    atomic_write_json(path, report)


def weight_delta(artifact: Path, start: Path | None) -> float:
    """How far the weights moved, as a Euclidean norm: sum of ||scale B A||^2 of an adapter (less that of the adapter at `start`),
    or of all tensors against the model at `start`. Read from the saved files, float32."""
    import numpy as np
    from safetensors import safe_open

    def tensors(folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(str(path), framework="numpy") as handle:
                found |= {name: np.asarray(handle.get_tensor(name), dtype=np.float32) for name in handle.keys()}  # noqa: SIM118
        return found

    after = tensors(artifact)
    if (artifact / "adapter_config.json").is_file():
        before = tensors(start) if start and (start / "adapter_config.json").is_file() else {}
        total = sum(
            float(np.sum((product - _products(before).get(name, 0.0)) ** 2))
            for name, product in _products(after).items()
        )
        return math.sqrt(total)
    before = tensors(start) if start else {}
    return math.sqrt(sum(float(np.sum((v - before[name]) ** 2)) for name, v in after.items() if name in before))


def _products(adapter: dict[str, Any]) -> dict[str, Any]:
    """Module -> B A."""
    found = {}
    for name, a in adapter.items():
        if ".lora_A." in name:
            found[name] = adapter[name.replace(".lora_A.", ".lora_B.")] @ a
    return found
