"""Codex rollouts (`~/.codex/sessions/**/rollout-*.jsonl`), with and without the payload envelope.

Calls and outputs are response items; `event_msg` repeats them for the screen and is read for exit codes alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bashgym.data.sessions.steps import Session, Step, action_text, as_dict, text_of

_ENVELOPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context"})
_CALLS = frozenset({"function_call", "custom_tool_call", "tool_call", "local_shell_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_result", "local_shell_call_output"})
_INJECTED = ("<environment_context>", "<user_instructions>", "# AGENTS.md", "<INSTRUCTIONS>")
_IDE = "## My request for Codex:"
_EXIT = re.compile(r"Process exited with code (-?\d+)")


def is_codex(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether these lines are of such a file."""
    return any(row.get("type") in _ENVELOPES | _CALLS | _OUTPUTS or row.get("record_type") == "state" for row in rows)


def read_codex(path: Path, rows: Sequence[dict[str, Any]], faults: list[str]) -> Session:
    """The session of a file's lines."""
    session = Session(path.stem, path.stem, faults=faults)
    items = [(row.get("type"), as_dict(row.get("payload")) or row) for row in rows]
    ends = _ends(items)
    calls: dict[str, tuple[str, str, str]] = {}
    outputs: dict[str, tuple[str, int | None]] = {}
    intent = last = ""
    for number, (envelope, item) in enumerate(items):
        kind = item.get("type")
        if envelope == "session_meta":
            session.session_id = str(item.get("id") or session.session_id)
            session.repo = str(as_dict(item.get("git")).get("repository_url") or item.get("cwd") or session.repo)
        elif envelope == "event_msg":
            continue
        elif kind in _CALLS:
            last = str(item.get("call_id") or f"line {number}")
            tool = str(item.get("name") or as_dict(item.get("function")).get("name") or kind)
            calls[last] = (tool, action_text(tool, _arguments(item)), intent)
        elif kind in _OUTPUTS:
            intent = ""
            outputs[str(item.get("call_id") or last)] = _output(item.get("output", item.get("result")))
        elif item.get("role") == "assistant":
            intent = text_of(item.get("content")) or intent
        elif item.get("role") == "user" and not session.task:
            session.task = _prompt(text_of(item.get("content")))
    for call_id, (tool, action, said) in calls.items():
        text, code = outputs.get(call_id, ("", None))
        success, exit_code = ends.get(call_id, (None, None))
        session.steps.append(
            Step(len(session.steps), tool, action, text, success, exit_code if code is None else code, said)
        )
    return session


def _prompt(text: str) -> str:
    """What the user asked; empty for what Codex put there itself."""
    text = text.partition(_IDE)[2].strip() if _IDE in text else text
    return "" if text.lstrip().startswith(_INJECTED) else text


def _ends(items: Sequence[tuple[object, dict[str, Any]]]) -> dict[str, tuple[bool | None, int | None]]:
    """Call id -> (whether a patch was applied, exit code), from the events."""
    found: dict[str, tuple[bool | None, int | None]] = {}
    for envelope, item in items:
        done = as_dict(item.get("item"))
        if envelope != "event_msg":
            continue
        if item.get("type") == "exec_command_end" and isinstance(item.get("exit_code"), int):
            found[str(item.get("call_id"))] = (None, item["exit_code"])
        elif item.get("type") == "patch_apply_end" and isinstance(item.get("success"), bool):
            found[str(item.get("call_id"))] = (item["success"], None)
        elif done.get("type") == "CommandExecution" and isinstance(done.get("exit_code"), int):
            found[str(done.get("id"))] = (None, done["exit_code"])
    return found


def _arguments(item: dict[str, Any]) -> object:
    raw = item.get("arguments", item.get("input", item.get("action")))
    if not isinstance(raw, str):
        return raw
    value = _json_object(raw)
    return raw if value is None else value


def _output(raw: object) -> tuple[str, int | None]:
    """(text, exit code) of an output: plain text, text with an exit line, a JSON string with metadata, or a result."""
    value = _json_object(raw) if isinstance(raw, str) else raw
    if isinstance(value, dict) and ("output" in value or "exitCode" in value or "stdout" in value):
        code = as_dict(value.get("metadata")).get("exit_code", value.get("exitCode", value.get("exit_code")))
        parts = [value.get(key) for key in ("output", "stdout", "stderr")]
        return "\n".join(part for part in parts if isinstance(part, str) and part), code if isinstance(
            code, int
        ) else None
    text = text_of(raw)
    found = _EXIT.search(text)
    if found is None:
        return text, None
    return text.partition("\nOutput:\n")[2] or text, int(found[1])


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
