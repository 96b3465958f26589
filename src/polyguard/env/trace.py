"""The record of an episode: a row a step, and a digest that is the same for the same seed and answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bashgym.core.canonical import digest_bytes, digest_json
from bashgym.core.files import atomic_write_bytes
from polyguard.env.types import Termination

if TYPE_CHECKING:
    from polyguard.env.types import Candidate, Observation, StepResult

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def row(step: int, before: Observation, candidate: Candidate | None, result: StepResult) -> dict[str, Any]:
    """What is kept of a step. Holds true risks: not for agents."""
    return {
        "step": step,
        "observation": before,
        "candidate": candidate,
        "verdict": result.verdict,
        "reward": result.reward,
        "reward_breakdown": result.breakdown,
        "primary_reward_channels": result.channels,
        "transition": result.transition,
        "failure_reasons": result.failure_reasons,
        "anti_cheat_reasons": result.anti_cheat,
        "checks": result.checks,
        "timeout": result.termination in (Termination.STEP_TIMEOUT, Termination.WALL_CLOCK_TIMEOUT),
        "termination_reason": result.termination,
    }


def plain(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as JSON values, each observation as its digest."""
    made: list[dict[str, Any]] = []
    for item in rows:
        value = msgspec.to_builtins({key: part for key, part in item.items() if key != "observation"})
        value["transition"]["supporting_facts"] = sorted(value["transition"]["supporting_facts"])
        seen = msgspec.to_builtins(item["observation"])
        made.append({"observation_sha256": digest_json(seen), **value})
    return made


def file_name(episode_id: str) -> str:
    """The name of an episode's file. An id is foreign text: the digest keeps two of them apart, and no part is a path."""
    return f"{_UNSAFE.sub('-', episode_id)[:80].strip('-')}-{digest_bytes(episode_id.encode('utf-8', 'replace'))[:8]}.jsonl"


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes JSONL, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(path, _lines(rows))


def digest(rows: Sequence[dict[str, Any]]) -> str:
    """sha256 of the JSONL."""
    return digest_bytes(_lines(rows))


def _lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(line, order="sorted") + b"\n" for line in plain(rows))
