"""rollouts.jsonl: finished attempts on disk, so that a second run of the same request goes on from there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bashgym.core.errors import fail
from bashgym.core.files import append_line, atomic_write_json, read_object, writable_dir
from bashgym.evals.rollout_player import RolloutRecord
from bashgym.inference.job import drop_torn_tail
from bashgym.store.jsonl import read_jsonl

_OTHER = "Name another file."


class Journal:
    """What is finished. Use `opened`; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        rows = read_jsonl(path)[0] if path and path.is_file() else []
        try:
            records = msgspec.convert(rows, list[RolloutRecord])
        except msgspec.ValidationError as error:
            raise fail("file_unreadable", f"{path} is no journal of rollouts: {error}", _OTHER) from error
        self.done = {record.attempt.key: record for record in records}

    def add(self, record: RolloutRecord) -> None:
        """Takes a record in; on disk only if it was observed, so that what failed is tried again."""
        self.done[record.attempt.key] = record
        if self._path and not record.error:
            append_line(self._path, msgspec.json.encode(record))


@contextmanager
def opened(path: Path | None, digest: str) -> Iterator[Journal]:
    """The journal of the request `digest`. `file_exists` if it belongs to another one, `request_in_progress` if somebody
    writes to it, `directory_unwritable`."""
    if path is None:
        yield Journal(None)
        return
    beside = path.with_name(f"{path.name}.request.json")
    writable_dir(path.parent)
    if beside.is_file():
        if read_object(beside).get("request_digest") != digest:
            raise fail("file_exists", f"{path} holds the rollouts of another request", _OTHER, ["rollouts_path"])
    elif path.exists():
        raise fail("file_exists", f"{path} exists and is no journal of rollouts", _OTHER, ["rollouts_path"])
    else:
        atomic_write_json(beside, {"request_digest": digest})
    handle = os.open(beside, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        drop_torn_tail(path)
        yield Journal(path)
    except BlockingIOError as error:
        raise fail(
            "request_in_progress", f"another process writes to {path}", "Wait for it, or end it first."
        ) from error
    finally:
        os.close(handle)
