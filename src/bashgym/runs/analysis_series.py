"""Metric series in bounded memory: a million points become at most 2048 buckets that keep mean, minimum and maximum.

A step that is reported again (after a resume from a checkpoint) replaces what came at and after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bashgym.evidence.points import PointStream, non_finite
from bashgym.methods.registry import METHODS, metric_aliases

_BUCKETS = 2048
_MAX_NAMES = 512
_FLAGS_KEPT = 1000
_SUMMARY_KEY = "train_runtime"
"""The Trainer's closing line: averages over the run, no point of any series."""
_NOT_SERIES = frozenset({"step", "ts", "epoch", "non_finite"})


@dataclass(slots=True)
class Bucket:
    """One or more neighbouring points."""

    first_step: int
    last_step: int
    count: int
    total: float
    low: float
    high: float
    high_step: int
    last: float

    def merge(self, other: Bucket) -> Bucket:
        """This bucket and the next one as one."""
        high, high_step = max((self.high, self.high_step), (other.high, other.high_step), key=lambda pair: pair[0])
        return Bucket(
            self.first_step,
            other.last_step,
            self.count + other.count,
            self.total + other.total,
            min(self.low, other.low),
            high,
            high_step,
            other.last,
        )

    @property
    def mean(self) -> float:
        """Mean of its points."""
        return self.total / self.count


class Series:
    """One metric over steps."""

    def __init__(self) -> None:
        self.buckets: list[Bucket] = []
        self.first = math.nan
        self._width = 1

    def add(self, step: int, value: float) -> None:
        """Appends a finite value."""
        buckets = self.buckets
        while buckets and buckets[-1].last_step >= step:
            buckets.pop()
        if buckets and (bucket := buckets[-1]).count < self._width:
            bucket.last_step, bucket.last = step, value
            bucket.count += 1
            bucket.total += value
            if value < bucket.low:
                bucket.low = value
            elif value > bucket.high:
                bucket.high, bucket.high_step = value, step
            return
        if not buckets:
            self.first = value
        buckets.append(Bucket(step, step, 1, value, value, value, step, value))
        if len(buckets) > _BUCKETS:
            halves = [a.merge(b) for a, b in zip(buckets[::2], buckets[1::2], strict=False)]
            self.buckets = halves + ([buckets[-1]] if len(buckets) % 2 else [])
            self._width *= 2

    @property
    def count(self) -> int:
        """Points in the series."""
        return sum(bucket.count for bucket in self.buckets)

    @property
    def last(self) -> float:
        """The newest value."""
        return self.buckets[-1].last

    def means(self) -> list[float]:
        """The curve, a value a bucket."""
        return [bucket.mean for bucket in self.buckets]

    def head(self, share: float = 0.2) -> float:
        """Mean over the first part of the curve: one noisy point does not decide."""
        return fmean(self.means()[: self._window(share)])

    def tail(self, share: float = 0.2) -> float:
        """Mean over the last part of the curve."""
        return fmean(self.means()[-self._window(share) :])

    def best(self, share: float = 0.2) -> float:
        """The lowest mean of any window of that length."""
        curve, width = self.means(), self._window(share)
        total = sum(curve[:width])
        lowest = total
        for out, into in zip(curve, curve[width:], strict=False):
            total += into - out
            lowest = min(lowest, total)
        return lowest / width

    def median(self) -> float:
        """Median of the curve."""
        return median(self.means())

    def _window(self, share: float) -> int:
        return max(1, round(len(self.buckets) * share))

    def summary(self) -> dict[str, Any]:
        """{count, first, last, min, max, delta}."""
        low, high = min(b.low for b in self.buckets), max(b.high for b in self.buckets)
        delta = self.last - self.first
        return {"count": self.count, "first": self.first, "last": self.last, "min": low, "max": high, "delta": delta}


@dataclass
class Metrics:
    """Everything that the rules need of one metrics file."""

    points: int = 0
    skipped: int = 0
    first_step: int | None = None
    last_step: int | None = None
    series: dict[str, Series] = field(default_factory=dict)
    """By canonical name."""
    names: dict[str, str] = field(default_factory=dict)
    """Canonical name -> the spelling in the file."""
    flags: list[tuple[int, str, str]] = field(default_factory=list)
    """(step, metric, NaN | Infinity | -Infinity), by step; the first 1000."""
    flagged: int = 0
    """How many such values in all."""

    def get(self, name: str) -> Series | None:
        """The series of a canonical name, or None."""
        return self.series.get(name)

    def last(self, name: str) -> float | None:
        """The newest value of a metric, or None."""
        series = self.series.get(name)
        return series.last if series else None

    def describe(self) -> dict[str, Any]:
        """The `training_metrics` part of an analysis."""
        return {
            "points": self.points,
            "skipped_lines": self.skipped,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "non_finite": [{"step": s, "metric": m, "value": v} for s, m, v in self.flags[:20]],
            "non_finite_count": self.flagged,
            "series": {name: self.series[name].summary() for name in sorted(self.series)},
            "spellings": {name: spelling for name, spelling in self.names.items() if name != spelling},
        }


def read_metrics(path: Path) -> Metrics:
    """Streams a metrics file into series. `file_missing` if it is not there."""
    found = Metrics()
    raw: dict[str, Series] = {}
    stream = PointStream(path)
    for point in stream:
        step = point["step"]
        found.points += 1
        if found.flags and found.flags[-1][0] >= step:
            _unflag(found, step, point)
        finite = _add(raw, point, step, _SUMMARY_KEY in point)
        if not finite or "non_finite" in point:
            _flag(found, step, point)
    found.skipped = stream.skipped
    if raw:
        found.first_step = min(series.buckets[0].first_step for series in raw.values())
        found.last_step = max(series.buckets[-1].last_step for series in raw.values())
    _canonical(found, raw)
    return found


def _add(raw: dict[str, Series], point: dict[str, Any], step: int, closing: bool) -> bool:
    """Adds a point's numbers to their series. False if one of them is no finite number."""
    finite = True
    for name, value in point.items():
        kind = type(value)
        if (kind is not float and kind is not int) or name in _NOT_SERIES:
            continue
        if not math.isfinite(value):
            finite = False
            continue
        series = raw.get(name)
        if series is None:
            if len(raw) >= _MAX_NAMES or (closing and name.startswith("train_")):
                continue
            series = raw[name] = Series()
        elif closing and name.startswith("train_"):
            continue
        series.add(step, value)
    return finite


def _flag(found: Metrics, step: int, point: dict[str, Any]) -> None:
    for name, flag in non_finite(point).items():
        found.flagged += 1
        if len(found.flags) < _FLAGS_KEPT:
            found.flags.append((step, name, flag))


def _unflag(found: Metrics, step: int, point: dict[str, Any]) -> None:
    """Drops flags that a newer, finite report of the same step took back."""
    kept = [f for f in found.flags if f[0] < step or (f[0] == step and point.get(f[1]) is None)]
    found.flagged -= len(found.flags) - len(kept)
    found.flags = kept


def _canonical(found: Metrics, raw: dict[str, Series]) -> None:
    """Of several spellings of one metric the method's own wins, then the canonical, then the longest series."""
    aliases = metric_aliases()
    own = {metric.key: metric.name for method in METHODS.values() for metric in method.metrics}
    rank = {name: (name in own, name == aliases.get(name, name), series.count) for name, series in raw.items()}
    for spelling in sorted(raw, key=lambda name: rank[name]):
        name = aliases.get(spelling, spelling)
        found.series[name], found.names[name] = raw[spelling], spelling
