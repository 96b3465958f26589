"""Claude Code sessions (`~/.claude/projects/*/*.jsonl`): tool_use and tool_result pairs of the main thread.

Left out: sidechains, meta and API-error records, messages that were superseded or retracted, branches that a rewind
abandoned. A rewind is told by `parentUuid`: only the branch to the last turn counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bashgym.data.sessions.steps import Session, Step, action_text, as_dict, text_of

_FLAGS = ("isSidechain", "isMeta", "isCompactSummary", "isApiErrorMessage", "isAbortedMidStream")
_NOT_A_PROMPT = (
    "<command-",
    "<local-command",
    "Caveat:",
    "<system-reminder>",
    "<task-notification>",
    "[Request interr",
)


def is_claude(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether these lines are of such a file."""
    return any(row.get("type") in ("user", "assistant") and isinstance(row.get("message"), dict) for row in rows)


def read_claude(path: Path, rows: Sequence[dict[str, Any]], faults: list[str]) -> Session:
    """The session of a file's lines."""
    turns = [row for row in rows if row.get("type") in ("user", "assistant") and isinstance(row.get("message"), dict)]
    gone = {
        str(uuid) for row in rows for key in ("supersedesUuids", "retractedMessageUuids") for uuid in row.get(key) or ()
    }
    turns = [row for row in turns if row.get("uuid") not in gone and not any(row.get(flag) for flag in _FLAGS)]
    session = Session(path.stem, next((str(row["sessionId"]) for row in rows if row.get("sessionId")), path.stem))
    session.faults = faults
    session.repo = next((str(row["cwd"]) for row in turns if row.get("cwd")), "")
    results = {
        block["tool_use_id"]: block
        for row in turns
        for block in _blocks(row, "tool_result")
        if block.get("tool_use_id")
    }
    intent = ""
    for row in _thread(rows, turns):
        content = as_dict(row["message"]).get("content")
        text = "\n".join(block for block in (b.get("text") for b in _blocks(row, "text")) if isinstance(block, str))
        if row["type"] == "user":
            text = content if isinstance(content, str) else text
            if not session.task and text.strip() and not text.lstrip().startswith(_NOT_A_PROMPT):
                session.task = text
            intent = ""
            continue
        intent = text or intent
        for block in _blocks(row, "tool_use"):
            session.steps.append(_step(len(session.steps), block, results.get(block.get("id")), intent))
    return session


def _step(index: int, use: dict[str, Any], result: dict[str, Any] | None, intent: str) -> Step:
    tool = str(use.get("name") or "tool")
    action = action_text(tool, use.get("input"))
    if result is None:
        return Step(index, tool, action, intent=intent)
    # The API leaves is_error out where it is false.
    return Step(index, tool, action, text_of(result.get("content")), not result.get("is_error", False), None, intent)


def _blocks(row: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    content = as_dict(row["message"]).get("content")
    return [b for b in content if isinstance(b, dict) and b.get("type") == kind] if isinstance(content, list) else []


def _thread(rows: Sequence[dict[str, Any]], turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns on the way to the last one. Blocks of one message are records of their own: an id keeps them together."""
    by_uuid = {row["uuid"]: row for row in rows if isinstance(row.get("uuid"), str)}
    leaf = turns[-1].get("uuid") if turns else None
    if leaf is None:
        return turns
    path: set[str] = set()
    at: object = leaf
    while isinstance(at, str) and at in by_uuid and at not in path:
        path.add(at)
        at = by_uuid[at].get("parentUuid") or by_uuid[at].get("logicalParentUuid")
    messages = {as_dict(row["message"]).get("id") for row in turns if row.get("uuid") in path} - {None}
    return [
        row
        for row in turns
        if row.get("uuid") is None or row["uuid"] in path or as_dict(row["message"]).get("id") in messages
    ]
