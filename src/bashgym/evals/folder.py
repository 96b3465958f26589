"""The directory of one evaluation: request, state, jobs, scores, report. One process at a time works in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import append_line, atomic_write_json, read_object
from bashgym.evals.files import REPORT
from bashgym.evals.suites import Score
from bashgym.inference.job import Completion, drop_torn_tail
from bashgym.store.jsonl import read_jsonl

_JUDGED = "judged.jsonl"


class EvalStatus(StrEnum):
    """Where an evaluation stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    """Its error is in state.json; the same id goes on from what is done."""
    INTERRUPTED = "interrupted"
    """Stopped or killed; the same id goes on from what is done."""
    CANCELLED = "cancelled"
    """A job that was stopped on purpose; `eval resume` goes on with it all the same."""


class EvalFolder:
    """Paths and typed access."""

    def __init__(self, path: Path) -> None:
        self.path, self.eval_id = path, path.name

    def job(self, side: str) -> Path:
        """The scoring job of `candidate` or `baseline`."""
        return self.path / side

    def scores(self, side: str) -> Path:
        """Per-example scores."""
        return self.path / f"scores-{side}.jsonl"

    @property
    def report(self) -> Path:
        """report.json; it exists exactly if the evaluation is finished."""
        return self.path / REPORT

    @contextmanager
    def held(self) -> Iterator[None]:
        """Exclusive work on this evaluation; `request_in_progress` if another process has it. Ends with the process."""
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise fail("request_in_progress", f"{self.eval_id} is being worked on by another process") from error
        finally:
            os.close(handle)

    def is_held(self) -> bool:
        """Whether a live process works on it."""
        try:
            with self.held():
                return False
        except BashGymError:
            return True

    def begin(self, request: dict[str, Any]) -> None:
        """Writes request.json, or checks that the one there is the same request: `eval_incomplete` otherwise."""
        path = self.path / "request.json"
        if not path.is_file():
            atomic_write_json(path, request)
            return
        known = read_object(path)
        if known.get("request_digest") != request["request_digest"]:
            changed = sorted(
                k for k in request if known.get(k) != request[k] and k not in ("request_digest", "created_at")
            )
            raise fail(
                "eval_incomplete",
                f"{self.eval_id} was begun with another request; {', '.join(changed)} differ",
                "Resume it with the same arguments, or leave --eval-id out.",
                ["eval_id"],
            )

    def request(self) -> dict[str, Any]:
        """request.json; `eval_not_found`."""
        try:
            return read_object(self.path / "request.json")
        except LookupError as error:
            raise fail(
                "eval_not_found", f"there is no evaluation {self.eval_id}", "`bashgym eval list` shows them."
            ) from error

    def write_state(self, status: EvalStatus, share: float, text: str, error: dict[str, Any] | None = None) -> None:
        """Replaces state.json."""
        progress = {"share": round(share, 4), "text": text}
        state = {"status": str(status), "progress": progress, "error": error, "updated_at": utc_now()}
        atomic_write_json(self.path / "state.json", {"eval_id": self.eval_id, **state})

    def state(self) -> dict[str, Any]:
        """state.json; one that says running while nobody works on it was interrupted by a kill."""
        try:
            state = read_object(self.path / "state.json")
        except BashGymError:
            state = {"eval_id": self.eval_id, "status": str(EvalStatus.INTERRUPTED), "progress": {}, "error": None}
        if self.report.is_file():
            state["status"] = str(EvalStatus.COMPLETED)
        elif state["status"] == EvalStatus.RUNNING and not self.is_held():
            state["status"] = str(EvalStatus.INTERRUPTED)
        return state

    def judged(self, side: str, completions: list[Completion]) -> dict[tuple[str, int], Score]:
        """Scores of an earlier attempt at these very completions. What was not observed then is judged again."""
        path = self.job(side) / _JUDGED
        drop_torn_tail(path)
        text = {done.key: done.completion for done in completions}
        scores = msgspec.convert(read_jsonl(path)[0], list[Score])
        return {s.key: s for s in scores if s.passed is not None and text.get(s.key) == s.completion}

    def add_judged(self, side: str, scores: list[Score]) -> None:
        """Keeps a part of the scores at once."""
        append_line(self.job(side) / _JUDGED, b"\n".join(msgspec.json.encode(score) for score in scores))
