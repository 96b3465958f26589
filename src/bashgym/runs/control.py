"""Pause, resume and stop. An order is a file; the supervisor (and for pause the trainer) obeys it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger
from bashgym.runs import queue
from bashgym.runs.lifecycle import check_transition
from bashgym.runs.reconcile import ensure_supervised, lock_held, spawn_supervisor
from bashgym.store.checkpoints import last_valid
from bashgym.store.run_dir import TERMINAL, RunDir, RunState, RunStatus

STOP_WAIT_S = 12.0


def pause(run: RunDir, settings: Settings) -> dict[str, Any]:
    """Leaves the order; the answer comes at once, the pause at the next optimizer step."""
    ensure_supervised(run, settings)
    state = run.state()
    if state.status == RunStatus.PAUSED:
        return _answer(state, "already paused")
    check_transition(run.run_id, state.status, RunStatus.PAUSING)
    run.write_control("pause")
    return _answer(state, "pausing: a checkpoint is taken at the next optimizer step, then the memory is released")


def resume(run: RunDir, settings: Settings) -> dict[str, Any]:
    """Queues a paused run again, from its last valid checkpoint."""
    state = run.state()
    if state.status == RunStatus.PAUSING:
        run.clear_control()
        return _answer(
            state, "the pause was taken back, if the trainer had not yet obeyed; otherwise resume once it is paused"
        )
    check_transition(run.run_id, state.status, RunStatus.QUEUED)
    checkpoint = valid_checkpoint(run)
    run.clear_control()
    state.status, state.attempt, state.supervisor, state.trainer = RunStatus.QUEUED, state.attempt + 1, None, None
    state.queued_at, state.message, state.error, state.exit = utc_now(), f"continues from {checkpoint.name}", None, None
    run.append_event("training-resumed", checkpoint=checkpoint.name, attempt=state.attempt)
    run.write_state(state)
    spawn_supervisor(run, settings)
    return _answer(state, state.message)


def stop(run: RunDir, settings: Settings, ledger: Ledger) -> dict[str, Any]:
    """Ends the run. Waits until it has ended, at most about twelve seconds; a finished run is refused."""
    ensure_supervised(run, settings)
    state = run.state()
    check_transition(run.run_id, state.status, RunStatus.STOPPING)
    if state.status == RunStatus.QUEUED and queue.cancel(run, settings, ledger):
        return _answer(run.state(), "cancelled while it waited in the queue")
    if state.status == RunStatus.PAUSED:
        _cancel_paused(run, state, ledger)
        return _answer(run.state(), "cancelled")
    run.write_control("stop")
    end = time.monotonic() + STOP_WAIT_S
    while time.monotonic() < end:
        state = run.state()
        if state.status in TERMINAL:
            break
        if state.status == RunStatus.PAUSED and not lock_held(run):
            _cancel_paused(run, state, ledger)
        time.sleep(0.05)
    return _answer(state, "stopped" if state.status in TERMINAL else "stopping: the process group is being ended")


def _cancel_paused(run: RunDir, state: RunState, ledger: Ledger) -> None:
    """A paused run has no process: its state is ours to end."""
    state.status, state.completed_at, state.message = RunStatus.CANCELLED, utc_now(), "stopped while paused"
    run.clear_control()
    run.append_event("training-cancelled", attempt=state.attempt)
    run.write_state(state)
    ledger.set_status(run.run_id, "cancelled", attempt=state.attempt, message=state.message)


def valid_checkpoint(run: RunDir) -> Path:
    """The newest checkpoint that can be trusted; `no_checkpoint` says what is wrong with those that can't."""
    checkpoint, passed_over = last_valid(run.path)
    if checkpoint is None:
        hint = "Start a new run. A smaller save_steps keeps more."
        lost = next((reason for reason in passed_over if "optimizer" in reason), None)
        if lost:
            folder = run.file(lost.partition(":")[0])
            hint = f"Its weights can be trained on with a fresh optimizer: start a new run with base_model {folder}."
        raise fail(
            "no_checkpoint",
            f"{run.run_id} has no valid checkpoint" + (": " + "; ".join(passed_over) if passed_over else ""),
            hint=hint,
        )
    return checkpoint


def same_data(run: RunDir, dataset_digest: str, model_digest: str) -> None:
    """A checkpoint only means something with the bytes it was trained on; `digest_mismatch` otherwise."""
    manifest = run.manifest()
    for what, then, now in (
        ("dataset", manifest["dataset"]["digest"], dataset_digest),
        ("model", manifest["model"]["digest"], model_digest),
    ):
        if then != now:
            raise fail(
                "digest_mismatch",
                f"the {what} of {run.run_id} has changed since: it was {then[:12]}…, it is {now[:12]}…",
                fields=[what],
            )


def _answer(state: RunState, message: str) -> dict[str, Any]:
    return {"success": True, "run_id": state.run_id, "status": str(state.status), "message": message}
