"""Reading JSONL files that another process is still writing, or was killed while writing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_MAX_LINE = 16 << 20
_CHUNK = 1 << 20


class JsonlTail:
    """Follows one JSONL file. Each `read_new` returns the whole objects that were added since the last.

    A line without its newline is left for the next call; lines that are not JSON objects (torn by a kill, a NUL
    tail after a power cut) are counted in `skipped`. Memory is bounded by one chunk and one line.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset, self.skipped = path, offset, 0

    def read_new(self, limit: int = 100_000) -> list[dict[str, Any]]:
        """At most about `limit` new objects; an absent file has none."""
        found: list[dict[str, Any]] = []
        try:
            with self.path.open("rb") as handle:
                handle.seek(self.offset)
                rest = b""
                while len(found) < limit and (chunk := handle.read(_CHUNK)):
                    data = rest + chunk
                    end = data.rfind(b"\n") + 1
                    self._parse(data[:end], found)
                    self.offset += end
                    rest = data[end:]
                    if len(rest) > _MAX_LINE:
                        self.offset += len(rest)
                        self.skipped, rest = self.skipped + 1, b""
        except FileNotFoundError:
            return found
        return found

    def _parse(self, block: bytes, found: list[dict[str, Any]]) -> None:
        for line in block.split(b"\n"):
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                value = None
            if isinstance(value, dict):
                found.append(value)
            else:
                self.skipped += 1


def read_jsonl(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All whole objects of a JSONL file and the number of lines that were none, a torn last line included."""
    tail = JsonlTail(path)
    rows: list[dict[str, Any]] = []
    while batch := tail.read_new():
        rows.extend(batch)
    return rows, tail.skipped + _has_torn_tail(path)


def iter_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The whole objects of a JSONL file, streaming."""
    tail = JsonlTail(path)
    while batch := tail.read_new(10_000):
        yield from batch


def _has_torn_tail(path: Path) -> int:
    try:
        with path.open("rb") as handle:
            if handle.seek(0, 2) == 0:
                return 0
            handle.seek(-1, 2)
            return int(handle.read(1) != b"\n")
    except FileNotFoundError:
        return 0
