"""Prompts that are sampled from: which of them training sees, and what their tokens show before compute is spent.

Owns: the room that a prompt has, the tool that it announces, the findings in `CODES`. The trainer iterates with the same
`trainable` as preflight.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.errors import BashGymError
from bashgym.data.encode import CHARS_PER_TOKEN
from bashgym.data.findings import shown
from bashgym.data.preferences import PromptRow, Side
from bashgym.data.prompts import iter_prompt_rows
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.transitions import transition_rows
from bashgym.data.types import MAX_ROWS_LISTED, Finding, Severity
from bashgym.methods import registry

if TYPE_CHECKING:
    from bashgym.data.preflight import DatasetQuery, TokenStats

CODES: dict[str, tuple[Severity, str]] = {
    "prompt_too_long": (
        Severity.WARNING,
        "Raise max_seq_length, lower max_completion_length, or shorten these prompts; they are left out.",
    ),
    "prompt_not_rendered": (
        Severity.WARNING,
        "Use turns that the model's chat template takes, or plain prompts; these rows are left out.",
    ),
    "answers_longer_than_completion": (
        Severity.WARNING,
        "Raise max_completion_length above the reference answers, with max_seq_length if need be.",
    ),
    "plain_prompts_with_chat_model": (
        Severity.WARNING,
        "Set wrap_prompts to true, unless the model was trained on such plain text.",
    ),
    "system_prompt_not_applied": (
        Severity.WARNING,
        "Put the system prompt into prompt as a first message with the role system.",
    ),
    "template_without_tools": (
        Severity.ERROR,
        "Use environment_protocol text, or a model whose chat template has tools.",
    ),
    "first_prompt": (Severity.INFO, ""),
}
"""Finding code -> (severity, mend)."""
REFERENCES = (
    "reference_solution",
    "reference_answer",
    "reference",
    "solution",
    "answer",
    "ground_truth",
    "response",
    "completion",
)
"""Columns that may hold a right answer in full."""
SYSTEM_COLUMNS = ("system_prompt", "system", "system_message")
PREVIEW_CHARS = 400
BASH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs one bash command in the task's folder. Files stay for the next command; variables and "
        "processes do not.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command to run."}},
            "required": ["command"],
        },
        "return": {
            "type": "string",
            "description": "What it printed, its errors, and its exit status if that is not 0.",
        },
    },
}
"""The tool of the tools protocol as prompts announce it, which takes its tokens: `envs.rewards.tools.BashEnvironment.bash`."""


@dataclass
class Remarks:
    """What one pass over the prompts notes."""

    lengths: array[int] = field(default_factory=lambda: array("Q"))
    """Tokens of every prompt that could be rendered."""
    total: int = 0
    """Tokens of the prompts that training sees."""
    too_long: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    reason: str = ""
    plain: int = 0
    """Prompts that are plain text."""
    unapplied: list[int] = field(default_factory=list)
    """Rows with a system prompt in a column of its own."""
    long_answers: list[int] = field(default_factory=list)
    longest_answer: int = 0
    reference: str = ""
    first: str = ""
    first_has_system: bool = False


def completion_length(request: Mapping[str, Any]) -> int:
    """Most tokens of a sampled answer: max_completion_length, or half of the sequence."""
    return int(request["max_completion_length"] or request["max_seq_length"] // 2)


def uses_tools(request: Mapping[str, Any]) -> bool:
    """Whether episodes are conversations with a bash tool."""
    return bool(request["grpo_reward_mode"] == "environment" and request["environment_protocol"] == "tools")


def trainable(
    path: Path, bundle: TokenizerBundle, request: Mapping[str, Any], remarks: Remarks | None = None
) -> Iterator[PromptRow]:
    """The valid rows whose prompt leaves room for an answer within max_seq_length, in the order of the file.

    Plain prompts become a user turn with wrap_prompts, and for episodes with tools.
    """
    remarks, tools = remarks or Remarks(), [BASH_TOOL] if uses_tools(request) else None
    room = int(request["max_seq_length"]) - completion_length(request)
    wrap = bool(request["wrap_prompts"]) or tools is not None
    mode, mapping = request["grpo_reward_mode"], request["column_mapping"] or None
    if mode == "rwml":
        rows = transition_rows(path, int(request["rwml_history_window"]), wrap=wrap)
    else:
        rows = iter_prompt_rows(path, str(request["strategy"]), column_mapping=mapping, wrap=wrap, reward_mode=mode)
    for row in rows:
        try:
            text = shown_prompt(bundle, row.prompt, tools)
            count = len(bundle.encode(text[: _cap(room)], isinstance(row.prompt, str)))
        except BashGymError as error:
            remarks.broken.append(row.number)
            remarks.reason = remarks.reason or str(error)
            continue
        if not remarks.first:
            remarks.first, remarks.first_has_system = text, "system" in _roles(row.prompt)
        remarks.lengths.append(count)
        if count > room or len(text) > _cap(room):
            remarks.too_long.append(row.number)
        else:
            remarks.total += count
            yield row


def shown_prompt(bundle: TokenizerBundle, prompt: Side, tools: list[dict[str, Any]] | None = None) -> str:
    """The text that the model continues. `template_failed` where the model has no template, or it refuses the prompt."""
    return prompt if isinstance(prompt, str) else bundle.render(prompt, tools, add_generation_prompt=True)


def _roles(prompt: Side) -> set[str]:
    return {turn["role"] for turn in prompt} if isinstance(prompt, list) else set()


def _shows_tools(bundle: TokenizerBundle) -> bool:
    asked: Side = [{"role": "user", "content": "x"}]
    return shown_prompt(bundle, asked, [BASH_TOOL]) != shown_prompt(bundle, asked)


def _cap(tokens: int) -> int:
    """Characters beyond which a text is longer than `tokens`, whatever it says."""
    return max(tokens, 1024) * CHARS_PER_TOKEN


def token_pass(query: DatasetQuery, model_dir: Path) -> tuple[TokenStats, int, list[Finding]]:
    """Figures, rows that training sees, and findings.

    Of the figures, `total` counts the tokens of the prompts in an epoch, max, p50 and p95 are of the prompts, and
    `truncated_rows` are those left out as too long. `supervised` is 0: the answers that are trained do not exist yet.
    """
    from bashgym.data.preflight import TokenStats

    bundle, remarks = TokenizerBundle.load(model_dir), Remarks()
    request = whole_request(query)
    rows = 0
    for row in trainable(query.path, bundle, request, remarks):
        rows += 1
        _look(row, bundle, request, remarks)
    ordered = sorted(remarks.lengths) or [0]
    stats = TokenStats(
        total=remarks.total,
        supervised=0,
        max=ordered[-1],
        p50=ordered[(len(ordered) - 1) // 2],
        p95=ordered[(len(ordered) - 1) * 95 // 100],
        truncated_rows=len(remarks.too_long),
        zero_supervised_rows=0,
    )
    return stats, rows, [*_findings(remarks, rows, bundle, request)]


def whole_request(query: DatasetQuery) -> dict[str, Any]:
    """The request behind a query; a check without one has the method's defaults, and no reward mode for grpo."""
    own = {entry.name: entry.default for entry in registry.get(query.method).own_fields}
    own["grpo_reward_mode"] = None
    given = {"strategy": query.method, "column_mapping": query.column_mapping, "max_seq_length": query.max_seq_length}
    return {**own, **given, **query.options}


def _look(row: PromptRow, bundle: TokenizerBundle, request: Mapping[str, Any], remarks: Remarks) -> None:
    """Notes what the row's other columns show."""
    remarks.plain += isinstance(row.prompt, str)
    if "system" not in _roles(row.prompt) and any(isinstance(row.value.get(name), str) for name in SYSTEM_COLUMNS):
        remarks.unapplied.append(row.number)
    limit = completion_length(request)
    for name in REFERENCES:
        text = row.value.get(name)
        # Shorter than a token in every character: nothing to count.
        if isinstance(text, str) and len(text.encode("utf-8", "replace")) > limit:
            count = len(bundle.encode(text[: _cap(limit)].encode("utf-8", "replace").decode()))
            if count > limit:
                remarks.long_answers.append(row.number)
                remarks.longest_answer = max(remarks.longest_answer, count)
                remarks.reference = remarks.reference or name
                break


def _findings(remarks: Remarks, rows: int, bundle: TokenizerBundle, request: Mapping[str, Any]) -> Iterator[Finding]:
    seen, answer = len(remarks.lengths) + len(remarks.broken), completion_length(request)
    room = int(request["max_seq_length"]) - answer
    if remarks.too_long:
        text = (
            f"{len(remarks.too_long)} of {seen} prompts are longer than the {room} tokens that max_seq_length "
            f"{request['max_seq_length']} leaves beside an answer of {answer} (the longest has {max(remarks.lengths)})"
        )
        yield _finding("prompt_too_long", text, "max_completion_length", remarks.too_long, fatal=not rows)
    if remarks.broken:
        text = f"{len(remarks.broken)} of {seen} prompts cannot be rendered: {shown(remarks.reason, 120)}"
        yield _finding("prompt_not_rendered", text, "prompt", remarks.broken, fatal=not rows)
    if remarks.long_answers:
        text = (
            f"the reference answer (column {remarks.reference}) of {len(remarks.long_answers)} of {rows} rows is longer than "
            f"max_completion_length {answer} (up to {remarks.longest_answer} tokens): a sampled answer is cut before it is right"
        )
        yield _finding("answers_longer_than_completion", text, "max_completion_length", remarks.long_answers)
    if remarks.plain and bundle.chat_template is not None:
        text = f"{remarks.plain} of {rows} prompts are plain text, and the model has a chat template that they do not go through"
        yield _finding("plain_prompts_with_chat_model", text, "wrap_prompts")
    if uses_tools(request) and rows and not _shows_tools(bundle):
        text = "environment_protocol is tools, and the model's chat template leaves the bash tool out of the prompt"
        yield _finding("template_without_tools", text, "environment_protocol")
    if remarks.unapplied:
        text = f"{len(remarks.unapplied)} of {rows} rows have a system_prompt beside prompt, and it is not in what the model sees"
        yield _finding("system_prompt_not_applied", text, "prompt", remarks.unapplied)
    if remarks.first:
        system = "with" if remarks.first_has_system else "without"
        text = f"the first prompt as the model sees it, {system} a system prompt: {shown(remarks.first, PREVIEW_CHARS)}"
        yield _finding("first_prompt", text, "prompt")


def _finding(code: str, message: str, name: str, rows: list[int] | None = None, *, fatal: bool = False) -> Finding:
    severity, mend = CODES[code]
    listed = tuple((rows or [])[:MAX_ROWS_LISTED])
    return Finding(code, Severity.ERROR if fatal else severity, message, mend, name, listed, len(rows or []))
