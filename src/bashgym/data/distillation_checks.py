"""Rows with a teacher's answer as the tokens that distillation trains on, and what those tokens show before compute is spent.

Owns: what stands for prompt and answer, which rows training sees, the findings in `CODES`. The trainer iterates with the
same `encoded_rows` as preflight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.data.encode import IGNORED, RowProblem, iter_full
from bashgym.data.prompts import iter_prompt_rows
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import MAX_ROWS_LISTED, Encoded, Finding, LossPolicy, Severity, SftExample
from bashgym.methods import registry

if TYPE_CHECKING:
    from bashgym.data.preflight import DatasetQuery, TokenStats

CODES: dict[str, tuple[Severity, str]] = {
    "no_room_to_sample": (
        Severity.ERROR,
        "Raise max_seq_length, lower max_completion_length, or shorten these prompts; they are left out.",
    ),
    "answer_in_prompt": (
        Severity.WARNING,
        "Cut these turns from the prompts: teacher_response takes their place.",
    ),
}
"""Finding code -> (severity, mend)."""


@dataclass
class Remarks:
    """Rows that were read otherwise than they stand in the file."""

    answered: list[int] = field(default_factory=list)
    """The prompt ended with assistant turns, which were left out."""
    no_room: list[int] = field(default_factory=list)
    """On-policy: the prompt leaves no room for an answer."""


def completion_length(request: Mapping[str, Any]) -> int:
    """Most tokens of a sampled answer: max_completion_length, or half of the sequence."""
    return int(request["max_completion_length"] or request["max_seq_length"] // 2)


def examples(path: Path, request: Mapping[str, Any], remarks: Remarks | None = None) -> Iterator[SftExample]:
    """The valid rows as prompt and completion. In a conversation the answer is one assistant turn."""
    mapping = request["column_mapping"] or None
    for row in iter_prompt_rows(path, "distillation", column_mapping=mapping, wrap=bool(request["wrap_prompts"])):
        prompt, answer = row.prompt, row.sides["teacher_response"]
        if isinstance(prompt, list):
            asked = max((at for at, turn in enumerate(prompt, 1) if turn["role"] != "assistant"), default=len(prompt))
            if asked < len(prompt) and remarks is not None:
                remarks.answered.append(row.number)
            prompt = prompt[:asked]
            answer = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
        yield SftExample(row.number, prompt=prompt, completion=answer)


def answer_start(encoded: Encoded) -> int:
    """The index of the first trained token; the length of the row if none is."""
    return next((at for at, label in enumerate(encoded.labels) if label != IGNORED), len(encoded.labels))


def encoded_rows(
    bundle: TokenizerBundle, path: Path, request: Mapping[str, Any], remarks: Remarks | None = None
) -> Iterator[tuple[SftExample, Encoded]]:
    """Every row that training sees, in the order of the file.

    Off-policy: with a trained token within max_seq_length. On-policy: with room for an answer behind its prompt.
    """
    length, pending = int(request["max_seq_length"]), deque[SftExample]()
    room = length - completion_length(request) if request["distillation_on_policy"] else None

    def remembered() -> Iterator[SftExample]:
        for example in examples(path, request, remarks):
            pending.append(example)
            yield example

    for full in iter_full(bundle, remembered(), max_length=length, policy=LossPolicy.AUTO, on_problem=_left_out):
        while pending[0].row != full.row:
            pending.popleft()
        example, encoded = pending.popleft(), full.truncated(length)
        if room is not None and not 0 < answer_start(encoded) <= room:
            if remarks is not None:
                remarks.no_room.append(full.row)
        elif room is not None or encoded.supervised:
            yield example, encoded


def _left_out(problem: RowProblem) -> None:
    """Preflight has reported it."""


def token_pass(query: DatasetQuery, model_dir: Path) -> tuple[TokenStats | None, int, list[Finding]]:
    """Figures, rows that training sees, and findings."""
    from bashgym.data import token_checks

    bundle, remarks = TokenizerBundle.load(model_dir), Remarks()
    # A check without a request has the file's own settings and the method's defaults.
    own = {entry.name: entry.default for entry in registry.get("distillation").own_fields}
    given = {"column_mapping": query.column_mapping, "max_seq_length": query.max_seq_length}
    request = {**own, **given, **query.options}
    scan = token_checks.Scan(bundle, query.max_seq_length)
    watched = scan.watch(examples(query.path, request, remarks))
    limits = {"max_length": query.max_seq_length, "batch": 2048}
    for full in iter_full(bundle, watched, **limits, policy=LossPolicy.AUTO, on_problem=scan.refuse):
        scan.add(full)
    found = token_checks.findings(scan, LossPolicy.AUTO, None)
    trainable = scan.trainable
    if request["distillation_on_policy"]:
        answers = ("truncated_rows", "zero_supervised_tokens", "stop_token_not_trained")
        found = [finding for finding in found if finding.code not in answers]
        trainable = sum(1 for _ in encoded_rows(bundle, query.path, request, remarks))
    return scan.stats(), trainable, [*found, *_remarks(remarks, scan.examples, request)]


def _remarks(remarks: Remarks, rows: int, request: Mapping[str, Any]) -> Iterable[Finding]:
    room = int(request["max_seq_length"]) - completion_length(request)
    said = (
        (
            "no_room_to_sample",
            f"the prompt of {{n}} of {rows} rows is longer than the {room} tokens that max_seq_length "
            f"{request['max_seq_length']} leaves beside a sampled answer of {completion_length(request)}",
            remarks.no_room,
            "max_completion_length",
        ),
        (
            "answer_in_prompt",
            f"the prompt of {{n}} of {rows} rows ends with an assistant turn, which is left out",
            sorted(set(remarks.answered)),
            "prompt",
        ),
    )
    for code, text, at, name in said:
        if at:
            severity, mend = CODES[code]
            listed = tuple(at[:MAX_ROWS_LISTED])
            yield Finding(code, severity, text.format(n=len(at)), mend, name, listed, len(at))
