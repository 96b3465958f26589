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
    keys: set[str] = field(default_factory=set)
    """`item#attempt` of every line."""
    observed: set[str] = field(default_factory=set)
    """Those that were judged."""
    doubled: list[str] = field(default_factory=list)
    """Keys that occur more than once."""
    unreadable: int = 0
    prompts: dict[str, Any] = field(default_factory=dict)
    """Item -> prompt, a string or a list of messages."""

    def rate(self) -> float | None:
        """Mean over items of the mean over attempts."""
        return fmean(fmean(tries) for tries in self.passed.values()) if self.passed else None

    def share(self, *states: str) -> float | None:
        """Share of attempts in one of these states; None without attempts."""
        return sum(self.states[state] for state in states) / len(self.keys) if self.keys else None

    def format_validity(self) -> float | None:
        """Share of answers that parsed; None where no state was recorded."""
        faults = self.share(*FORMAT_FAULTS)
        return None if faults is None or not self.states else 1.0 - faults


def read_scores(path: Path) -> Scores:
    """Every line of a score file. Lines that are no objects or lack their item are counted in `unreadable`."""
    found = Scores()
    tail = JsonlTail(path)
    while rows := tail.read_new(10_000):
        for row in rows:
            _take(row, found)
    found.unreadable += tail.skipped
    return found


def _take(row: dict[str, Any], found: Scores) -> None:
    item = row.get("item_id")
    if not isinstance(item, str) or not item:
        found.unreadable += 1
        return
    key = f"{item}#{row.get('attempt', 0)}"
    if key in found.keys:
        found.doubled.append(key)
        return
    found.keys.add(key)
    if isinstance(row.get("status"), str):
        found.states[row["status"]] += 1
    found.clusters[item] = str(row.get("cluster") or item)
    if row.get("prompt"):
        found.prompts.setdefault(item, row["prompt"])
    passed = row.get("passed")
    if isinstance(passed, bool):
        found.observed.add(key)
        found.passed.setdefault(item, []).append(float(passed))


@dataclass(frozen=True)
class Pairing:
    """Items scored on both sides, in order of their ids."""

    differences: list[float]
    """Candidate minus baseline, each the mean over an item's attempts."""
    clusters: list[str]

    @property
    def effect(self) -> float | None:
        """Mean difference; None without items."""
        return fmean(self.differences) if self.differences else None

    def lower_bound(self) -> float | None:
        """The lower end of the effect's 95 % interval by the gate's own method, the cluster bootstrap, computed here.

        A second opinion on a report's own interval: a report that calls noise an improvement does not survive it.
        """
        from bashgym.evals.stats import cluster_bootstrap

        if len(self.differences) < 2 or len(set(self.clusters)) < 2:
            return None
        return float(cluster_bootstrap(self.differences, self.clusters, n_resamples=4000).low)


def paired(candidate: Scores, baseline: Scores) -> Pairing:
    """The items that both sides scored."""
    both = sorted(candidate.passed.keys() & baseline.passed.keys())
    differences = [fmean(candidate.passed[item]) - fmean(baseline.passed[item]) for item in both]
    return Pairing(differences, [candidate.clusters[item] for item in both])
