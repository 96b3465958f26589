"""`python -m bashgym.runs.supervisor RUN_DIR`: the one small process that owns a live run. No torch.

Launches the trainer (or adopts the one that a killed predecessor left), tails metrics into the index, heartbeats,
obeys control.json, and records how it ended. While it holds supervisor.lock it is the only writer of run_state.json
and events.jsonl's lifecycle entries. The database is an index: if it is not reachable, the run goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bashgym.core.clock import epoch_s, utc_now
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.core.process import ProcessIdentity, end_group, identity, is_alive
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.runs import delivery, queue, verdicts
from bashgym.runs.index import RunIndex
from bashgym.runs.lifecycle import check_transition
from bashgym.runs.progress import progress_of
from bashgym.runs.reconcile import take_lock
from bashgym.store import budget
from bashgym.store.jsonl import JsonlTail
from bashgym.store.run_dir import TERMINAL, RunDir, RunState, RunStatus
from bashgym.training import trackers

POLL_S = 0.1
HEARTBEAT_S = 2.0
STATE_INTERVAL_S = 0.5
GRACE_S = 8.0
LIMIT_INTERVAL_S = 1.0
NICENESS = 5
"""The trainer is worth more than its watcher where both want the same core."""


class Supervisor:
    """One attempt of one run, from launch or adoption to its end."""

    def __init__(self, run: RunDir, settings: Settings) -> None:
        self.run, self.settings = run, settings
        self.state: RunState = run.state()
        self.index = RunIndex(run, settings)
        self.tail = JsonlTail(run.metrics_path)
        self.child: subprocess.Popen[bytes] | None = None
        self.phase: dict[str, Any] = {}
        self._written = 0.0
        self._phase_changed = 0
        self._steps: list[tuple[float, int]] = []
        self._limit = budget.limit(run.request())
        self._limit_seen, self._reason = 0.0, ""
        self._last_heartbeat = self.state.heartbeat

    def supervise(self) -> None:
        """Runs until the trainer has ended and its end is recorded."""
        adopted = self._adopt()
        if self.state.status in TERMINAL | {RunStatus.PAUSED}:
            return
        if not adopted:
            if self.state.status != RunStatus.QUEUED:
                # Our predecessor and its trainer are both gone: its files say how and when it ended.
                self._finish(None, verdicts.ended_at(self.run, self._last_heartbeat))
                return
            if self.run.control() == "stop":
                self._close(RunStatus.CANCELLED, "stopped before the trainer began", None, None)
                return
            self._launch()
        code = self._watch()
        self._finish(code, epoch_s())

    def _adopt(self) -> bool:
        """True if the trainer of this run lives: exactly that process, not one that got its pid."""
        mine = identity()
        self.state.trainer = trainer = self.state.trainer or self._recorded_trainer()
        alive = bool(trainer) and is_alive(ProcessIdentity.from_dict(trainer or {}))
        if alive:
            self.run.append_event("supervisor-adopted", supervisor=mine.pid, trainer=trainer)
        if self.state.status not in TERMINAL | {RunStatus.PAUSED}:
            self.state.supervisor = mine.as_dict()
            self._write(force=True)
        return alive

    def _recorded_trainer(self) -> dict[str, Any] | None:
        """What a trainer says of itself, for a predecessor killed before it could write that down."""
        if self.state.status == RunStatus.QUEUED:
            return None
        try:
            return read_object(self.run.file("trainer_process.json"))
        except BashGymError:
            return None

    def _launch(self) -> None:
        self._become(RunStatus.PREPARING, "loading model and data")
        for name in ("trainer.json", "trainer_process.json", "trainer_exit.json", "trainer_error.json"):
            self.run.file(name).unlink(missing_ok=True)
        command = [self.settings.training_python, "-u", "-m", "bashgym.training", str(self.run.path)]
        env = child_env(
            TOKENIZERS_PARALLELISM="false",
            HF_HUB_OFFLINE="1",
            TRANSFORMERS_VERBOSITY="warning",
            PYTHONFAULTHANDLER="1",
            **trackers.environment(self.run.path, self.run.request()["report_to"]),
        )
        budget.begin(self.run)
        with self.run.log_path.open("ab") as log:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=env
            )
        who = identity(self.child.pid)
        self.state.trainer = who.as_dict()
        self._write(force=True)
        self.run.append_event("training-started", attempt=self.state.attempt, trainer=self.state.trainer)
        self.index.status(RunStatus.PREPARING, self.state)

    def _watch(self) -> int | None:
        """Follows the trainer to its end; returns its exit status (negative: signal) or None if it was not our child."""
        os.nice(NICENESS)  # after the launch: a child would inherit it
        while True:
            ended, code = self._poll()
            self._read_metrics()
            self._read_phase()
            self._obey()
            self._enforce_limit()
            self._write()
            if ended:
                self._read_metrics()
                self._read_phase()
                return code
            time.sleep(POLL_S)

    def _poll(self) -> tuple[bool, int | None]:
        if self.child is not None:
            code = self.child.poll()
            return code is not None, code
        return not is_alive(ProcessIdentity.from_dict(self.state.trainer or {})), None

    def _read_metrics(self) -> None:
        points = self.tail.read_new()
        self.index.add(points, self.state.attempt)
        if not points:
            return
        for point in points:
            values = {k: v for k, v in point.items() if k not in ("ts", "non_finite")}
            self.state.last_metrics = {**self.state.last_metrics, **values}
            self._steps.append((float(point.get("ts", epoch_s())), int(point["step"])))
        self._steps = self._steps[-200:]
        self.state.progress = progress_of(self.phase, self._steps, self.state.last_metrics)

    def _read_phase(self) -> None:
        try:
            changed = self.run.file("trainer.json").stat().st_mtime_ns
            if changed == self._phase_changed:
                return
            self.phase = read_object(self.run.file("trainer.json"))
        except (BashGymError, OSError):
            return
        self._phase_changed = changed
        if self.phase.get("phase") == "training" and self.state.status == RunStatus.PREPARING:
            self.state.started_at = self.state.started_at or utc_now()
            self._become(RunStatus.RUNNING, "training")
            self.index.status(RunStatus.RUNNING, self.state)
            self.state.progress = progress_of(self.phase, self._steps, self.state.last_metrics)

    def _obey(self) -> None:
        order = self.run.control()
        if order == "stop":
            self._end_trainer("ending the process group")
        elif order == "pause" and self.state.status == RunStatus.RUNNING:
            self._become(RunStatus.PAUSING, "waiting for the next optimizer step")
        elif not order and self.state.status == RunStatus.PAUSING:
            self._become(RunStatus.RUNNING, "training")

    def _end_trainer(self, message: str) -> None:
        if self.state.status != RunStatus.STOPPING:
            self._become(RunStatus.STOPPING, message)
            end_group(ProcessIdentity.from_dict(self.state.trainer or {}), GRACE_S)

    def _enforce_limit(self) -> None:
        """The backstop of max_minutes and max_cost, for a trainer that hangs or is still preparing its data."""
        if self._limit is None or time.monotonic() - self._limit_seen < LIMIT_INTERVAL_S:
            return
        self._limit_seen = time.monotonic()
        if budget.used_s(self.run) > self._limit.seconds + self._limit.grace_s(str(self.phase.get("phase", ""))):
            self._reason = f"stopped by {self._limit.field}: the trainer did not end by itself within the grace period"
            self.run.append_event("budget-enforced", limit=self._limit.field, phase=self.phase.get("phase"))
            self._end_trainer(self._reason)

    def _finish(self, code: int | None, ended: float) -> None:
        budget.end(self.run, ended)
        verdict = verdicts.judge(self.run, self.state, code)
        # Loader workers and ranks of a killed trainer share its group.
        if self.state.trainer:
            end_group(ProcessIdentity.from_dict(self.state.trainer), 0.0)
        message = self._reason if verdict.status == RunStatus.CANCELLED and self._reason else verdict.message
        if verdict.status == RunStatus.COMPLETED and delivery.due(self.run, self.settings):
            remark = self._deliver()
            message = f"{message}; {remark}" if remark else message
        self._close(verdict.status, message, verdict.error, verdict.exit)

    def _deliver(self) -> str:
        """Exports and pushes in a child of its own; what failed, in words. An order to stop ends that, not the run."""
        self.state.message = "exporting and publishing"
        command = [sys.executable, "-u", "-m", "bashgym.runs.delivery", str(self.run.path)]
        env = child_env(HF_HUB_DISABLE_PROGRESS_BARS="1")
        with self.run.log_path.open("ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=env
            )
        who = identity(child.pid)
        while child.poll() is None:
            if self.run.control() == "stop":
                end_group(who, GRACE_S)
                self.run.append_event("delivery-stopped")
            self._write()
            time.sleep(POLL_S)
        ended = f"what follows the training (export, push) ended with status {child.returncode}"
        return delivery.remark(self.run) or (ended if child.returncode else "")

    def _close(
        self, status: RunStatus, message: str, error: dict[str, Any] | None, exit_: dict[str, Any] | None
    ) -> None:
        state = self.state
        state.last_checkpoint = verdicts.last_checkpoint(self.run, status)
        state.error, state.exit = error, exit_
        if status in TERMINAL:
            state.completed_at = utc_now()
        if status == RunStatus.COMPLETED:
            message = verdicts.write_profile(self.run, state) or message
        self.run.clear_control()
        self.run.append_event(
            f"training-{status}", attempt=state.attempt, exit=exit_, error=error, last_checkpoint=state.last_checkpoint
        )
        self._become(status, message)
        self.index.ended(status, state)

    def _become(self, status: RunStatus, message: str) -> None:
        check_transition(self.run.run_id, self.state.status, status)
        self.state.status, self.state.message = status, message
        self._write(force=True)

    def _write(self, *, force: bool = False) -> None:
        """Heartbeat and progress, at most twice a second."""
        now = time.monotonic()
        if not force and now - self._written < STATE_INTERVAL_S:
            return
        self._written = now
        self.state.heartbeat = utc_now()
        self.run.write_state(self.state)


def main(run_path: Path) -> int:
    """Supervises unless another one does."""
    run, settings = RunDir(run_path), Settings.from_env()
    lock = take_lock(run)
    if lock is None:
        return 0
    try:
        # In a thread of its own, so that its niceness stays with it and is not passed on along the queue.
        with ThreadPoolExecutor(1) as watcher:
            watcher.submit(lambda: Supervisor(run, settings).supervise()).result()
    finally:
        os.close(lock)
    queue.advance(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
