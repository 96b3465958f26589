"""One run directory. It *is* the run; the database only indexes it."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.files import append_line, atomic_write_bytes, atomic_write_json, read_object
from bashgym.store.jsonl import read_jsonl
from bashgym.store.metrics import read_points


class RunStatus(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    """Registered; its supervisor has not begun."""
    PREPARING = "preparing"
    """The trainer is loading model and data."""
    RUNNING = "running"
    """Optimizer steps happen."""
    PAUSING = "pausing"
    """A checkpoint at the next step was asked for."""
    PAUSED = "paused"
    """Checkpointed; no process, no memory."""
    STOPPING = "stopping"
    """The process group is being ended."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Stopped by a person or an agent."""
    UNKNOWN = "unknown"
    """Its host cannot be reached."""


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


class RunState(msgspec.Struct, kw_only=True):
    """run_state.json, replaced whole at every change."""

    schema_version: str = "bashgym.run_state.v1"
    run_id: str
    strategy: str
    status: RunStatus
    attempt: int = 1
    sequence: int = 0
    """Counts the writes; orders them when clocks jump."""
    supervisor: dict[str, Any] | None = None
    trainer: dict[str, Any] | None = None
    heartbeat: str = ""
    queued_at: str = ""
    started_at: str = ""
    completed_at: str = ""
    progress: dict[str, Any] = msgspec.field(default_factory=dict)
    """step, total_steps, epoch, eta_s, tokens_per_second."""
    last_metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    last_checkpoint: str | None = None
    error: dict[str, Any] | None = None
    """{code, message, hint} when failed."""
    exit: dict[str, Any] | None = None
    """{code, signal} of the trainer, as the kernel gave it to the supervisor."""
    message: str = ""


class RunDir:
    """Paths and typed access. Reading never writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name

    def file(self, name: str) -> Path:
        """`<run>/<name>`."""
        return self.path / name

    @property
    def metrics_path(self) -> Path:
        """metrics.jsonl"""
        return self.path / "metrics.jsonl"

    @property
    def log_path(self) -> Path:
        """training.log"""
        return self.path / "training.log"

    def exists(self) -> bool:
        """A run exists once its state does: that file is written last."""
        return self.file("run_state.json").is_file()

    def state(self) -> RunState:
        """run_state.json; `run_not_found` or `file_unreadable`."""
        try:
            return msgspec.json.decode(self.file("run_state.json").read_bytes(), type=RunState)
        except FileNotFoundError as error:
            raise fail("run_not_found", f"no run at {self.path}", hint="`bashgym training list` shows them.") from error
        except msgspec.DecodeError as error:
            raise fail("file_unreadable", f"{self.file('run_state.json')}: {error}") from error

    def write_state(self, state: RunState) -> None:
        """Replaces run_state.json and counts the write."""
        state.sequence += 1
        atomic_write_bytes(
            self.file("run_state.json"), msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
        )

    def request(self) -> dict[str, Any]:
        """request.json: every field with its value, as started."""
        return read_object(self.file("request.json"))

    def manifest(self) -> dict[str, Any]:
        """manifest.json: the measured identity."""
        return read_object(self.file("manifest.json"))

    def write_json(self, name: str, value: object) -> None:
        """Writes `<run>/<name>` whole."""
        atomic_write_json(self.file(name), value)

    def append_event(self, kind: str, **payload: object) -> None:
        """Appends to events.jsonl. Only the process that owns the run at that moment does."""
        path = self.file("events.jsonl")
        sequence = _line_count(path) + 1
        append_line(path, msgspec.json.encode({"sequence": sequence, "ts": utc_now(), "type": kind, **payload}))

    def events(self) -> list[dict[str, Any]]:
        """events.jsonl, torn lines left out."""
        return read_jsonl(self.file("events.jsonl"))[0]

    def metrics(self) -> list[dict[str, Any]]:
        """One dict a step, see `store.metrics`."""
        return read_points(self.metrics_path)[0]

    def samples(self) -> list[dict[str, Any]]:
        """samples.jsonl."""
        return read_jsonl(self.file("samples.jsonl"))[0]

    def write_control(self, action: str) -> None:
        """Leaves an order (`pause`, `stop`) for the supervisor and the trainer."""
        atomic_write_json(self.file("control.json"), {"action": action, "ts": utc_now()})

    def control(self) -> str:
        """The standing order, or empty."""
        try:
            return str(read_object(self.file("control.json")).get("action", ""))
        except LookupError:
            return ""

    def clear_control(self) -> None:
        """Takes the order back."""
        self.file("control.json").unlink(missing_ok=True)


def _line_count(path: Path) -> int:
    try:
        with path.open("rb") as handle:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: handle.read(1 << 16), b""))
    except FileNotFoundError:
        return 0


def create_run_dir(models_dir: Path, run_id: str) -> RunDir:
    """Makes `<models_dir>/<run_id>`; `run_exists` if it is there already, whatever is inside."""
    path = models_dir / run_id
    try:
        os.mkdir(path)
    except FileExistsError as error:
        raise fail("run_exists", f"a run {run_id} exists already at {path}", hint="Choose another run_id.") from error
    return RunDir(path)
