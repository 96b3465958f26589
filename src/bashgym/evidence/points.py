"""Streaming read of metric points, whoever wrote them: our metrics.jsonl, or a Hugging Face trainer_state.json.

Bounded memory: one line at a time. Bare NaN and Infinity, which JSON does not have and many trainers write, are kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import fail

_MAX_LINE = 1 << 20
_MAX_STATE = 256 << 20
_decode = msgspec.json.Decoder().decode


class PointStream:
    """Iterates the points of a file once; `skipped` then holds the number of torn or meaningless lines."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise fail("file_missing", f"{path} does not exist", fields=["metrics"])
        if not path.is_file():
            raise fail("file_unreadable", f"{path} is not a regular file", fields=["metrics"])
        self.path, self.skipped = path, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        source = self._log_history() if self.path.suffix == ".json" else self._lines()
        for value in source:
            if isinstance(value, dict) and type(value.get("step")) is int:
                yield value
            else:
                self.skipped += 1

    def _lines(self) -> Iterator[object]:
        with self.path.open("rb") as handle:
            while line := handle.readline(_MAX_LINE):
                if not line.endswith(b"\n"):
                    # Longer than any point, or torn by a kill: either way not a whole point.
                    while (rest := handle.readline(_MAX_LINE)) and not rest.endswith(b"\n"):
                        pass
                    yield None
                elif not line.isspace():
                    try:
                        yield _decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                        yield _parse(line)

    def _log_history(self) -> Iterator[object]:
        if self.path.stat().st_size > _MAX_STATE:
            raise fail("file_too_large", f"{self.path} is larger than {_MAX_STATE} bytes", fields=["metrics"])
        state = _parse(self.path.read_bytes())
        history = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(history, list):
            raise fail(
                "file_unreadable",
                f"{self.path} is neither metrics.jsonl nor a trainer_state.json with log_history",
                fields=["metrics"],
            )
        yield from history


def _parse(data: bytes) -> object:
    """JSON with bare NaN and Infinity; None for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def non_finite(point: dict[str, Any]) -> dict[str, str]:
    """Metric -> `NaN`, `Infinity` or `-Infinity`, flagged by the writer or found bare."""
    flags = point.get("non_finite")
    found = {str(k): str(v) for k, v in flags.items()} if isinstance(flags, dict) else {}
    for name, value in point.items():
        if type(value) is float and not math.isfinite(value):
            found[name] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return found
