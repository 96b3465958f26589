"""Timing helpers and the result table."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One line of the table: a quantity, ours, theirs."""

    quantity: str
    ours: float
    unit: str
    must: str = ""
    other: str = ""
    theirs: float | None = None
    bigger_is_better: bool = False

    def ratio(self) -> str:
        """How many times better ours is; below 1 it is worse."""
        if self.theirs is None or not self.ours or not self.theirs:
            return ""
        value = self.ours / self.theirs if self.bigger_is_better else self.theirs / self.ours
        return f"{value:.3g}×"


def shown(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def command_ms(
    argv: Sequence[str], *, repeats: int = 7, env: dict[str, str] | None = None, cwd: str | None = None
) -> float:
    """Median wall time of a whole process, in ms; the first run warms the caches and does not count."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        subprocess.run(argv, capture_output=True, check=True, env={**os.environ, **(env or {})}, cwd=cwd)
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times[1:])


def seconds(work: Callable[[], object], *, repeats: int = 3) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def table(results: Sequence[Result]) -> str:
    """Markdown."""
    lines = [
        "| quantity | ours | unit | must | beside it | theirs | ours is better by |",
        "|---|---:|---|---|---|---:|---:|",
    ]
    for r in results:
        lines.append(
            f"| {r.quantity} | {shown(r.ours)} | {r.unit} | {r.must} | {r.other} | {shown(r.theirs)} | {r.ratio()} |"
        )
    return "\n".join(lines)
