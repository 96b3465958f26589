"""A page of a dataset for looking at: rows with what is odd about each. Only below the given folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bashgym.core.errors import fail
from bashgym.data.readers import iter_rows
from bashgym.data.types import Finding

MAX_LIMIT = 100
ROLES = frozenset({"system", "user", "assistant", "tool"})


def below(path: str, roots: Sequence[Path]) -> Path:
    """`path`, resolved with all its links, if it is below one of `roots`; `path_outside` otherwise."""
    if not path or "\0" in path:
        raise fail("path_outside", "the path is empty or holds a NUL", fields=["path"])
    found = Path(path).expanduser().absolute().resolve()
    if not any(found.is_relative_to(root.resolve()) for root in roots):
        allowed = ", ".join(map(str, roots))
        raise fail("path_outside", f"{path[:200]!r} is not below {allowed}", fields=["path"])
    return found


def inspect(path: str, roots: Sequence[Path], offset: int = 0, limit: int = 20) -> dict[str, Any]:
    """{path, total, offset, limit, examples: [{index, messages, row, warnings}], with_warnings_in_slice, findings}."""
    file = below(path, roots)
    if not file.is_file():
        raise fail("dataset_missing", f"there is no dataset file {path}", fields=["path"])
    import msgspec

    findings: list[Finding] = []
    examples, total = [], 0
    for row in iter_rows(file, findings):
        if offset <= total < offset + limit:
            messages = row.value.get("messages")
            examples.append(
                {"index": row.number, "messages": messages, "row": row.value, "warnings": warnings(row.value)}
            )
        total += 1
    return {
        "path": str(file),
        "total": total,
        "offset": offset,
        "limit": limit,
        "examples": examples,
        "with_warnings_in_slice": sum(1 for example in examples if example["warnings"]),
        "findings": msgspec.to_builtins(findings),
    }


def warnings(row: dict[str, Any]) -> list[str]:
    """What is odd about a row's messages: roles, and tool-call arguments that are text instead of an object."""
    found = []
    messages = row.get("messages")
    for at, message in enumerate(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict):
            found.append(f"messages[{at}] is not an object")
            continue
        role = message.get("role")
        if role not in ROLES:
            found.append(f"messages[{at}] has {'no role' if role is None else f'the unknown role {str(role)[:40]!r}'}")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                found.append(f"messages[{at}] has tool-call arguments as text")
    return found
