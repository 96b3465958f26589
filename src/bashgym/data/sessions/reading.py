"""Which files of a folder are sessions, and reading one, whatever its format.

Covers: our own session JSON, Claude Code, Codex. Another tool's store is named as unknown, never read in part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.core.files import read_object
from bashgym.data.sessions.claude import is_claude, read_claude
from bashgym.data.sessions.codex import is_codex, read_codex
from bashgym.data.sessions.steps import Session, Step, action_text, as_dict

MAX_BYTES = 256 << 20
_SUFFIXES = (".json", ".jsonl")


def session_files(folder: Path) -> Iterator[Path]:
    """JSON and JSONL files below a folder, in path order; links are not followed. `file_missing` without the folder."""
    if not folder.is_dir():
        raise fail("file_missing", f"{folder} is not a folder", "Give the folder that holds the session files.")
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if path.suffix in _SUFFIXES and not name.endswith(".meta.json") and not path.is_symlink():
                yield path


def read_session(path: Path) -> Session:
    """One file. `file_unreadable` or `file_too_large` with the reason; bad lines are in the session's `faults`."""
    if path.suffix == ".json":
        return _own(path, read_object(path, max_bytes=MAX_BYTES))
    if path.stat().st_size > MAX_BYTES:
        raise fail("file_too_large", f"{path} has {path.stat().st_size} bytes; the limit is {MAX_BYTES}")
    rows, faults = _lines(path)
    if is_claude(rows):
        return read_claude(path, rows, faults)
    if is_codex(rows):
        return read_codex(path, rows, faults)
    kinds = sorted({str(key) for row in rows[:20] for key in row})[:8]
    raise fail(
        "file_unreadable",
        f"{path} is a .jsonl file of no session format known here (its lines hold {', '.join(kinds) or 'no object'})",
        "Known: Claude Code and Codex JSONL, and the project's own session JSON.",
    )


def _lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    rows, faults = list[dict[str, Any]](), list[str]()
    try:
        with path.open("rb") as handle:
            for number, line in enumerate(handle, 1):
                if not line.strip():
                    continue
                try:
                    value = msgspec.json.decode(line.strip(b"\xef\xbb\xbf\r\n "))
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    faults.append(f"line {number} is not JSON" + ("" if line.endswith(b"\n") else " (cut off)"))
                    continue
                if isinstance(value, dict):
                    rows.append(value)
                else:
                    faults.append(f"line {number} is a JSON {type(value).__name__}, not an object")
    except OSError as error:
        raise fail("file_unreadable", f"{path}: {error.strerror}") from error
    return rows, faults


def _own(path: Path, value: dict[str, Any]) -> Session:
    trace = value.get("trace")
    if not isinstance(trace, list):
        raise fail("file_unreadable", f"{path} has no list `trace`, so it is no session of ours")
    task = as_dict(value.get("metadata")).get("user_initial_prompt") or value.get("task") or ""
    session = Session(path.stem, str(value.get("session_id") or path.stem), str(task))
    session.repo = _repo(value.get("primary_repo"))
    for number, entry in enumerate(trace, 1):
        if not isinstance(entry, dict) or "command" not in entry:
            session.faults.append(f"trace[{number - 1}] is not a step with a command")
            continue
        session.steps.append(_own_step(len(session.steps), entry))
    return session


def _own_step(index: int, entry: dict[str, Any]) -> Step:
    cognitive = as_dict(entry.get("cognitive"))
    tool = str(entry.get("tool_name") or "bash")
    code, success = entry.get("exit_code"), entry.get("success")
    said = next((str(cognitive[key]) for key in ("decision_rationale", "plan", "thinking") if cognitive.get(key)), "")
    return Step(
        index,
        tool,
        action_text(tool, entry["command"]),
        str(entry.get("output") or ""),
        success if isinstance(success, bool) else None,
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        said,
    )


def _repo(value: object) -> str:
    return str(value.get("name") or value.get("path") or "") if isinstance(value, dict) else str(value or "")
