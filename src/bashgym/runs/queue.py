"""The queue: registered runs that wait until a training slot is free, in an order that can be changed.

It is files below `BASHGYM_DIR/queue`: `waiting/<run_id>.json` for each run that waits and `launched/<run_id>.json` for
each that got a supervisor. No process owns it: `advance` is called by whoever notices (a supervisor whose run has
ended, a start, `training get`, the server), and under one file lock exactly one of them launches the next run.
A run started without `--queue`, or resumed, takes a slot and does not wait for one.

Covers: kill -9 of any caller at any line, and any number of callers at once. Does not cover: a shared BASHGYM_DIR whose
file system has no flock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bashgym.core.clock import epoch_s, utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object
from bashgym.core.process import ProcessIdentity, identity, is_alive
from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger
from bashgym.runs.reconcile import ensure_supervised, mark_launched, queue_dir, spawn_supervisor, waits
from bashgym.store.run_dir import TERMINAL, RunDir, RunStatus

UNBORN_S = 600.0
"""A waiting entry whose run directory never became whole is dropped after this long, or once its starter is dead."""
_FREE = TERMINAL | {RunStatus.PAUSED, RunStatus.UNKNOWN}


def add(run: RunDir, settings: Settings, *, stop_on_error: bool) -> None:
    """Puts `run` at the end. To be called before run_state.json is written: a run that exists is launched by a look."""
    folder = queue_dir(settings, "waiting")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(settings):
        entry = {
            "run_id": run.run_id,
            "run_dir": str(run.path),
            "order": max((e["order"] for e in _entries(settings, "waiting")), default=0) + 1,
            "stop_on_error": stop_on_error,
            "added_at": utc_now(),
            "added_epoch_s": epoch_s(),
            "starter": identity().as_dict(),
        }
        atomic_write_json(folder / f"{run.run_id}.json", entry)


def advance(settings: Settings, *, go_on: bool = False) -> list[str]:
    """Launches what has a slot and returns its ids. `go_on` lifts a hold that a failed run with stop_on_error left."""
    if not queue_dir(settings).is_dir():
        return []
    with _locked(settings):
        active = _active(settings)
        if go_on:
            _hold_file(settings).unlink(missing_ok=True)
        for run in active:
            ensure_supervised(run, settings)
        if held(settings):
            return []
        return [_launch(entry, settings) for entry in _ready(settings)[: max(0, settings.queue_slots - len(active))]]


def listing(settings: Settings) -> dict[str, Any]:
    """{slots, held, active, waiting}: who trains, who waits in which order, and why nothing goes on if so."""
    if not queue_dir(settings).is_dir():
        return {"slots": settings.queue_slots, "held": None, "active": [], "waiting": []}
    with _locked(settings):
        active, ready = _active(settings), _ready(settings)
    running = [
        {"run_id": run.run_id, "status": str(run.state().status), "output_path": str(run.path)} for run in active
    ]
    waiting = [
        {
            "position": position,
            "run_id": entry["run_id"],
            "strategy": RunDir(Path(entry["run_dir"])).state().strategy,
            "stop_on_error": entry["stop_on_error"],
            "added_at": entry["added_at"],
            "output_path": entry["run_dir"],
        }
        for position, entry in enumerate(ready, 1)
    ]
    return {"slots": settings.queue_slots, "held": held(settings), "active": running, "waiting": waiting}


def move(run_id: str, to: int, settings: Settings) -> None:
    """Makes `run_id` the one at position `to` (from 1; beyond the end is the end). `not_queued` if it does not wait."""
    if to < 1:
        raise fail("invalid_field", f"there is no position {to}; the first is 1", fields=["to"])
    with _locked(settings):
        order = _ready(settings)
        mine = [entry for entry in order if entry["run_id"] == run_id]
        if not mine:
            raise not_queued(run_id)
        order.remove(mine[0])
        order.insert(to - 1, mine[0])
        for number, entry in enumerate(order, 1):
            if entry["order"] != number:
                atomic_write_json(_waiting_file(settings, entry["run_id"]), {**entry, "order": number})


def cancel(run: RunDir, settings: Settings, ledger: Ledger) -> bool:
    """Ends a run that still waits; False if it does not. Under the lock, so that it is either launched or cancelled."""
    with _locked(settings):
        if not waits(run, settings):
            return False
        state = run.state()
        state.status, state.completed_at, state.message = RunStatus.CANCELLED, utc_now(), "cancelled while it waited"
        run.append_event("training-cancelled", attempt=state.attempt)
        run.write_state(state)
        withdraw(run, settings)
    ledger.set_status(run.run_id, "cancelled", attempt=state.attempt, message=state.message, catch_up=True)
    return True


def withdraw(run: RunDir, settings: Settings) -> None:
    """Takes the entry of a run out, if it has one."""
    _waiting_file(settings, run.run_id).unlink(missing_ok=True)


def held(settings: Settings) -> dict[str, Any] | None:
    """The failed run that holds the queue, or None."""
    try:
        return read_object(_hold_file(settings))
    except BashGymError:
        return None


def not_queued(run_id: str) -> BashGymError:
    """The refusal of a queue order for a run that does not wait."""
    return fail(
        "not_queued",
        f"{run_id} does not wait in the queue",
        hint="`bashgym training queue list` shows what waits; `bashgym training stop` ends a run that trains.",
        fields=["run_id"],
    )


def _launch(entry: dict[str, Any], settings: Settings) -> str:
    """Killed between any two lines, the next look finds the run waiting, or launched and in need of a supervisor."""
    run = RunDir(Path(entry["run_dir"]))
    mark_launched(run, settings, stop_on_error=bool(entry["stop_on_error"]))
    withdraw(run, settings)
    spawn_supervisor(run, settings)
    return run.run_id


def _ready(settings: Settings) -> list[dict[str, Any]]:
    """The waiting entries in order whose runs are whole; entries of runs that never came to be are dropped."""
    ready = []
    for entry in _entries(settings, "waiting"):
        run = RunDir(Path(entry["run_dir"]))
        if not run.exists():
            if not is_alive(ProcessIdentity.from_dict(entry["starter"])) or _age_s(entry) > UNBORN_S:
                withdraw(run, settings)
        elif run.state().status != RunStatus.QUEUED:
            withdraw(run, settings)  # cancelled by one who died before taking the entry out
        else:
            ready.append(entry)
    return sorted(ready, key=lambda entry: (entry["order"], entry["added_at"]))


def _active(settings: Settings) -> list[RunDir]:
    """The launched runs that hold a slot. Those that have ended are forgotten; a failed one may hold the queue."""
    active = []
    for entry in _entries(settings, "launched"):
        run = RunDir(Path(entry["run_dir"]))
        if waits(run, settings):
            continue
        try:
            status = run.state().status
        except BashGymError:
            status = RunStatus.UNKNOWN
        if status not in _FREE:
            active.append(run)
            continue
        if status == RunStatus.FAILED and entry.get("stop_on_error"):
            atomic_write_json(_hold_file(settings), {"run_id": run.run_id, "since": utc_now()})
        (queue_dir(settings, "launched") / f"{run.run_id}.json").unlink(missing_ok=True)
    return active


def _entries(settings: Settings, kind: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted(queue_dir(settings, kind).glob("*.json")):
        try:
            entry: dict[str, Any] = read_object(path)
        except BashGymError:
            continue  # removed since the listing
        found.append(entry)
    return found


def _age_s(entry: dict[str, Any]) -> float:
    return time.time() - float(entry["added_epoch_s"])


def _waiting_file(settings: Settings, run_id: str) -> Path:
    return queue_dir(settings, "waiting") / f"{run_id}.json"


def _hold_file(settings: Settings) -> Path:
    return queue_dir(settings) / "held.json"


@contextmanager
def _locked(settings: Settings) -> Iterator[None]:
    folder = queue_dir(settings)
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
