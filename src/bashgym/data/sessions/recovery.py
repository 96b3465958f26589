"""Which later step mended a failed one.

Of the `WINDOW` steps after the failure, the first that settles it decides:

* a step of the same intent that succeeded is the recovery. Same intent: the same kind of action (both shell commands
  with the same program, both edits, or the same tool) that gets at least half of the failed action's argument words,
  or no words on either side. Words are shared if equal, if their base names are equal, or if they are near
  (`note.txt`, `notes.txt`); options do not count, and of a tool call or patch only what it is about (paths, patterns).
  The program is taken behind `cd ... &&`, assignments and wrappers (`sudo`, `npx`, `python -m`); with git, npm, pip
  and their like it is two words. After a missing command any program counts.
* the failed action itself succeeding means that a step between mended it (`pip install x`): the one step between that
  succeeded and did more than look is the recovery; with none or several it cannot be told which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from bashgym.data.sessions.outcomes import Outcome, outcome, read_mistake
from bashgym.data.sessions.steps import Step

WINDOW = 6
_NEAR = 0.75
_WORD = re.compile(r"[^\s\"'`|&;<>(){}\[\]$,=]+")
_SPLIT = re.compile(r"&&|\|\||[;|\n]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*")
_TWO_WORDS = frozenset(
    {*("git", "npm", "pnpm", "yarn", "pip", "pip3", "uv", "cargo", "go", "docker", "kubectl", "apt", "apt-get", "brew")}
    | {"conda", "poetry", "gh", "systemctl", "make"}
)
_WRAPPERS = frozenset({"sudo", "npx", "env", "time", "command", "exec", "nohup", "xargs"})
_PATCH = "*** Begin Patch"
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (\S+)", re.MULTILINE)
_SUBJECTS = ("file_path", "path", "notebook_path", "pattern", "glob", "query", "url")
_RUNNERS = ("python", "uv", "poetry", "bundle")
_LOOKS = frozenset(
    {*("ls", "cat", "head", "tail", "grep", "rg", "find", "pwd", "which", "file", "stat", "wc", "tree", "echo", "less")}
    | {*("git status", "git diff", "git log", "git show", "pip list", "pip show")}
    | {*("read", "grep", "glob", "ls", "websearch", "webfetch", "todowrite", "update_plan")}
)


class Words(NamedTuple):
    """An action taken apart."""

    program: str
    arguments: tuple[str, ...]


class Recovery(NamedTuple):
    """The step that mended, or why there is none."""

    step: Step | None
    reason: str


def find_recovery(steps: Sequence[Step], at: int) -> Recovery:
    """For the failed `steps[at]`. Reasons: same_intent, enabling_step; no_recovery, retry_succeeded, several_steps."""
    failed = steps[at]
    missing_command = read_mistake(failed).kind == "missing_command"
    between: list[Step] = []
    for step in steps[at + 1 : at + 1 + WINDOW]:
        if outcome(step) is not Outcome.SUCCEEDED:
            continue
        if _plain(step) == _plain(failed):
            if len(between) == 1:
                return Recovery(between[0], "enabling_step")
            return Recovery(None, "several_steps" if between else "retry_succeeded")
        if same_intent(failed, step, any_program=missing_command):
            return Recovery(step, "same_intent")
        if take_apart(step).program not in _LOOKS:
            between.append(step)
    return Recovery(None, "no_recovery")


def same_intent(failed: Step, later: Step, *, any_program: bool = False) -> bool:
    """As the module says."""
    a, b = take_apart(failed), take_apart(later)
    shared = sum(any(_near(word, other) for other in b.arguments) for word in a.arguments)
    alike = (shared > 0 and 2 * shared >= len(a.arguments)) or not (a.arguments or b.arguments)
    both = failed.is_command and later.is_command
    return alike and (a.program == b.program or (any_program and both and shared > 0))


def take_apart(step: Step) -> Words:
    """Program and argument words; for a tool call the tool, and the words of its short text arguments."""
    if not step.is_command:
        program = "edit" if step.is_edit else step.tool.lower()
        return Words(program, tuple(_words(" ".join(_subjects(step.action)))[:40]))
    if _PATCH in step.action:
        return Words("edit", tuple(_PATCHED.findall(step.action)))
    commands = [words for part in _SPLIT.split(step.action) if (words := _unwrapped(_words(part)))]
    commands = [words for words in commands if words[0] != "cd"] or commands
    if not commands:
        return Words("", ())
    first = commands[0]
    n = 2 if first[0] in _TWO_WORDS and len(first) > 1 and not first[1].startswith("-") else 1
    rest = [*first[n:], *(word for words in commands[1:] for word in words[1:])]
    return Words(" ".join([_base(first[0]), *first[1:n]]), tuple(w for w in rest if not w.startswith("-"))[:40])


def _unwrapped(words: list[str]) -> list[str]:
    while words:
        if _ASSIGNMENT.fullmatch(words[0]) or words[0] in _WRAPPERS:
            words = words[1:]
        elif words[1:2] in (["-m"], ["run"], ["exec"]) and _base(words[0]).startswith(_RUNNERS):
            words = words[2:]
        else:
            break
    return words


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text) if any(c.isalnum() or c == "." for c in word)]


def _subjects(action: str) -> list[str]:
    """What a tool call is about: its paths, patterns and the like, else its short texts."""
    try:
        arguments = json.loads(action)["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return _PATCHED.findall(action) or [action[:200]]
    if not isinstance(arguments, dict):
        return [str(arguments)[:200]]
    texts = {key: value for key, value in arguments.items() if isinstance(value, str) and len(value) <= 200}
    return [texts[key] for key in _SUBJECTS if key in texts] or list(texts.values())


def _near(a: str, b: str) -> bool:
    if a == b or (len(_base(a)) > 1 and _base(a) == _base(b)):
        return True
    return min(len(a), len(b)) > 2 and SequenceMatcher(None, _base(a)[:200], _base(b)[:200]).ratio() >= _NEAR


def _base(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


def _plain(step: Step) -> tuple[str, str]:
    return step.tool.lower(), " ".join(step.action.split())
