"""training.log, read in bounded memory. Control characters are removed: a log line cannot steer a terminal or an agent."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from bashgym.core.errors import fail
from bashgym.store.run_dir import TERMINAL, RunDir, RunStatus

MAX_TAIL = 5000
MAX_WHOLE_BYTES = 50 << 20
_MAX_LINE_CHARS = 20_000
_UNSAFE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(line: str) -> str:
    """A line without escape sequences and control characters, at most 20,000 characters."""
    return _UNSAFE.sub("", line)[:_MAX_LINE_CHARS]


def read(run: RunDir, tail: int, grep: str | None) -> dict[str, Any]:
    """{run_id, path, total_lines, truncated, lines}. `tail` 0 is the whole file, else the last lines, at most 5000.

    `grep` is a plain substring and is applied before the cut; `total_lines` counts what matched.
    """
    if tail < 0:
        raise fail("invalid_field", f"tail is {tail}; it must be 0 or more", fields=["tail"])
    path = run.log_path
    if not path.exists():
        return {"run_id": run.run_id, "path": str(path), "total_lines": 0, "truncated": False, "lines": []}
    if tail == 0 and path.stat().st_size > MAX_WHOLE_BYTES:
        raise fail(
            "log_too_large", f"the log has {path.stat().st_size >> 20} MiB", hint="Ask for its end, e.g. tail=5000."
        )
    kept: deque[str] = deque(maxlen=None if tail == 0 else min(tail, MAX_TAIL))
    total = 0
    with path.open("rb") as handle:
        while raw := handle.readline(1 << 20):
            line = clean(raw.decode("utf-8", "replace").rstrip("\n"))
            if grep is None or grep in line:
                kept.append(line)
                total += 1
    return {
        "run_id": run.run_id,
        "path": str(path),
        "total_lines": total,
        "truncated": total > len(kept),
        "lines": list(kept),
    }


def follow(run: RunDir, poll_s: float = 0.2) -> Iterator[str]:
    """Lines as they are written, until the run has ended (or is paused) and the log is drained."""
    offset, rest = 0, b""
    while True:
        ended = run.state().status in TERMINAL | {RunStatus.PAUSED}
        if run.log_path.exists():
            with run.log_path.open("rb") as handle:
                handle.seek(offset)
                data = rest + handle.read(1 << 22)
                offset = handle.tell()
            *lines, rest = data.split(b"\n")
            yield from (clean(line.decode("utf-8", "replace")) for line in lines)
            if lines:
                continue
        if ended:
            if rest:
                yield clean(rest.decode("utf-8", "replace"))
            return
        time.sleep(poll_s)
