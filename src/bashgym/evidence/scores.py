"""Reads per-example score files again and says what they hold, independent of the report that summarises them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from bashgym.store.jsonl import JsonlTail

FORMAT_FAULTS = frozenset({"format_error", "unparsable", "no_command", "no_tool_call"})
"""Score states of an answer that did not parse as what was asked for."""


@dataclass
class Scores:
    """One side of a comparison."""

    passed: dict[str, list[float]] = field(default_factory=dict)
    """Item -> 0/1 per scored attempt. An attempt that could not be judged is absent, not a miss."""
    clusters: dict[str, str] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    doubled: list[str] = field(default_factory=list)
    """`item#attempt` keys that occur more than once."""
    unreadable: int = 0
    prompts: dict[str, Any] = field(default_factory=dict)
    """Item -> prompt, a string or a list of messages."""

    def rate(self) -> float | None:
        """Mean over items of the mean over attempts."""
        return fmean(fmean(tries) for tries in self.passed.values()) if self.passed else None

    def share(self, *states: str) -> float | None:
        """Share of lines in one of these states; None without lines."""
        return sum(self.states[state] for state in states) / self.lines if self.lines else None

    def format_validity(self) -> float | None:
        """Share of answers that parsed; None where no state was recorded."""
        faults = self.share(*FORMAT_FAULTS)
        return None if faults is None or not self.states else 1.0 - faults


def read_scores(path: Path) -> Scores:
    """Every line of a score file. Lines that are no objects or lack their item are counted in `unreadable`."""
    found, seen = Scores(), set[str]()
    tail = JsonlTail(path)
    while rows := tail.read_new(10_000):
        for row in rows:
            _take(row, found, seen)
    found.unreadable += tail.skipped
    return found


def _take(row: dict[str, Any], found: Scores, seen: set[str]) -> None:
    item = row.get("item_id")
    if not isinstance(item, str) or not item:
        found.unreadable += 1
        return
    key = f"{item}#{row.get('attempt', 0)}"
    if key in seen:
        found.doubled.append(key)
    seen.add(key)
    found.lines += 1
    if isinstance(row.get("status"), str):
        found.states[row["status"]] += 1
    found.clusters[item] = str(row.get("cluster", ""))
    if row.get("prompt"):
        found.prompts.setdefault(item, row["prompt"])
    passed = row.get("passed")
    if isinstance(passed, bool):
        found.passed.setdefault(item, []).append(float(passed))


def paired(candidate: Scores, baseline: Scores) -> tuple[int, int, float | None]:
    """(items scored on both sides, their clusters, mean difference candidate - baseline)."""
    both = sorted(candidate.passed.keys() & baseline.passed.keys())
    if not both:
        return 0, 0, None
    effect = fmean(fmean(candidate.passed[item]) - fmean(baseline.passed[item]) for item in both)
    return len(both), len({candidate.clusters[item] for item in both}), effect
