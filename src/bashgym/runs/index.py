"""The supervisor's side of the ledger: best effort, caught up later. A run never fails because its index can't be written."""

from __future__ import annotations

import sys
import time
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger
from bashgym.store.run_dir import RunDir, RunState, RunStatus

FLUSH_INTERVAL_S = 1.0


class RunIndex:
    """Writes one run's status, points and artifacts to the ledger; what fails is said in supervisor.log and tried again."""

    def __init__(self, run: RunDir, settings: Settings) -> None:
        self._run = run
        self._ledger = Ledger(settings)
        self._pending: list[dict[str, Any]] = []
        self._flushed = 0.0

    def status(self, status: RunStatus, state: RunState) -> None:
        """Follows a change of state."""
        self._try(
            lambda: self._ledger.set_status(
                self._run.run_id, str(status), attempt=state.attempt, message=state.message, catch_up=True
            )
        )

    def add(self, points: list[dict[str, Any]], attempt: int) -> None:
        """Takes points and writes them once a second."""
        self._pending.extend(points)
        if self._pending and time.monotonic() - self._flushed > FLUSH_INTERVAL_S:
            self._flush(attempt)

    def _flush(self, attempt: int) -> None:
        """Writes what waits; what could not be written waits on."""
        self._flushed = time.monotonic()
        batch = self._pending[:100_000]
        if self._try(lambda: self._ledger.ingest_metrics(self._run.run_id, attempt, batch)):
            del self._pending[: len(batch)]

    def ended(self, status: RunStatus, state: RunState) -> None:
        """Writes what is still pending, then the end with its final metrics."""
        if self._pending:
            self._flush(state.attempt)
        self._try(
            lambda: self._ledger.set_status(
                self._run.run_id,
                str(status),
                attempt=state.attempt,
                message=state.message,
                final_metrics={k: v for k, v in state.last_metrics.items() if isinstance(v, int | float)},
                error=state.error,
                catch_up=True,
            )
        )

    def _try(self, write: Any) -> bool:
        try:
            write()
        except (BashGymError, OSError) as error:
            print(f"ledger: {error}", file=sys.stderr, flush=True)
            return False
        return True
