"""The one transition table of a run."""

from __future__ import annotations

from bashgym.core.errors import fail
from bashgym.store.run_dir import TERMINAL, RunStatus

S = RunStatus
TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    S.QUEUED: frozenset({S.PREPARING, S.STOPPING, S.FAILED, S.CANCELLED}),
    S.PREPARING: frozenset({S.RUNNING, S.PAUSING, S.PAUSED, S.STOPPING, S.COMPLETED, S.FAILED, S.CANCELLED, S.UNKNOWN}),
    S.RUNNING: frozenset({S.PAUSING, S.PAUSED, S.STOPPING, S.COMPLETED, S.FAILED, S.CANCELLED, S.UNKNOWN}),
    S.PAUSING: frozenset({S.PAUSED, S.RUNNING, S.STOPPING, S.COMPLETED, S.FAILED, S.CANCELLED, S.UNKNOWN}),
    S.PAUSED: frozenset({S.QUEUED, S.STOPPING, S.FAILED, S.CANCELLED}),
    S.STOPPING: frozenset({S.CANCELLED, S.COMPLETED, S.FAILED, S.UNKNOWN}),
    S.UNKNOWN: frozenset({S.RUNNING, S.PAUSED, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.COMPLETED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}


def check_transition(run_id: str, current: RunStatus, wanted: RunStatus) -> None:
    """`run_finished` or `invalid_transition` when the table has no such edge; a state to itself is no change."""
    if wanted == current or wanted in TRANSITIONS[current]:
        return
    if current in TERMINAL:
        raise fail("run_finished", f"{run_id} is {current}; it cannot become {wanted}", hint="Start a new run instead.")
    raise fail("invalid_transition", f"{run_id} is {current}; it cannot become {wanted}")
