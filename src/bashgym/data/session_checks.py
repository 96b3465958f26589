"""What tokens show of session records, before compute is spent: the same rows and ids that the trainer is fed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bashgym.data.encode import Full, RowProblem
from bashgym.data.sessions.contract import Record, confident
from bashgym.data.sessions.encode import Branches, DoesNotFit, encode_records, messages
from bashgym.data.types import MAX_ROWS_LISTED, Finding, LossPolicy, Severity, SftExample

if TYPE_CHECKING:
    from bashgym.data.preflight import DatasetQuery, TokenStats
    from bashgym.data.token_checks import Scan

CODES: dict[str, tuple[Severity, str]] = {
    "no_confident_record": (
        Severity.ERROR,
        "Lower session_distillation_min_confidence, or build records from more sessions.",
    ),
    "low_confidence_rows": (Severity.INFO, ""),
    "target_does_not_fit": (Severity.WARNING, ""),
    "contexts_truncated": (Severity.INFO, "Raise max_seq_length if what is cut off matters."),
    "session_in_both_splits": (
        Severity.WARNING,
        "Build the two sides with --split train and --split validation, and give the second as eval_dataset_path.",
    ),
    "validation_rows_trained": (Severity.WARNING, "Build the training file with --split train."),
}
"""Finding code -> (severity, mend)."""


def token_pass(query: DatasetQuery, model_dir: Path) -> tuple[TokenStats | None, int, list[Finding]]:
    """Figures, rows that training sees, and findings. Tokens are those of both branches."""
    from bashgym.data import token_checks
    from bashgym.data.tokens import TokenizerBundle

    bundle = TokenizerBundle.load(model_dir)
    scan, seen = token_checks.Scan(bundle, query.max_seq_length), _Seen(query)
    wrap = bool(query.options.get("wrap_prompts"))

    def refuse(problem: RowProblem) -> None:
        if isinstance(problem, DoesNotFit):
            seen.too_long.append(problem)
        else:
            scan.refuse(problem)

    pairs = encode_records(
        bundle, seen.watch(scan, wrap), max_length=query.max_seq_length, wrap=wrap, on_problem=refuse
    )
    total = 0
    for record, branches in pairs:
        ids, labels = branches.sequence(branches.hinted)
        scan.add(Full(record.row, ids, labels, len(ids)))
        total += len(ids) + len(branches.original) + len(branches.target)
        seen.add(record, branches)
    stats = msgspec.structs.replace(
        scan.stats(), total=total, truncated_rows=len(seen.truncated), zero_supervised_rows=len(seen.too_long)
    )
    if seen.lengths:
        ordered = sorted(seen.lengths)
        at = (len(ordered) - 1) // 2, (len(ordered) - 1) * 95 // 100
        stats = msgspec.structs.replace(stats, max=ordered[-1], p50=ordered[at[0]], p95=ordered[at[1]])
    found = [*token_checks.findings(scan, LossPolicy.COMPLETION, None), *seen.findings(scan.trainable)]
    return stats, scan.trainable, found


class _Seen:
    """What one pass notes for the findings."""

    def __init__(self, query: DatasetQuery) -> None:
        self.query = query
        self.minimum = float(query.options.get("session_distillation_min_confidence", 0.0))
        self.below: list[int] = []
        self.too_long: list[DoesNotFit] = []
        self.truncated: list[int] = []
        self.validation: list[int] = []
        self.lengths: list[int] = []
        self.sessions = Counter[str]()

    def watch(self, scan: Scan, wrap: bool) -> Iterator[Record]:
        """The rows that pass the confidence filter, looked at on the way."""
        for record in confident(self.query.path, 0.0):
            if record.confidence < self.minimum:
                self.below.append(record.row)
                continue
            if wrap:
                turns = [{"role": "user", "content": record.hinted_context}]
                list(scan.watch([SftExample(record.row, prompt=turns, completion=messages(record))]))
            else:
                scan.examples += 1
            yield record

    def add(self, record: Record, branches: Branches) -> None:
        """An encoded row."""
        self.sessions[record.session_id] += 1
        self.lengths.append(branches.full_length)
        if branches.truncated:
            self.truncated.append(record.row)
        if record.split == "validation":
            self.validation.append(record.row)

    def findings(self, trainable: int) -> Iterator[Finding]:
        """What there is to say, in words."""
        limit, minimum = self.query.max_seq_length, self.minimum
        if self.below and not trainable and not self.too_long:
            text = f"all {len(self.below)} valid rows have a reader_confidence below {minimum}"
            yield _finding("no_confident_record", text, self.below, field="session_distillation_min_confidence")
        elif self.below:
            text = f"{len(self.below)} rows have a reader_confidence below {minimum} and are left out"
            yield _finding("low_confidence_rows", text, self.below, field="session_distillation_min_confidence")
        if self.too_long:
            rows, needed = [problem.row for problem in self.too_long], max(p.needed for p in self.too_long)
            text = f"{len(rows)} rows are left out: their target and hint do not fit into max_length {limit}"
            made = _finding("target_does_not_fit", text, rows, field="max_seq_length")
            severity = made.severity if trainable else Severity.ERROR
            mend = f"With max_seq_length {needed} or more every such row is trained."
            yield msgspec.structs.replace(made, severity=severity, mend=mend)
        if self.truncated:
            text = f"{len(self.truncated)} contexts are longer than max_length {limit} and lose their oldest tokens"
            yield _finding("contexts_truncated", text, self.truncated, field="max_seq_length")
        several = sum(count > 1 for count in self.sessions.values())
        if several and self.query.eval_split and not self.query.eval_path:
            text = f"eval_split cuts rows apart, and {several} sessions have several: some will be on both sides"
            yield _finding("session_in_both_splits", text, [], field="eval_split")
        if self.validation:
            text = f"{len(self.validation)} rows are of validation sessions, and training would see them"
            yield _finding("validation_rows_trained", text, self.validation, field="source_metadata")


def _finding(code: str, message: str, rows: list[int], *, field: str) -> Finding:
    severity, mend = CODES[code]
    return Finding(code, severity, message, mend, field=field, rows=tuple(rows[:MAX_ROWS_LISTED]), count=len(rows))
