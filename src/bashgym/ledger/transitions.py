"""The one table of run status changes in the ledger, and how a run directory's states map onto it."""

from __future__ import annotations

from enum import StrEnum

from bashgym.core.errors import fail


class Status(StrEnum):
    """Status of a run or an attempt."""

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    PAUSED = "paused"
    UNKNOWN = "unknown"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = Status
ALLOWED: dict[Status, tuple[Status, ...]] = {
    _S.QUEUED: (_S.PREPARING, _S.RUNNING, _S.FAILED, _S.CANCELLED),
    _S.PREPARING: (_S.RUNNING, _S.FAILED, _S.CANCELLED),
    _S.RUNNING: (_S.PAUSED, _S.UNKNOWN, _S.COMPLETED, _S.FAILED, _S.CANCELLED),
    _S.PAUSED: (_S.RUNNING, _S.FAILED, _S.CANCELLED),
    _S.UNKNOWN: (_S.RUNNING, _S.COMPLETED, _S.FAILED, _S.CANCELLED),
    _S.COMPLETED: (),
    _S.FAILED: (),
    _S.CANCELLED: (),
}
ACTIVE = (_S.QUEUED, _S.PREPARING, _S.RUNNING, _S.PAUSED, _S.UNKNOWN)
TERMINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})


def reported(current: Status, state: str) -> Status:
    """The ledger status that a run directory's `state` stands for.

    `pausing` and `stopping` are on their way somewhere and change nothing; a paused run whose next attempt is
    queued or preparing stays paused until it runs.
    """
    if state in ("pausing", "stopping") and current not in TERMINAL:
        return current
    if current is _S.PAUSED and state in (_S.QUEUED, _S.PREPARING):
        return current
    try:
        return Status(state)
    except ValueError as error:
        raise fail("ledger_invalid_transition", f"{state!r} is not a run status", fields=["status"]) from error


def path(current: Status, target: Status) -> tuple[Status, ...]:
    """The shortest allowed way from `current` to `target`, without `current`; `ledger_invalid_transition` if none."""
    ways: list[tuple[Status, ...]] = [()]
    seen = {current}
    while ways:
        way = ways.pop(0)
        at = way[-1] if way else current
        if at is target:
            return way
        for following in ALLOWED[at]:
            if following not in seen:
                seen.add(following)
                ways.append((*way, following))
    raise refuse("run", current, target)


def step(what: str, current: Status, target: Status) -> None:
    """Passes an allowed change; `ledger_invalid_transition` otherwise."""
    if target not in ALLOWED[current]:
        raise refuse(what, current, target)


def refuse(what: str, current: Status, target: Status) -> Exception:
    """The error of a change that the table does not have."""
    follow = ", ".join(ALLOWED[current]) or "nothing, it has ended"
    return fail(
        "ledger_invalid_transition",
        f"{what} is {current} and cannot become {target}",
        hint=f"After {current} comes: {follow}.",
        fields=["status"],
    )
