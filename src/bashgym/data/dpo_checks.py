"""What tokens show of preference pairs, before compute is spent: the same rows and ids that the trainer is fed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bashgym.data.encode import IGNORED, Full, RowProblem
from bashgym.data.pairs import AnswersDoNotFit, EncodedPair, encode_pairs
from bashgym.data.preferences import PromptRow
from bashgym.data.prompts import iter_prompt_rows
from bashgym.data.types import MAX_ROWS_LISTED, Finding, LossPolicy, Severity, SftExample

if TYPE_CHECKING:
    from bashgym.data.preflight import DatasetQuery, TokenStats
    from bashgym.data.token_checks import Scan

CODES: dict[str, tuple[Severity, str]] = {
    "answers_do_not_fit": (Severity.WARNING, ""),
    "answers_have_the_same_tokens": (Severity.WARNING, "Leave these rows out: to the model they carry no preference."),
    "side_without_tokens": (Severity.WARNING, "Mend or drop these rows; end plain prompts without blank space."),
    "prompts_truncated": (Severity.WARNING, "Raise max_seq_length if what is cut off matters."),
    "length_tells_the_sides": (
        Severity.WARNING,
        "Add pairs in which the other side is the longer one, or expect a model that has learned the length.",
    ),
    "tools_not_rendered": (Severity.WARNING, "Set wrap_prompts, or write the prompts as conversations."),
}
"""Finding code -> (severity, mend)."""

_FEW = 20
_LOPSIDED = 0.95
_LONGER = 1.5
"""From `_FEW` pairs on: at least `_LOPSIDED` of them have the same side longer, by `_LONGER` on average."""


def token_pass(query: DatasetQuery, model_dir: Path) -> tuple[TokenStats | None, int, list[Finding]]:
    """Figures, pairs that training sees, and findings. Tokens are those of both sequences of a pair."""
    wrap = bool(query.options.get("wrap_prompts"))
    rows = iter_prompt_rows(query.path, "dpo", column_mapping=query.column_mapping, wrap=wrap)
    return pairs_pass(query, model_dir, rows)


def pairs_pass(
    query: DatasetQuery, model_dir: Path, rows: Iterable[PromptRow]
) -> tuple[TokenStats | None, int, list[Finding]]:
    """The same of given pairs."""
    from bashgym.data import token_checks
    from bashgym.data.tokens import TokenizerBundle

    bundle = TokenizerBundle.load(model_dir)
    scan, seen = token_checks.Scan(bundle, query.max_seq_length), _Seen(query.max_seq_length)

    def refuse(problem: RowProblem) -> None:
        if problem.code in CODES:
            seen.dropped.setdefault(problem.code, []).append(problem)
        else:
            scan.refuse(problem)

    for _, pair in encode_pairs(bundle, seen.watch(scan, rows), max_length=query.max_seq_length, on_problem=refuse):
        answer = max(pair.chosen_ids, pair.rejected_ids, key=max)
        ids = [*pair.prompt_ids, *answer]
        labels = [*[IGNORED] * len(pair.prompt_ids), *answer]
        scan.add(Full(pair.row, ids, labels, len(ids), shifted=pair.shifted))
        seen.add(pair)
    found = [*token_checks.findings(scan, LossPolicy.COMPLETION, None), *seen.findings(scan.trainable)]
    return seen.stats(scan.stats()), scan.trainable, found


@dataclass
class _Seen:
    """What one pass notes for the figures and the findings."""

    limit: int
    dropped: dict[str, list[RowProblem]] = field(default_factory=dict)
    truncated: list[int] = field(default_factory=list)
    plain_with_tools: list[int] = field(default_factory=list)
    lengths: array[int] = field(default_factory=lambda: array("Q"))
    pairs = prompt = chosen = rejected = chosen_longer = rejected_longer = 0

    def watch(self, scan: Scan, rows: Iterable[PromptRow]) -> Iterator[PromptRow]:
        """The same rows, looked at on the way."""
        for row in rows:
            self.pairs += 1
            answers = [side for side in row.sides.values() if isinstance(side, list)]
            turns = [turn for answer in answers for turn in answer]
            list(scan.watch([SftExample(row.number, prompt=row.prompt, completion=turns)]))
            if row.tools and isinstance(row.prompt, str):
                self.plain_with_tools.append(row.number)
            yield row

    def add(self, pair: EncodedPair) -> None:
        """An encoded pair."""
        chosen, rejected = len(pair.chosen_ids), len(pair.rejected_ids)
        self.prompt += len(pair.prompt_ids)
        self.chosen += chosen
        self.rejected += rejected
        self.chosen_longer += chosen > rejected
        self.rejected_longer += rejected > chosen
        self.lengths.append(pair.full_length)
        if pair.full_length > pair.length:
            self.truncated.append(pair.row)

    def stats(self, stats: TokenStats) -> TokenStats:
        """Lengths are those of the prompt and the longer answer before truncation."""
        ordered = sorted(self.lengths) or [0]
        return msgspec.structs.replace(
            stats,
            total=2 * self.prompt + self.chosen + self.rejected,
            supervised=self.chosen + self.rejected,
            max=ordered[-1],
            p50=ordered[(len(ordered) - 1) // 2],
            p95=ordered[(len(ordered) - 1) * 95 // 100],
            truncated_rows=len(self.truncated),
            zero_supervised_rows=sum(map(len, self.dropped.values())),
        )

    def findings(self, trainable: int) -> Iterator[Finding]:
        """What there is to say, in words."""
        for code, problems in self.dropped.items():
            rows = [problem.row for problem in problems]
            text = f"{len(rows)} of {self.pairs} pairs are left out, row {rows[0]} because {problems[0].message}"
            made = _finding(code, text, rows)
            changes: dict[str, object] = {} if trainable else {"severity": Severity.ERROR}
            needed = [problem.needed for problem in problems if isinstance(problem, AnswersDoNotFit)]
            if needed:
                mend = f"With max_seq_length {max(needed)} or more every such pair is trained."
                changes |= {"mend": mend, "field": "max_seq_length"}
            yield msgspec.structs.replace(made, **changes)
        if self.truncated:
            text = f"{len(self.truncated)} of {len(self.lengths)} prompts lose their oldest tokens, "
            text += f"so that the answers fit into max_length {self.limit}"
            yield _finding("prompts_truncated", text, self.truncated, "max_seq_length")
        if self.plain_with_tools:
            text = f"{len(self.plain_with_tools)} of {self.pairs} prompts are plain text, where their tools do not show"
            yield _finding("tools_not_rendered", text, self.plain_with_tools, "wrap_prompts")
        longer, count = max(("chosen", self.chosen_longer), ("rejected", self.rejected_longer), key=lambda it: it[1])
        kept, sums = len(self.lengths), sorted((self.chosen, self.rejected))
        if kept >= _FEW and count >= _LOPSIDED * kept and sums[1] >= _LONGER * sums[0]:
            text = (
                f"{longer} is the longer answer in {count} of {kept} pairs ({sums[1] / sums[0]:.1f} times the tokens)"
            )
            yield _finding("length_tells_the_sides", text, [], longer)


def _finding(code: str, message: str, rows: list[int], name: str = "dataset_path") -> Finding:
    severity, mend = CODES[code]
    return Finding(code, severity, message, mend, name, tuple(rows[:MAX_ROWS_LISTED]), len(rows))
