"""metrics.jsonl: one line a step with every scalar the trainer reported. NaN and infinity are kept, flagged.

The writer never blocks training: `log` appends to a deque; a thread writes every 50 ms. What was logged more than
about 100 ms before a SIGKILL is in the file.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bashgym.store.jsonl import read_jsonl

FLUSH_INTERVAL_S = 0.05
_encode = msgspec.json.Encoder().encode


def point(step: int, values: Mapping[str, object], ts: float) -> dict[str, Any]:
    """One metrics line. Non-numbers are left out; NaN and infinities become null plus an entry in `non_finite`."""
    line: dict[str, Any] = {"step": step, "ts": ts}
    flagged: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or name in ("step", "ts"):
            continue
        if math.isfinite(value):
            line[name] = value
        else:
            line[name] = None
            flagged[name] = "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if flagged:
        line["non_finite"] = flagged
    return line


class MetricWriter:
    """Appends points to metrics.jsonl from a thread of its own. `log` costs microseconds and takes no lock."""

    def __init__(self, path: Path) -> None:
        self._queue: deque[tuple[int, Mapping[str, object], float]] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.error: OSError | None = None
        """The last write error, e.g. a full disk; points stay queued and are retried."""
        _seal_torn_tail(path, self._handle)
        self._thread = threading.Thread(target=self._run, name="metric-writer", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, object]) -> None:
        """Queues one step's scalars. Never raises, never touches the disk."""
        self._queue.append((step, values, time.time()))

    def close(self) -> None:
        """Writes what is queued and stops the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=10)
        os.fsync(self._handle)
        os.close(self._handle)

    def _run(self) -> None:
        while True:
            self._wake.wait(FLUSH_INTERVAL_S)
            self._drain()
            if self._closing and (not self._queue or self.error):
                return

    def _drain(self) -> None:
        batch = [self._queue.popleft() for _ in range(len(self._queue))]
        if not batch:
            return
        data = b"".join(_encode(point(*entry)) + b"\n" for entry in batch)
        try:
            self._write_whole(data)
            self.error = None
        except OSError as error:
            self.error = error
            self._queue.extendleft(reversed(batch))

    def _write_whole(self, data: bytes) -> None:
        size = os.fstat(self._handle).st_size
        written = os.write(self._handle, data)
        if written != len(data):
            os.ftruncate(self._handle, size)
            raise OSError(28, "short write: no space left on device")


def _seal_torn_tail(path: Path, handle: int) -> None:
    """Ends a line that a killed writer left open, so that the next point does not merge with it."""
    size = os.fstat(handle).st_size
    if not size:
        return
    with path.open("rb") as reader:
        reader.seek(size - 1)
        if reader.read(1) != b"\n":
            os.write(handle, b"\n")


def read_points(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The points of a metrics.jsonl, later lines of one step merged into the first, and the torn lines skipped.

    After a resume from a checkpoint, steps are reported again; the newer value wins.
    """
    rows, skipped = read_jsonl(path)
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int):
            skipped += 1
            continue
        merged = by_step.setdefault(step, {"step": step})
        flags = {**merged.get("non_finite", {}), **row.get("non_finite", {})}
        merged.update({key: value for key, value in row.items() if key != "non_finite"})
        flags = {name: flag for name, flag in flags.items() if merged.get(name) is None}
        merged.pop("non_finite", None)
        if flags:
            merged["non_finite"] = flags
    return [by_step[step] for step in sorted(by_step)], skipped
