"""Replay records as training rows: the valid ones with their advantages, and what tokens show before compute is spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bashgym.core.errors import BashGymError
from bashgym.data.dppo import ZERO_STD, group_statistics
from bashgym.data.findings import Collector
from bashgym.data.readers import Scan as Reader
from bashgym.data.replay_records import ReplayRecord, parse_record
from bashgym.data.replay_tokens import CONTEXT, sequences
from bashgym.data.types import MAX_ROWS_LISTED, Finding, Severity

if TYPE_CHECKING:
    from bashgym.data.preflight import DatasetQuery, TokenStats
    from bashgym.data.tokens import TokenizerBundle

CODES: dict[str, tuple[Severity, str]] = {
    "replay_invalid": (Severity.ERROR, "Use the model that recorded the replay, and record token ids where you can."),
    "behavior_logprobs_missing": (
        Severity.WARNING,
        "Record with capture_logprobs; tokens without a behaviour log probability are not trained.",
    ),
    "rollout_does_not_fit": (Severity.WARNING, ""),
    "turns_apart": (
        Severity.INFO,
        "The template rewrites earlier turns, so each turn is read in a sequence of its own: rows are sequences.",
    ),
    "groups_without_contrast": (Severity.WARNING, "Record several attempts at tasks of middling difficulty."),
    "advantage_differs": (
        Severity.WARNING,
        "The recorded advantage is used. Enrich the file again if records were added or taken out.",
    ),
    "rollouts_in_both_splits": (Severity.INFO, "Give another replay as eval_dataset_path for environments apart."),
}
"""Finding code -> (severity, mend)."""
_NOT_THIS_MODEL = ("replay_invalid", "template_failed")
"""What tokenising a record may raise: the row is refused, the others stay."""


@dataclass(frozen=True)
class Rollout:
    """A valid record with its place in the file and what its group says of it."""

    row: int
    record: ReplayRecord
    advantage: float
    """The recorded one, else reward - group mean."""
    group_mean: float
    group_std: float
    """Population standard deviation of the group's rewards."""

    @property
    def contrast(self) -> bool:
        """Whether the group's rewards differ."""
        return self.group_std > ZERO_STD


def scan_replay(reader: Reader, collector: Collector) -> Iterator[tuple[int, ReplayRecord]]:
    """(row, record) of the valid rows; errors name what is wrong with the others."""
    seen: dict[tuple[str, str, int], int] = {}
    for batch in reader:
        for number, value in zip(batch.numbers, batch.values, strict=True):
            try:
                record = parse_record(value)
            except BashGymError as error:
                collector.error("replay_invalid", error.message, number, error.fields[0])
                continue
            first = seen.setdefault(record.key, number)
            if first != number:
                text = "repeats the batch, environment and attempt of an earlier row"
                collector.error("replay_invalid", text, number, "attempt_index")
            elif not any(turn.get("role") == "assistant" for turn in record.trajectory.messages):
                text = "holds no answer of the model and is left out"
                collector.warn("nothing_sampled", text, number, "trajectory.messages")
            elif not any(logprob is not None for logprob in record.behavior_logprobs()):
                text = "has no behaviour log probability, so there is nothing to train on"
                collector.error("replay_invalid", text, number, "behavior_policy")
            else:
                yield number, record


def rollouts(path: Path) -> list[Rollout]:
    """The valid records of a file. Raises `dataset_*`."""
    collector = Collector([])
    found = list(scan_replay(Reader(path, collector), collector))
    groups = group_statistics((record.group, record.reward) for _, record in found)
    made = []
    for row, record in found:
        mean, std = groups[record.group]
        given = record.optimizer.advantage
        made.append(Rollout(row, record, record.reward - mean if given is None else given, mean, std))
    return made


def token_pass(query: DatasetQuery, model_dir: Path) -> tuple[TokenStats | None, int, list[Finding]]:
    """Figures, sequences that training sees, and findings."""
    from bashgym.data.tokens import TokenizerBundle

    bundle, limit = TokenizerBundle.load(model_dir), query.max_seq_length
    seen = _Seen(limit)
    found = rollouts(query.path)
    for rollout in found:
        seen.add(bundle, rollout)
    more = []
    if query.eval_split and not query.eval_path:
        text = "eval_split cuts attempts at one environment apart"
        more.append(_finding("rollouts_in_both_splits", text, [], "eval_split"))
    return seen.stats(), len(seen.lengths), [*seen.findings(found), *more]


class _Seen:
    """What one pass notes for the figures and the findings."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lengths: list[int] = []
        self.trained = self.longest = 0
        self.refused: list[tuple[int, str]] = []
        self.too_long: list[int] = []
        self.uncovered: list[int] = []
        self.apart: list[int] = []

    def add(self, bundle: TokenizerBundle, rollout: Rollout) -> None:
        """A record, tokenised."""
        try:
            made = rows_of(bundle, rollout, self.limit)
        except BashGymError as error:
            if error.code not in _NOT_THIS_MODEL:
                raise
            self.refused.append((rollout.row, error.message))
            return
        fit = [row for row in made if len(row.input_ids) <= self.limit]
        self.lengths += [len(row.input_ids) for row in fit]
        self.trained += sum(len(row.logprobs) - row.logprobs.count(None) for row in fit)
        if len(fit) < len(made):
            self.too_long.append(rollout.row)
            self.longest = max(self.longest, *(len(row.input_ids) for row in made))
        if None in rollout.record.behavior_logprobs():
            self.uncovered.append(rollout.row)
        if len(made) > 1:
            self.apart.append(rollout.row)

    def stats(self) -> TokenStats:
        """Of the sequences that fit."""
        from bashgym.data.preflight import TokenStats

        ordered = sorted(self.lengths) or [0]
        at = len(ordered) - 1
        return TokenStats(
            total=sum(self.lengths),
            supervised=self.trained,
            max=ordered[-1],
            p50=ordered[at // 2],
            p95=ordered[at * 95 // 100],
            truncated_rows=0,
            zero_supervised_rows=len(self.too_long),
        )

    def findings(self, found: list[Rollout]) -> Iterator[Finding]:
        """What there is to say, in words."""
        if self.refused:
            text = f"{len(self.refused)} records are not this model's: {self.refused[0][1]}"
            yield _finding("replay_invalid", text, [row for row, _ in self.refused], "base_model")
        if self.too_long:
            text = f"{len(self.too_long)} records have sequences over max_seq_length {self.limit}, which are left out"
            made = _finding("rollout_does_not_fit", text, self.too_long, "max_seq_length")
            severity = made.severity if self.lengths else Severity.ERROR
            mend = f"With max_seq_length {self.longest} or more all of them are trained."
            yield msgspec.structs.replace(made, severity=severity, mend=mend)
        if self.uncovered:
            text = f"{len(self.uncovered)} records lack behaviour log probabilities of some tokens"
            yield _finding("behavior_logprobs_missing", text, self.uncovered, "behavior_policy")
        if self.apart:
            text = f"{len(self.apart)} records are read in several sequences"
            yield _finding("turns_apart", text, self.apart, "trajectory")
        flat = [rollout.row for rollout in found if not rollout.contrast]
        if flat:
            text = f"{len(flat)} of {len(found)} records are in groups of equal rewards and teach nothing"
            made = _finding("groups_without_contrast", text, flat, "reward")
            yield msgspec.structs.replace(made, severity=Severity.ERROR) if len(flat) == len(found) else made
        differ = [r.row for r in found if abs(r.advantage - (r.record.reward - r.group_mean)) > 1e-6]
        if differ:
            text = f"{len(differ)} recorded advantages are not reward - group mean of this file"
            yield _finding("advantage_differs", text, differ, "optimizer")


def _finding(code: str, message: str, rows: list[int], name: str) -> Finding:
    severity, mend = CODES[code]
    return Finding(code, severity, message, mend, name, tuple(rows[:MAX_ROWS_LISTED]), len(rows))


@dataclass(frozen=True)
class TrainingRow:
    """One sequence of a rollout."""

    rollout: Rollout
    input_ids: list[int]
    logprobs: list[float | None]
    """Behaviour log probability per token; None where it is not trained."""
    sampled: int
    """Sampled tokens, those without a log probability too."""


def rows_of(bundle: TokenizerBundle, rollout: Rollout, max_length: int) -> list[TrainingRow]:
    """The sequences of a rollout that train something, those over `max_length` too. Raises as `sequences` does."""
    values = rollout.record.behavior_logprobs()
    made = []
    for sequence in sequences(bundle, rollout.record, max_length):
        logprobs = [None if slot == CONTEXT else values[slot] for slot in sequence.slots]
        if logprobs.count(None) < len(logprobs):
            made.append(TrainingRow(rollout, sequence.input_ids.tolist(), logprobs, sequence.sampled))
    return made


def trainable(path: Path, bundle: TokenizerBundle, max_length: int) -> Iterator[TrainingRow]:
    """The sequences that preflight counted, in its order."""
    for rollout in rollouts(path):
        try:
            made = rows_of(bundle, rollout, max_length)
        except BashGymError as error:
            if error.code not in _NOT_THIS_MODEL:
                raise
            continue
        yield from (row for row in made if len(row.input_ids) <= max_length)
