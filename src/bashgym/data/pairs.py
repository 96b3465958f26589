"""From preference pairs to the token ids that DPO is fed; preflight counts with the same.

A pair is one prompt and two answers, each followed by what the chat template writes at the end of a turn, or by the eos
in plain text. The answers begin where the tokens of prompt + answer part from those of the prompt alone, at the earlier
of both places, so that the prompt is the same in both sequences. Truncation keeps the answers whole: the prompt loses
its oldest tokens. A pair that then has no prompt, or whose answers have the same tokens, is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from bashgym.data.encode import IGNORED, Full, RowProblem, iter_full
from bashgym.data.preferences import PromptRow
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import LossPolicy, SftExample

_WHOLE_ROW = 1 << 20
"""Of a row that is read at all (64 MiB), every character is tokenised: the answers stand at its end."""


class AnswersDoNotFit(RowProblem):
    """A pair whose longer answer leaves no token of `max_length` to the prompt."""

    def __init__(self, row: int, needed: int) -> None:
        super().__init__("answers_do_not_fit", row, f"a prompt token and the longer answer need {needed} tokens")
        self.needed = needed


class EncodedPair(msgspec.Struct, gc=False):
    """One pair as token ids: `prompt_ids + chosen_ids` and `prompt_ids + rejected_ids` are what the model reads."""

    row: int
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
    full_length: int
    """Tokens of the prompt and the longer answer before truncation."""
    shifted: bool = False
    """The prompt tokenises differently alone than followed by an answer."""

    @property
    def length(self) -> int:
        """Tokens of the prompt and the longer answer."""
        return len(self.prompt_ids) + max(len(self.chosen_ids), len(self.rejected_ids))


def encode_pairs(
    bundle: TokenizerBundle,
    rows: Iterable[PromptRow],
    *,
    max_length: int,
    on_problem: Callable[[RowProblem], None] = lambda _: None,
) -> Iterator[tuple[PromptRow, EncodedPair]]:
    """The pairs that can be trained on, in order; `on_problem` gets the others, each once."""
    pending = deque[PromptRow]()
    refused = set[int]()

    def sides() -> Iterator[SftExample]:
        for row in rows:
            pending.append(row)
            for name in ("chosen", "rejected"):
                yield SftExample(row.number, prompt=row.prompt, completion=row.sides[name], tools=row.tools)

    def refuse(problem: RowProblem) -> None:
        if problem.row not in refused:
            refused.add(problem.row)
            on_problem(problem)

    first: Full | None = None
    for full in iter_full(bundle, sides(), max_length=_WHOLE_ROW, policy=LossPolicy.AUTO, on_problem=refuse):
        if first is None or first.row != full.row:
            first = full
            continue
        while pending[0].number != full.row:
            pending.popleft()
        row = pending.popleft()
        try:
            yield row, _pair(first, full, max_length)
        except RowProblem as problem:
            refuse(problem)


def _pair(chosen: Full, rejected: Full, max_length: int) -> EncodedPair:
    # What is not trained is a prefix, for a completion is trained whole.
    start = min(chosen.labels.count(IGNORED), rejected.labels.count(IGNORED))
    prompt = chosen.input_ids[:start]
    answers = chosen.input_ids[start:], rejected.input_ids[start:]
    longest = max(map(len, answers))
    for name, ids in zip(("prompt", "chosen", "rejected"), (prompt, *answers), strict=True):
        if not ids:
            raise RowProblem("side_without_tokens", chosen.row, f"{name} has no token of its own")
    if answers[0] == answers[1]:
        raise RowProblem("answers_have_the_same_tokens", chosen.row, "chosen and rejected have the same tokens")
    room = max_length - longest
    if room < 1 or chosen.capped or rejected.capped:
        raise AnswersDoNotFit(chosen.row, longest + 1)
    return EncodedPair(
        chosen.row, prompt[-room:], *answers, len(prompt) + longest, shifted=chosen.shifted or rejected.shifted
    )
