"""Rows of a held-out trace file: what the model is asked, and the tool call that the trace made. Strict: no line is skipped.

Owns: which part of a trace is the question, which call is the gold one, what counts as the same row twice.
Does not own: the dialects of messages and tools (`data.messages`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import BashGymError, fail
from bashgym.data.findings import Collector
from bashgym.data.messages import normalise, parse_tools
from bashgym.data.types import Severity
from bashgym.evals.tool_metrics import Call

UNKNOWN = "_unknown"
"""The one cluster of all rows that name no session."""
MAX_LINE_BYTES = 64 << 20
MAX_LISTED = 100
_CALL_ROLES = ("function_call", "tool_call")


@dataclass(frozen=True)
class Row:
    """One prediction to make."""

    number: int
    """Line in the file, from 1."""
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    gold: Call
    cluster: str

    @property
    def question(self) -> str:
        """What the trace is about: its longest user turn. A "yes, go on" stands in every data set."""
        return max((m["content"] for m in self.messages if m["role"] == "user"), key=len, default="")


@dataclass(frozen=True)
class HeldOut:
    """A file of rows, as read at once."""

    rows: list[Row]
    """With a gold call, each once."""
    facts: dict[str, Any]
    """n_rows, n_without_call, n_more_calls, n_without_session, n_duplicates, duplicates [[line, the same line before]]."""
    sha256: str


def read_rows(path: Path, limit: int | None = None) -> HeldOut:
    """All rows, or the first `limit` that can be scored.

    `dataset_unreadable` names the first bad line; `dataset_empty`; `too_few_clusters` unless two sessions are told apart.
    """
    rows: list[Row] = []
    counts = dict.fromkeys(("n_rows", "n_without_call", "n_more_calls", "n_without_session", "n_duplicates"), 0)
    seen: dict[str, int] = {}
    doubles: list[list[int]] = []
    state = hashlib.sha256()
    with path.open("rb") as handle:
        for number, line in enumerate(iter(lambda: handle.readline(MAX_LINE_BYTES), b""), 1):
            state.update(line)
            if not line.strip() or (limit is not None and len(rows) >= limit):
                continue
            counts["n_rows"] += 1
            row, more = _row(_decoded(line, path, number), path, number)
            if row is None:
                counts["n_without_call"] += 1
                continue
            first = seen.setdefault(digest_json([row.messages, row.gold]), number)
            if first != number:
                # The same prediction again is no second observation, in whichever session it stands.
                counts["n_duplicates"] += 1
                doubles.append([number, first])
                continue
            counts["n_more_calls"] += more
            counts["n_without_session"] += row.cluster == UNKNOWN
            rows.append(row)
    _check(rows, path)
    return HeldOut(rows, {**counts, "duplicates": doubles[:MAX_LISTED]}, state.hexdigest())


def _check(rows: list[Row], path: Path) -> None:
    if not rows:
        raise fail("dataset_empty", f"{path} has no row with an assistant's tool call", fields=["dataset_path"])
    if len({row.cluster for row in rows}) < 2:
        raise fail(
            "too_few_clusters",
            f"{path} tells no two sessions apart: nothing can be said about others",
            "Give each row its session_id (or trace_id).",
            ["dataset_path"],
        )


def _decoded(line: bytes, path: Path, number: int) -> dict[str, Any]:
    if len(line) >= MAX_LINE_BYTES:
        raise _bad(path, number, f"over {MAX_LINE_BYTES >> 20} MiB")
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _bad(path, number, f"not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list) or not value["messages"]:
        raise _bad(path, number, "no object with a list `messages`")
    return value


def _row(value: dict[str, Any], path: Path, number: int) -> tuple[Row | None, bool]:
    """(the row or None without a gold call, whether the gold message has more calls than the first)."""
    given = value["messages"]
    end = next((i for i, message in enumerate(given, 1) if _calls(message)), None)
    collector = Collector([])
    # What comes after the gold call is neither asked nor judged.
    read = normalise(given[:end], number, collector)
    tools = parse_tools(value.get("tools"), number, collector) if read else None
    if collector.errors or read is None:
        said = (issue.message for issue in collector.issues if issue.severity is Severity.ERROR)
        raise _bad(path, number, next(said, "it is no conversation"))
    if end is None:
        return None, False
    *asked, answer = ({k: v for k, v in m.items() if k != "reasoning_content"} for m in read.messages)
    calls = [call["function"] for call in answer["tool_calls"]]
    gold = (calls[0]["name"], calls[0]["arguments"])
    checks = (
        (not asked, "there is no question before the tool call"),
        (answer["role"] != "assistant", "its first tool call is no assistant's"),
        (not gold[0], "its first tool call has no name"),
    )
    if reason := next((reason for fails, reason in checks if fails), ""):
        raise _bad(path, number, reason)
    return Row(number, asked, tools or [_derived(gold)], gold, _cluster(value)), len(calls) > 1


def _calls(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    role = message.get("role", message.get("from"))
    return bool(message.get("tool_calls") or message.get("function_call") or role in _CALL_ROLES)


def _cluster(value: dict[str, Any]) -> str:
    """Whose row it is: rows of one session stand or fall together. Rows that do not say are one cluster."""
    named = (value.get(name) for name in ("session_id", "trace_id"))
    return next((str(name) for name in named if name not in (None, "")), UNKNOWN)


def _derived(gold: Call) -> dict[str, Any]:
    """A definition of the gold tool for rows that carry none: its name and argument names, not their values."""
    parameters = {"type": "object", "properties": {name: {} for name in gold[1]}}
    return {"type": "function", "function": {"name": gold[0], "description": "", "parameters": parameters}}


def _bad(path: Path, number: int, reason: str) -> BashGymError:
    return fail("dataset_unreadable", f"{path}, line {number}: {reason}", fields=["dataset_path"])
