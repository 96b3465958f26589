"""Whether a step worked, what kind of mistake it was, and the hint that names it: the heuristic reader.

Evidence decides, words do not: "All tests pass!" is no success, and an exit code that `|| true` or a pipe hides is none
either; such a step is unknown. The text of an output is searched for errors only where the session has no signal.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from bashgym.data.sessions.steps import Step

READER = "heuristic-session-distillation-reader-v1"
_SHOWN = 120
"""Characters that a hint quotes at most."""
_SEARCHED = 10_000
"""Characters of an output's start, and as many of its end, that are searched: a hostile one stays cheap."""


class Outcome(StrEnum):
    """What the evidence says of a step."""

    FAILED = "failed"
    SUCCEEDED = "succeeded"
    UNKNOWN = "unknown"


class Mistake(NamedTuple):
    """A failure, read."""

    kind: str
    """missing_command, missing_path, missing_dependency, permission_error, syntax_error or failed_action."""
    hint: str
    name: str
    """What the output names as wrong, which the hint quotes; empty if it names nothing."""


_VETO = re.compile(
    r"doesn't want to (?:proceed|take this action)|requested permissions to|rejected by user|user rejected"
)
_ERROR = re.compile(
    r"(?im)^traceback \(most recent call last\)|(?:^|[\s\]])(?:error|fatal|failed|exception|panic)\b ?[:!(\[]"
    r"|\b[A-Z]\w*(?:Error|Exception): |command not found|no such file or directory|permission denied|^patch rejected"
    r"|^failed to \w+|syntax error"
)
_HIDDEN = re.compile(r"\|\|\s*(?:true|:|exit\s+0|echo\b)|;\s*(?:true|:|exit\s+0|echo\b[^;&|]*)\s*$")
_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
_NAME = r"[`'\"]?(?P<name>[^\s`'\":;,]{1,120})[`'\"]?"
_KINDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "missing_dependency",
        "{name} is not installed in this environment: install it, or do without it.",
        (
            rf"No module named {_NAME}",
            rf"Cannot find (?:module|package) {_NAME}",
            rf"[Uu]nable to locate package {_NAME}",
            rf"no required module provides package {_NAME}",
            rf"can't find crate for {_NAME}",
            rf"error: package {_NAME} (?:does not exist|is not)",
        ),
    ),
    (
        "missing_command",
        "The command {name} does not exist here: use one that does.",
        (
            rf"command not found: {_NAME}",
            rf"(?:^|[\s:]){_NAME}: (?:command )?not found",
            rf"{_NAME} is not recognized as",
            rf"[Uu]nknown command:? {_NAME}",
        ),
    ),
    (
        "permission_error",
        "Access to {name} is not permitted like this: mend the rights, or work where you may.",
        (
            rf"{_NAME}: [Pp]ermission denied",
            rf"(?:[Pp]ermission denied|[Oo]peration not permitted|EACCES)[^\n]*?: {_NAME}",
            r"(?i)permission denied|operation not permitted|EACCES|PermissionError",
        ),
    ),
    (
        "missing_path",
        "The path {name} does not exist: look at what is there and name that.",
        (
            rf"cannot (?:access|open|stat|remove|find) {_NAME}",
            rf"(?:can't open file|No such file or directory:|file or directory not found:|ENOENT[^\n]*?) {_NAME}",
            rf"{_NAME}: No such file or directory",
            rf"(?:File|Directory|Path) (?:does not exist|not found):? {_NAME}",
            r"(?i)no such file or directory|file does not exist|file not found|ENOENT",
        ),
    ),
    (
        "syntax_error",
        "It was not understood at {name}: mend the syntax or the options.",
        (
            rf"(?:unrecognized|unknown|invalid|illegal) (?:arguments?|options?)[:\s-]+{_NAME}",
            rf"[Nn]o such option:? {_NAME}",
            rf"syntax error near unexpected token {_NAME}",
            r"(?i)syntax ?error|IndentationError|unexpected (?:EOF|token|end of)|InputValidationError|parse error",
        ),
    ),
)
_COMPILED = [(kind, hint, [re.compile(p, re.MULTILINE) for p in patterns]) for kind, hint, patterns in _KINDS]
_UNNAMED = {
    "missing_dependency": "A package is missing: install it, or do without it.",
    "missing_command": "The command does not exist here: use one that does.",
    "permission_error": "It is not permitted like this: mend the rights, or work where you may.",
    "missing_path": "A path does not exist: look at what is there and name that.",
    "syntax_error": "It was not understood: mend the syntax or the options.",
}


def outcome(step: Step) -> Outcome:
    """failed: the flag is false, the exit code is not 0, or without any signal an error stands in the output.

    succeeded: a signal says so and nothing hides it. A refusal by the user is neither.
    """
    if _VETO.search(step.output[:2000]):
        return Outcome.UNKNOWN
    if step.success is False or step.exit_code not in (None, 0):
        return Outcome.FAILED
    searched = step.is_command or step.is_edit
    error = searched and _ERROR.search(_ends(step.output)) is not None
    if step.success is None and step.exit_code is None:
        return Outcome.FAILED if error else Outcome.UNKNOWN
    if step.is_command and (_HIDDEN.search(step.action) or (error and _PIPE.search(step.action))):
        return Outcome.UNKNOWN
    return Outcome.SUCCEEDED


def has_signal(step: Step) -> bool:
    """The session itself, not the reader, says how the step ended."""
    return step.success is not None or step.exit_code is not None


def read_mistake(step: Step) -> Mistake:
    """The kind of a failed step and a hint that quotes what its output names, never what mended it."""
    output = _ends(step.output)
    for kind, hint, patterns in _COMPILED:
        for pattern in patterns:
            found = pattern.search(output)
            if found is None:
                continue
            name = found.groupdict().get("name")
            if name:
                return Mistake(kind, hint.format(name=f"`{name}`"), name)
            return Mistake(kind, _UNNAMED[kind], "")
    if step.exit_code == 127:
        return Mistake("missing_command", _UNNAMED["missing_command"], "")
    line = _error_line(output)
    if line:
        return Mistake("failed_action", f"The last action failed with `{line}`: change what causes that.", line)
    return Mistake("failed_action", "The last action failed: do not repeat it as it was.", "")


def _ends(output: str) -> str:
    return output if len(output) <= 2 * _SEARCHED else f"{output[:_SEARCHED]}\n{output[-_SEARCHED:]}"


def _error_line(output: str) -> str:
    """The last line that speaks of an error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    spoken = [line for line in lines if _ERROR.search(line)]
    return " ".join((spoken or lines or [""])[-1].split())[:_SHOWN]
