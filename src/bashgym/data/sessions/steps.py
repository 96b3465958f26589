"""What every session format is read into: a task and the steps that were taken for it.

Owns the two values and how a tool call becomes the text of an action. Does not own the formats (`claude`, `codex`,
`reading`) nor whether a step worked (`outcomes`).
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import msgspec

SHELL_TOOLS = frozenset(
    {"bash", "shell", "exec_command", "run_shell_command", "local_shell", "local_shell_call", "terminal", "run_command"}
)
EDIT_TOOLS = frozenset(
    {"edit", "multiedit", "write", "notebookedit", "apply_patch", "applypatch", "str_replace", "str_replace_editor"}
)


class Step(msgspec.Struct, frozen=True):
    """One action of the agent and what came of it."""

    index: int
    """Position among the steps of the session, from 0."""
    tool: str
    action: str
    """What a model writes to take it: the command, or the call as `{"arguments": ..., "name": ...}`."""
    output: str = ""
    success: bool | None = None
    """What the session's own flag says; None: it has none."""
    exit_code: int | None = None
    intent: str = ""
    """What the agent said just before."""

    @property
    def is_command(self) -> bool:
        """A shell command."""
        return self.tool.lower() in SHELL_TOOLS

    @property
    def is_edit(self) -> bool:
        """A change of a file by a tool of its own."""
        return self.tool.lower() in EDIT_TOOLS


class Session(msgspec.Struct):
    """One file of a trace folder."""

    trace_id: str
    """The file's stem."""
    session_id: str
    task: str = ""
    repo: str = ""
    steps: list[Step] = []
    faults: list[str] = []
    """Lines that could not be used, by number."""


def action_text(tool: str, arguments: object) -> str:
    """The action of a tool call: the command of a shell tool, else the call as JSON with sorted keys."""
    if tool.lower() in SHELL_TOOLS:
        if isinstance(arguments, dict):
            arguments = arguments.get("command", arguments.get("cmd", ""))
        if isinstance(arguments, list):
            words = [str(word) for word in arguments]
            wrapped = (
                len(words) == 3 and words[0].rpartition("/")[2] in ("bash", "sh", "zsh") and words[1] in _SHELL_FLAGS
            )
            return words[2] if wrapped else shlex.join(words)
        return str(arguments)
    if isinstance(arguments, str):
        return arguments
    return json.dumps({"arguments": arguments, "name": tool}, ensure_ascii=False, sort_keys=True)


_SHELL_FLAGS = ("-c", "-lc", "-ic")


def text_of(content: object) -> str:
    """The text of a content value: a string, or a list of blocks of which those with text count."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return ""
    blocks = [
        block if isinstance(block, str) else block.get("text") for block in content if isinstance(block, str | dict)
    ]
    return "\n".join(block for block in blocks if isinstance(block, str))


def as_dict(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
