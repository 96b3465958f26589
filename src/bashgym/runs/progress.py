"""Progress and time left, from what the trainer has reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def progress_of(
    phase: Mapping[str, Any], steps: Sequence[tuple[float, int]], last: Mapping[str, Any]
) -> dict[str, Any]:
    """{step, total_steps, epoch, eta_s, tokens_per_second}; the speed is that of the last 200 reported steps."""
    total = phase.get("total_steps")
    step = steps[-1][1] if steps else int(phase.get("start_step") or 0)
    found: dict[str, Any] = {"step": step, "total_steps": total}
    for name in ("epoch", "tokens_per_second"):
        if last.get(name) is not None:
            found[name] = last[name]
    if total and len(steps) > 1 and steps[-1][1] > steps[0][1]:
        pace_s = (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])
        found["eta_s"] = round(max(0.0, (int(total) - step) * pace_s), 1)
    return found
