"""What a run may spend: `max_minutes` and `max_cost` as one limit in seconds over all its attempts, and what is spent.

An attempt counts from the launch of its trainer, data preparation included, to the trainer's end; paused time does not.
budget.json is written by the supervisor only. Seconds are wall-clock: a clock that jumps moves the limit by its jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bashgym.core.clock import epoch_s
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.store.run_dir import RunDir

FILE = "budget.json"
MIN_GRACE_S, GRACE_SHARE, SAVE_GRACE_S = 60.0, 0.1, 600.0


class Limit(NamedTuple):
    """The tighter of the two limits."""

    seconds: float
    field: str
    """max_minutes or max_cost."""

    def grace_s(self, phase: str) -> float:
        """How far beyond the limit a trainer may go that should have ended by itself: a long step, or saving."""
        grace = max(MIN_GRACE_S, GRACE_SHARE * self.seconds)
        return grace + (SAVE_GRACE_S if phase in ("saving", "done") else 0.0)


def limit(request: Mapping[str, Any]) -> Limit | None:
    """The limit of a request, None without one. Money becomes time: max_cost / cost_per_hour hours."""
    minutes, cost, price = request.get("max_minutes"), request.get("max_cost"), request.get("cost_per_hour")
    found = [Limit(60 * float(minutes), "max_minutes")] if minutes is not None else []
    if cost is not None and price:
        found.append(Limit(3600 * float(cost) / float(price), "max_cost"))
    return min(found, default=None)


def used_s(run: RunDir) -> float:
    """Seconds of all attempts so far, the live one included."""
    spent, began = _read(run)
    return spent + (max(0.0, epoch_s() - began) if began is not None else 0.0)


def begin(run: RunDir) -> None:
    """An attempt begins."""
    run.write_json(FILE, {"spent_s": used_s(run), "began": epoch_s()})


def end(run: RunDir, at: float) -> None:
    """The live attempt ended at `at` (seconds since 1970)."""
    spent, began = _read(run)
    if began is not None:
        run.write_json(FILE, {"spent_s": spent + max(0.0, at - began), "began": None})


def carry(failed: RunDir, run: RunDir) -> None:
    """A run that continues another one has spent what that one spent."""
    run.write_json(FILE, {"spent_s": _read(failed)[0], "began": None})


def _read(run: RunDir) -> tuple[float, float | None]:
    try:
        facts: dict[str, Any] = read_object(run.file(FILE))
    except BashGymError:
        return 0.0, None
    return float(facts["spent_s"]), facts["began"]
