"""Rows of the methods that train on prompts: preference pairs, prompts with a ground truth, teacher answers.

Owns: their columns under any known name, and what is wrong with a row. Does not own: SFT rows (`formats`), reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from bashgym.core.errors import fail
from bashgym.data import ground, unpaired
from bashgym.data import messages as chat
from bashgym.data.findings import Collector, shown
from bashgym.data.jsonfaults import json_type
from bashgym.data.types import MAX_ROWS_LISTED, Finding, Severity
from bashgym.methods.grpo import NEEDS

Side = str | list[dict[str, Any]]

_PROMPTS = ("prompt", "instruction", "question", "query", "user_prompt", "problem", "messages", "conversations")
ALIASES: dict[str, tuple[str, ...]] = {
    "prompt": _PROMPTS,
    "chosen": ("chosen", "chosen_response", "response_j", "chosen_messages"),
    "rejected": ("rejected", "rejected_response", "response_k", "rejected_messages"),
    "teacher_response": ("teacher_response", "teacher_output"),
    **ground.COLUMNS,
}
"""Canonical name -> the columns that are read as it, the first one that a file has."""
_REQUIRED: dict[str, tuple[str, ...]] = {
    "dpo": ("prompt", "chosen", "rejected"),
    "grpo": ("prompt",),
    "rlvr": ("prompt",),
    "distillation": ("prompt", "teacher_response"),
}
METHODS = tuple(_REQUIRED)
TRUTH_COLUMNS = (*ground.COLUMNS["answer"], *ground.COLUMNS["tests"], *ground.COLUMNS["environment"])
_AMBIGUOUS = {"input", "output"}


class PromptRow(msgspec.Struct):
    """One checked row."""

    prompt: Side
    sides: dict[str, Side]
    """chosen and rejected, or teacher_response."""
    number: int = 0
    """1-based: the line in JSONL, the index in an array."""
    value: dict[str, Any] = {}
    """The row as it stands in the file."""
    tools: list[dict[str, Any]] | None = None
    """The `tools` column of a preference pair."""


def required(method: str, reward_mode: str | None = None) -> tuple[str, ...]:
    """What a row must hold. Without a reward mode, grpo asks for a prompt alone and rlvr has its default mode."""
    mode = reward_mode or ("verification" if method == "rlvr" else "")
    needs = NEEDS.get(mode) if method in ("grpo", "rlvr") else None
    return (*_REQUIRED[method], *([needs] if needs else []))


def resolve(
    method: str,
    rows: list[dict[str, Any]],
    mapping: Mapping[str, str] | None,
    path: Path,
    reward_mode: str | None = None,
) -> dict[str, str]:
    """Canonical name -> column. `dataset_format` naming the found and the needed columns if one cannot be told."""
    found = {key for row in rows for key in row}
    columns: dict[str, str] = {}
    wanted = required(method, reward_mode)
    for name in wanted:
        given = (mapping or {}).get(name)
        fitting = [given] if given else [column for column in ALIASES[name] if column in found]
        if given and given not in found:
            _refuse(wanted, method, found, path, f"the mapping gives {name}={given}, and there is no column {given!r}")
        if fitting:
            columns[name] = fitting[0]
    chosen = columns.get("chosen", "")
    implicit = any(isinstance(row.get(chosen), list) for row in rows)
    missing = [name for name in wanted if name not in columns and not (name == "prompt" and implicit)]
    label = next((column for column in unpaired.LABELS if column in found), None)
    if method == "dpo" and label and {"chosen", "rejected"} <= set(missing):
        unpaired.refuse(path, label)
    if missing:
        _refuse(wanted, method, found, path, f"nothing fits {' and '.join(missing)}")
    return columns


def mapping_note(columns: dict[str, str]) -> str:
    """The mapping in words; empty if every column has its canonical name."""
    if "prompt" in columns and all(column == name for name, column in columns.items()):
        return ""
    parts = [name if column == name else f"{column} -> {name}" for name, column in columns.items()]
    return ", ".join(
        parts if "prompt" in columns else ["the first turns that chosen and rejected share -> prompt", *parts]
    )


def check_row(
    method: str, columns: dict[str, str], number: int, value: dict[str, Any], collector: Collector
) -> PromptRow | None:
    """A row whose needed columns are there and not empty; None after errors that name what is not."""
    errors = collector.errors
    sides: dict[str, Side] = {}
    for name, column in columns.items():
        if name in ground.COLUMNS:
            ground.check(name, value.get(column), column, number, collector)
            continue
        sides[name] = _side(value.get(column), name, column, number, collector)
    if collector.errors != errors:
        return None
    if "prompt" not in columns:
        sides["prompt"] = _shared_prompt(sides, number, collector)
    tools = None
    if method == "dpo":
        tools = chat.parse_tools(value.get("tools"), number, collector)
        _as_turns(sides, number, collector)
    if method in ("grpo", "rlvr") and isinstance(sides["prompt"], list):
        sides["prompt"] = [turn for turn in sides["prompt"] if turn["role"] != "assistant"]
    if not sides["prompt"]:
        collector.error("empty_side", "the prompt is empty", number, "prompt")
    if collector.errors != errors:
        return None
    return PromptRow(sides.pop("prompt"), sides, number, value, tools)


def _side(raw: object, name: str, column: str, number: int, collector: Collector) -> Side:
    """A text or a list of canonical messages."""
    label = name if name == column else f"{name} (column {column})"
    if isinstance(raw, str):
        if not raw.strip():
            collector.error("empty_side", f"{label} is empty", number, name)
        return raw
    if raw is None:
        collector.error("missing_column", f"{label} is missing", number, name)
        return ""
    if isinstance(raw, list | dict) and name != "teacher_response":
        conversation = chat.normalise(raw if isinstance(raw, list) else [raw], number, collector, column=column)
        if conversation is None:
            return ""
        if not any((turn["content"] or "").strip() or turn.get("tool_calls") for turn in conversation.messages):
            collector.error("empty_side", f"{label} is empty", number, name)
        return conversation.messages
    collector.error("mixed_types", f"{label} is a {json_type(raw)}, not a string", number, name, sample=raw)
    return ""


def _shared_prompt(sides: dict[str, Side], number: int, collector: Collector) -> Side:
    """Cuts the common first turns off chosen and rejected and returns them."""
    chosen, rejected = sides["chosen"], sides["rejected"]
    if not isinstance(chosen, list) or not isinstance(rejected, list):
        collector.error(
            "missing_column", "prompt is missing, and chosen and rejected are not conversations", number, "prompt"
        )
        return ""
    shared = _shared_turns(chosen, rejected)
    if not shared:
        collector.error("no_shared_prompt", "chosen and rejected do not begin with the same turns", number, "prompt")
    sides["chosen"], sides["rejected"] = chosen[shared:], rejected[shared:]
    return chosen[:shared]


def _shared_turns(chosen: list[dict[str, Any]], rejected: list[dict[str, Any]]) -> int:
    """How many first turns are the same, the last turn of either left aside."""
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    return shared


def _as_turns(sides: dict[str, Side], number: int, collector: Collector) -> None:
    """Where one of prompt, chosen and rejected is a conversation, all become turns; a repeated prompt is cut off."""
    if all(isinstance(side, str) for side in sides.values()):
        return
    prompt, *answers = (
        [{"role": role, "content": side}] if isinstance(side, str) else side
        for role, side in (("user", sides["prompt"]), ("assistant", sides["chosen"]), ("assistant", sides["rejected"]))
    )
    asked = [turn for turn in prompt if turn["role"] != "system"]
    shared = _shared_turns(*answers)
    begun = answers[0][:shared]
    # Some files give the prompt by itself and again as the first turns of both answers.
    if asked and [turn for turn in begun if turn["role"] != "system"][: len(asked)] == asked:
        system = [] if begun[0]["role"] == "system" else [turn for turn in prompt if turn["role"] == "system"]
        prompt, answers = [*system, *begun], [answer[shared:] for answer in answers]
    for name, answer in zip(("chosen", "rejected"), answers, strict=True):
        if all(turn["role"] != "assistant" for turn in answer):
            collector.error("no_assistant_turn", f"{name} has no assistant turn", number, name)
        sides[name] = answer
    sides["prompt"] = prompt


class PairWatch:
    """Counts pairs whose two sides say the same, which teach nothing: the loss stays at ln 2."""

    def __init__(self) -> None:
        self.exact = self.blank = 0
        self.rows: list[int] = []

    def add(self, number: int, row: PromptRow) -> bool:
        """True if the pair is identical."""
        chosen, rejected = (side_text(row.sides[name]) for name in ("chosen", "rejected"))
        if chosen.split() != rejected.split():
            return False
        self.exact += chosen == rejected
        self.blank += chosen != rejected
        if len(self.rows) < MAX_ROWS_LISTED:
            self.rows.append(number)
        return True

    def finding(self, total: int) -> Finding | None:
        """An error that counts them, or None."""
        count = self.exact + self.blank
        if not count:
            return None
        return Finding(
            code="chosen_equals_rejected",
            severity=Severity.ERROR,
            message=f"chosen and rejected are identical in {count} of {total} rows"
            f" ({self.exact} exactly, {self.blank} but for white space)",
            mend="Leave these rows out: they carry no preference.",
            field="rejected",
            rows=tuple(self.rows),
            count=count,
        )


class TypeWatch:
    """Columns whose JSON type changes between rows: a loader would turn "007" into 7 or "true" into true."""

    def __init__(self) -> None:
        self.ignored: set[str] = set()
        self._seen: dict[str, dict[str, list[int]]] = {}
        self._count: dict[tuple[str, str], int] = {}

    def add(self, number: int, value: dict[str, Any]) -> None:
        """Notes the types of one row. At most 200 columns are watched."""
        for column, item in value.items():
            if column in self.ignored or item is None or (column not in self._seen and len(self._seen) >= 200):
                continue
            kind = json_type(item)
            self._count[column, kind] = self._count.get((column, kind), 0) + 1
            rows = self._seen.setdefault(column, {}).setdefault(kind, [])
            if len(rows) < MAX_ROWS_LISTED:
                rows.append(number)

    def findings(self) -> list[Finding]:
        """One per mixed column; an error where rewards compare against it, else a warning."""
        return [self._finding(column, kinds) for column, kinds in self._seen.items() if len(kinds) > 1]

    def _finding(self, column: str, kinds: dict[str, list[int]]) -> Finding:
        counts = {kind: self._count[column, kind] for kind in kinds}
        main = max(counts, key=lambda kind: counts[kind])
        rest = {kind: rows for kind, rows in kinds.items() if kind != main}
        parts = [f"{kind} in {counts[kind]} row(s) ({', '.join(map(str, rows[:5]))})" for kind, rows in rest.items()]
        return Finding(
            code="mixed_types",
            severity=Severity.ERROR if column in TRUTH_COLUMNS else Severity.WARNING,
            message=f"the column {shown(column, 40)} has mixed types: {main} in {counts[main]} row(s), "
            + ", ".join(parts),
            mend=f"Write {shown(column, 40)} as a string in every row, so that it is compared as written.",
            field=column,
            rows=tuple(sorted(row for rows in rest.values() for row in rows)[:MAX_ROWS_LISTED]),
            count=sum(count for kind, count in counts.items() if kind != main),
        )


def side_text(side: Side) -> str:
    """What a side says, tool calls included."""
    if isinstance(side, str):
        return side
    parts = [[turn["content"], repr(turn["tool_calls"]) if turn.get("tool_calls") else None] for turn in side]
    return "\n".join(part for turn in parts for part in turn if part)


def _refuse(wanted: tuple[str, ...], method: str, found: set[str], path: Path, reason: str) -> NoReturn:
    needed = ", ".join(wanted)
    hint = f"Name them: --column-mapping {wanted[-1]}=COLUMN."
    if found >= _AMBIGUOUS:
        hint = (
            "Which column is the prompt and which the ground truth? Say so, e.g. prompt=input and answer=output. "
            + hint
        )
    listed = ", ".join(shown(key, 40) for key in sorted(found)[:20])
    raise fail(
        "dataset_format",
        f"{path}: {reason}. Columns found: {listed or 'none'}. Needed for {method}: {needed}",
        hint=hint,
        fields=sorted(found)[:20],
    )
