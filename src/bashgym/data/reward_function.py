"""The reward function that a request names: where it is, and that it is there. Runs nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import fail
from bashgym.data import python_source

PREFIX = "python:"
FIELD = "grpo_reward_mode"


def is_function(mode: str) -> bool:
    """Whether a reward mode names a user's function."""
    return mode.startswith(PREFIX)


def split(mode: str) -> tuple[Path, str]:
    """(file, function) of `python:FILE:FUNCTION`; `invalid_field` for another form."""
    path, _, name = mode.removeprefix(PREFIX).rpartition(":")
    if not path or not name.isidentifier():
        hint = "Write python:rewards.py:my_reward."
        raise fail("invalid_field", f"{FIELD} {mode!r} is not python:<file.py>:<function>", hint, [FIELD])
    return Path(path).expanduser(), name


def absolute(mode: str) -> str:
    """The mode with its file's path resolved against the current folder; other modes as they are."""
    if not is_function(mode):
        return mode
    path, name = split(mode)
    return f"{PREFIX}{path.absolute()}:{name}"


def function_facts(request: Mapping[str, Any]) -> dict[str, str] | None:
    """{path, function, sha256} of the request's reward function, for the manifest; None for another reward mode.

    Nothing is run. `file_missing`, `file_unreadable` (no Python) and `invalid_field` (no such function in it).
    """
    mode = str(request.get(FIELD, ""))
    if not is_function(mode):
        return None
    path, name = split(mode)
    path = path.absolute()
    if not path.is_file():
        raise fail("file_missing", f"{FIELD}: there is no file {path}", "Paths begin at the current folder.", [FIELD])
    module, reason = python_source.parse(path.read_text("utf-8", "replace"))
    if module is None:
        raise fail("file_unreadable", f"{FIELD}: {path} is not Python: {reason}", fields=[FIELD])
    names = _names(module)
    if name not in names:
        hint = f"It has {', '.join(sorted(names)[:10])}." if names else "It defines nothing."
        raise fail("invalid_field", f"{FIELD}: {path} defines no {name}", hint, [FIELD])
    return {"path": str(path), "function": name, "sha256": digest_file(path)}


def _names(module: ast.Module) -> set[str]:
    """What the top level binds: definitions, imports, assignments."""
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        else:
            stored = (child for child in ast.walk(node) if isinstance(child, ast.Name))
            names |= {child.id for child in stored if isinstance(child.ctx, ast.Store)}
    return names
