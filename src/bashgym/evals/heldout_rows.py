"""Rows of a held-out trace file: what the model is asked, and the tool call that the trace made. Strict: no line is skipped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.evals.tool_metrics import Call, first_call

UNKNOWN = "_unknown"
MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True)
class Row:
    """One prediction to make."""

    number: int
    """Line in the file, from 1."""
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    gold: Call
    cluster: str


def read_rows(path: Path, limit: int | None = None) -> tuple[list[Row], dict[str, Any]]:
    """(rows with a gold call, {n_rows, n_without_call, n_more_calls, n_duplicates}).

    `dataset_unreadable` names the first bad line; `dataset_empty`; `too_few_clusters` unless two sessions are told apart.
    """
    rows: list[Row] = []
    counts = {"n_rows": 0, "n_without_call": 0, "n_more_calls": 0, "n_duplicates": 0}
    seen: set[str] = set()
    with path.open("rb") as handle:
        for number, line in enumerate(iter(lambda: handle.readline(MAX_LINE_BYTES), b""), 1):
            if not line.strip() or (limit is not None and len(rows) >= limit):
                continue
            counts["n_rows"] += 1
            row, more = _row(_decoded(line, path, number), path, number)
            if row is None:
                counts["n_without_call"] += 1
                continue
            counts["n_more_calls"] += more
            key = json.dumps([row.messages, row.gold], sort_keys=True, default=str)
            counts["n_duplicates"] += key in seen
            seen.add(key)
            rows.append(row)
    if not rows:
        raise fail("dataset_empty", f"{path} has no row with an assistant's tool call", fields=["dataset_path"])
    if len({row.cluster for row in rows}) < 2:
        raise fail(
            "too_few_clusters",
            f"{path} tells no two sessions apart: nothing can be said about others",
            "Give each row its session_id (or trace_id).",
            ["dataset_path"],
        )
    return rows, counts


def _decoded(line: bytes, path: Path, number: int) -> dict[str, Any]:
    if len(line) >= MAX_LINE_BYTES:
        raise _bad(path, number, f"over {MAX_LINE_BYTES >> 20} MiB")
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _bad(path, number, f"not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise _bad(path, number, "no object with a list `messages`")
    return value


def _row(value: dict[str, Any], path: Path, number: int) -> tuple[Row | None, bool]:
    """(the row or None without a gold call, whether the gold message has more calls than the first)."""
    for i, message in enumerate(value["messages"]):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad(path, number, f"messages[{i}] is no message with a role")
        if message["role"] != "assistant" or not message.get("tool_calls"):
            continue
        gold = first_call(message)
        if gold is None:
            raise _bad(path, number, f"messages[{i}].tool_calls[0] has no function name")
        if i == 0:
            raise _bad(path, number, "the tool call comes first: there is no question")
        cluster = value.get("session_id") or value.get("trace_id") or UNKNOWN
        tools = value.get("tools")
        given = tools if isinstance(tools, list) and tools else [_derived(gold)]
        return Row(number, value["messages"][:i], given, gold, str(cluster)), len(message["tool_calls"]) > 1
    return None, False


def _derived(gold: Call) -> dict[str, Any]:
    """A definition of the gold tool for rows that carry none: its name and argument names, not their values."""
    arguments = gold[1]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {}
    names = list(arguments) if isinstance(arguments, dict) else []
    parameters = {"type": "object", "properties": {name: {} for name in names}}
    return {"type": "function", "function": {"name": gold[0], "description": "", "parameters": parameters}}


def _bad(path: Path, number: int, reason: str) -> BashGymError:
    return fail("dataset_unreadable", f"{path}, line {number}: {reason}", fields=["dataset_path"])
