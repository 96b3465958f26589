"""Reward examples as the token ids that a reward model reads: preflight, the trainer and the scorer use the same.

A preference is a pair (`data.pairs`): prompt + chosen and prompt + rejected, one score each. An outcome is prompt +
response, scored at its end. A process is the prompt and then each step followed by a line break, scored at the last
token of every step. Truncation keeps what is judged whole: the prompt loses its oldest tokens.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError
from bashgym.data import preferences
from bashgym.data.encode import IGNORED, RowProblem, iter_full
from bashgym.data.findings import Collector
from bashgym.data.pairs import AnswersDoNotFit, encode_pairs
from bashgym.data.preferences import PromptRow, Side
from bashgym.data.prompts import wrapped
from bashgym.data.readers import Scan
from bashgym.data.reward_examples import RewardExample, read_example
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import LossPolicy, SftExample

HEADS = {"preference": "SEQ_CLS", "outcome": "SEQ_CLS", "process": "TOKEN_CLS"}
"""What is learnt -> the head, by PEFT's name: one score a sequence, or one a token."""
_WHOLE_ROW = 1 << 20
_STEP_END = "\n"
_COLUMNS = {"preference": ("prompt", "chosen", "rejected"), "outcome": ("prompt", "response"), "process": ("prompt",)}


class RewardRow(msgspec.Struct):
    """An example with its sides as the model's template takes them."""

    example: RewardExample
    row: PromptRow


class ScoredSequence(msgspec.Struct, gc=False):
    """One sequence, the places where it is scored, and the rewards there."""

    row: int
    input_ids: list[int]
    ends: list[int]
    targets: list[float]
    full_length: int
    """Tokens before truncation."""


def read_row(
    number: int, value: dict[str, Any], collector: Collector, *, mapping: Mapping[str, str] | None = None
) -> RewardRow | None:
    """The row if it can be trained on; None after errors that name what is wrong."""
    if mapping:
        value = {**value, **{ours: value[theirs] for ours, theirs in mapping.items() if theirs in value}}
    example = read_example(number, value, collector)
    if example is None:
        return None
    columns = {name: name for name in _COLUMNS[example.kind]}
    if "response" in columns and not value.get("response"):
        columns["response"] = "trajectory"
    # `dpo` is the method whose rows are pairs; for the others only the sides are read.
    method = "dpo" if example.kind == "preference" else "reward_model"
    row = preferences.check_row(method, columns, number, value, collector)
    return RewardRow(example, _alike(row)) if row else None


def _alike(row: PromptRow) -> PromptRow:
    """Where one side is a conversation, all become turns."""
    return row if all(isinstance(side, str) for side in (row.prompt, *row.sides.values())) else wrapped(row)


def iter_rows(path: Path, *, mapping: Mapping[str, str] | None = None, wrap: bool = False) -> Iterator[RewardRow]:
    """The rows of a file that keep the contract, in order. Raises `dataset_*`."""
    collector = Collector([])
    for batch in Scan(path, collector):
        for number, value in zip(batch.numbers, batch.values, strict=True):
            made = read_row(number, value, collector, mapping=mapping)
            if made is not None:
                yield RewardRow(made.example, wrapped(made.row)) if wrap else made


class Selection(msgspec.Struct, frozen=True):
    """Which rows of a file are trained: those of one kind, and of one split where rows name theirs."""

    kind: str
    split: str | None
    """None: rows of every split, as in a file of evaluation rows."""

    def takes(self, example: RewardExample) -> bool:
        """Whether the row is trained."""
        return example.kind == self.kind and self.in_split(example)

    def in_split(self, example: RewardExample) -> bool:
        """A row without a split belongs to the training rows."""
        return self.split is None or example.split in ("", self.split)


def selected(path: Path, options: Mapping[str, Any], selection: Selection) -> Iterator[RewardRow]:
    """The rows of a file that a request trains on, in order."""
    mapping, wrap = options.get("column_mapping") or None, bool(options.get("wrap_prompts"))
    return (row for row in iter_rows(path, mapping=mapping, wrap=wrap) if selection.takes(row.example))


def count_kinds(path: Path, options: Mapping[str, Any]) -> Counter[str]:
    """Rows of the training split by kind."""
    split = Selection("", str(options["reward_train_split"]))
    rows = iter_rows(path, mapping=options.get("column_mapping") or None)
    return Counter(row.example.kind for row in rows if split.in_split(row.example))


def chosen_kind(kinds: Counter[str], options: Mapping[str, Any]) -> str:
    """The kind that is trained: what `reward_kind` says, else the most frequent one of the file."""
    asked = str(options["reward_kind"])
    return asked if asked != "auto" else max(kinds, key=lambda kind: kinds[kind], default="preference")


def encode_outcomes(
    bundle: TokenizerBundle,
    rows: Iterable[RewardRow],
    *,
    max_length: int,
    on_problem: Callable[[RowProblem], None] = lambda _: None,
) -> Iterator[tuple[RewardRow, ScoredSequence]]:
    """The outcomes that can be trained on, in order; `on_problem` gets the others."""
    pending = deque[RewardRow]()

    def outcomes() -> Iterator[SftExample]:
        for made in rows:
            pending.append(made)
            row = made.row
            yield SftExample(row.number, prompt=row.prompt, completion=row.sides["response"])

    for full in iter_full(
        bundle, outcomes(), max_length=_WHOLE_ROW, policy=LossPolicy.COMPLETION, on_problem=on_problem
    ):
        while pending[0].row.number != full.row:
            pending.popleft()
        made = pending.popleft()
        start = full.labels.count(IGNORED)
        try:
            _check_fits(made, start, len(full.input_ids) - start, max_length, capped=full.capped)
        except RowProblem as problem:
            on_problem(problem)
            continue
        ids = full.input_ids[-max_length:]
        yield made, ScoredSequence(full.row, ids, [len(ids) - 1], [made.example.reward], full.length)


def encode_processes(
    bundle: TokenizerBundle,
    rows: Iterable[RewardRow],
    *,
    max_length: int,
    on_problem: Callable[[RowProblem], None] = lambda _: None,
) -> Iterator[tuple[RewardRow, ScoredSequence]]:
    """The same of processes."""
    for made in rows:
        try:
            prompt = _prompt_ids(bundle, made.row.prompt, made.row.number)
            steps = [_ids(bundle, text + _STEP_END, made.row.number) for text, _ in made.example.steps]
            length = sum(map(len, steps))
            _check_fits(made, len(prompt), length, max_length)
        except RowProblem as problem:
            on_problem(problem)
            continue
        ids, ends = prompt[-(max_length - length) :], []
        for step in steps:
            ids += step
            ends.append(len(ids) - 1)
        targets = [reward for _, reward in made.example.steps]
        yield made, ScoredSequence(made.row.number, ids, ends, targets, len(prompt) + length)


def _check_fits(made: RewardRow, prompt: int, judged: int, max_length: int, *, capped: bool = False) -> None:
    if not prompt or not judged:
        name = "what is judged" if prompt else "prompt"
        raise RowProblem("side_without_tokens", made.row.number, f"{name} has no token of its own")
    if capped or judged >= max_length:
        raise AnswersDoNotFit(made.row.number, judged + 1)


def _prompt_ids(bundle: TokenizerBundle, prompt: Side, number: int) -> list[int]:
    if isinstance(prompt, str):
        return _ids(bundle, prompt, number, special=bundle.add_bos)
    try:
        return _ids(bundle, bundle.render(prompt, None, add_generation_prompt=True), number)
    except BashGymError as error:
        code = "template_error" if bundle.templates else "no_chat_template"
        raise RowProblem(code, number, error.message) from error


def _ids(bundle: TokenizerBundle, text: str, number: int, *, special: bool = False) -> list[int]:
    try:
        ids = bundle.encode(text)
    except TypeError as error:
        raise RowProblem("invalid_unicode", number, "the text holds a lone surrogate") from error
    return [bundle.bos_id, *ids] if special and bundle.bos_id is not None else ids


def sequences(
    bundle: TokenizerBundle,
    rows: Iterable[RewardRow],
    *,
    kind: str,
    max_length: int,
    on_problem: Callable[[RowProblem], None] = lambda _: None,
) -> Iterator[tuple[RewardRow, list[ScoredSequence]]]:
    """What is scored of each row: chosen and rejected of a pair (without targets), one sequence of the others."""
    how: dict[str, Any] = {"max_length": max_length, "on_problem": on_problem}
    if kind != "preference":
        encode = encode_processes if kind == "process" else encode_outcomes
        yield from ((made, [sequence]) for made, sequence in encode(bundle, rows, **how))
        return
    pending = deque[RewardRow]()

    def pairs() -> Iterator[PromptRow]:
        for made in rows:
            pending.append(made)
            yield made.row

    for row, pair in encode_pairs(bundle, pairs(), **how):
        while pending[0].row.number != row.number:
            pending.popleft()
        sides = [pair.prompt_ids + answer for answer in (pair.chosen_ids, pair.rejected_ids)]
        yield pending.popleft(), [ScoredSequence(pair.row, ids, [len(ids) - 1], [], pair.full_length) for ids in sides]
