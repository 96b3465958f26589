"""Reward examples: judged answers, pairs and trajectories, checked as evidence and read as training data.

Owns the codes of `bashgym.reward_example_validation.v1` and the three kinds that a trainer tells apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bashgym.data.findings import Collector
from bashgym.data.pair_validation import as_finding, given
from bashgym.data.readers import Scan
from bashgym.data.types import Severity

SCHEMA = "bashgym.reward_example_validation.v1"
KINDS = {
    "preference_reward": "preference",
    "outcome_reward": "outcome",
    "orm": "outcome",
    "process_reward": "process",
    "prm": "process",
}
"""reward_type -> what is learnt: a preference, one number, or one number a step."""
_METADATA: dict[str, tuple[str, ...]] = {
    "missing_reward_scale": ("reward_scale", "scale"),
    "missing_label_source": ("label_source",),
    "missing_source_provenance": ("provenance", "source", "source_trace", "trace_id"),
    "missing_quality_or_confidence": ("quality", "quality_score", "confidence", "label_confidence"),
    "missing_domain_or_task_family": ("domain", "task_family"),
    "missing_split_metadata": ("split", "split_id", "split_policy"),
    "missing_decontamination_metadata": ("decontamination", "decontamination_status", "contamination_checked"),
}
"""Code -> the keys, of the row or of its metadata, of which one has to be there. A failure in strict mode only."""


@dataclass(frozen=True)
class RewardExample:
    """One example as a trainer takes it. Which of the three parts is set depends on `kind`."""

    number: int
    example_id: str
    kind: str
    prompt: str
    chosen: str = ""
    rejected: str = ""
    response: str = ""
    reward: float = math.nan
    steps: tuple[tuple[str, float], ...] = ()
    """(text, reward) of each step of a process."""
    split: str = ""


def validate(path: Path, *, strict: bool = False) -> dict[str, Any]:
    """The report of a file: findings `{code, level, message, rows, count}`, rows 1-based; `ok` if none is a failure.

    Raises `dataset_missing`, `dataset_empty`, `dataset_unreadable` where there is nothing to judge.
    """
    collector = Collector([])
    scan, valid, kinds, seen = Scan(path, collector), 0, dict[str, int](), set[str]()
    for batch in scan:
        for number, value in zip(batch.numbers, batch.values, strict=True):
            errors = collector.errors
            for code, keys in _METADATA.items():
                if given(value, keys) is None:
                    severity = Severity.ERROR if strict else Severity.WARNING
                    collector.add(code, severity, f"none of {', '.join(keys)} is given", row=number, field=keys[0])
            example = read_example(number, value, collector)
            if example is not None:
                kinds[example.kind] = kinds.get(example.kind, 0) + 1
                if example.example_id in seen:
                    collector.error("doubled_example_id", "an example_id occurs twice", number, "example_id")
                seen.add(example.example_id)
            valid += collector.errors == errors
    collector.flush()
    findings = [as_finding(f) for f in msgspec.to_builtins(collector.out) if f["severity"] != Severity.INFO]
    levels = [finding["level"] for finding in findings]
    return {
        "schema_version": SCHEMA,
        "ok": "fail" not in levels,
        "path": str(path),
        "sha256": scan.sha256,
        "strict": strict,
        "total_records": scan.rows,
        "valid_records": valid,
        "kinds": kinds,
        "fail_count": levels.count("fail"),
        "warn_count": levels.count("warn"),
        "findings": findings,
    }


def iter_examples(path: Path, collector: Collector | None = None) -> Iterator[RewardExample]:
    """The examples of a file that can be trained on, in order."""
    watch = collector or Collector([])
    for batch in Scan(path, watch):
        for number, value in zip(batch.numbers, batch.values, strict=True):
            if (example := read_example(number, value, watch)) is not None:
                yield example


def read_example(number: int, value: dict[str, Any], collector: Collector) -> RewardExample | None:
    """The row as an example; None with findings if it lacks what its kind needs."""
    errors = collector.errors
    example_id, kind = str(given(value, ("example_id", "id")) or ""), _kind(value)
    if not example_id:
        collector.error("missing_example_id", "there is no example_id", number, "example_id")
    if not value.get("reward_type"):
        collector.error("missing_reward_type", "there is no reward_type", number, "reward_type")
    elif value["reward_type"] not in KINDS:
        known = ", ".join(KINDS)
        collector.warn("unknown_reward_type", f"reward_type is none of {known}", number, "reward_type")
    prompt = _text(value.get("prompt"))
    if not prompt:
        collector.error("missing_prompt", "there is no prompt", number, "prompt")
    parts = _PARTS[kind](number, value, collector)
    if collector.errors > errors:
        return None
    split = str(given(value, ("split", "split_id")) or "")
    return RewardExample(number=number, example_id=example_id, kind=kind, prompt=prompt, split=split, **parts)


def _kind(value: dict[str, Any]) -> str:
    """By its type; a row of an unknown type by what it has."""
    stated = KINDS.get(str(value.get("reward_type")))
    if stated:
        return stated
    return (
        "preference"
        if value.get("chosen") and value.get("rejected")
        else "process"
        if value.get("steps")
        else "outcome"
    )


def _preference(number: int, value: dict[str, Any], collector: Collector) -> dict[str, Any]:
    chosen, rejected = _text(value.get("chosen")), _text(value.get("rejected"))
    if not chosen or not rejected:
        text = "a preference needs chosen and rejected"
        collector.error("missing_reward_value", text, number, "rejected" if chosen else "chosen")
    elif chosen == rejected:
        collector.error("identical_chosen_rejected", "chosen and rejected say the same", number, "rejected")
    return {"chosen": chosen, "rejected": rejected}


def _outcome(number: int, value: dict[str, Any], collector: Collector) -> dict[str, Any]:
    response = _text(value.get("response")) or _text(value.get("trajectory"))
    if not response:
        collector.error("missing_response_or_trajectory", "there is no response or trajectory", number, "response")
    reward = finite(value.get("reward"))
    if reward is None:
        collector.error("missing_reward_value", "reward is no finite number", number, "reward")
    return {"response": response, "reward": math.nan if reward is None else reward}


def _process(number: int, value: dict[str, Any], collector: Collector) -> dict[str, Any]:
    steps = value.get("steps") or value.get("trajectory")
    found = []
    for step in steps if isinstance(steps, list) else []:
        text = _text(step.get("text") or step.get("content")) if isinstance(step, dict) else ""
        reward = finite(step.get("reward", step.get("label"))) if isinstance(step, dict) else None
        if text and reward is not None:
            found.append((text, reward))
    if not found or len(found) != len(steps or []):
        text = "a process needs steps, each with text and a finite reward"
        collector.error("missing_process_reward_steps", text, number, "steps")
    return {"steps": tuple(found), "response": "\n".join(text for text, _ in found)}


_PARTS = {"preference": _preference, "outcome": _outcome, "process": _process}


def finite(value: object) -> float | None:
    """A number that is one; booleans count as 0 and 1."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _text(value: object) -> str:
    """A text as it is, a conversation as `role: content` lines; anything else is nothing."""
    if isinstance(value, str):
        return value if value.strip() else ""
    if not isinstance(value, list):
        return ""
    turns = [turn for turn in value if isinstance(turn, dict) and isinstance(turn.get("content"), str)]
    return "\n".join(f"{turn.get('role', '')}: {turn['content']}" for turn in turns)
