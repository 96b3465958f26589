"""The dataset contract: one pass that says how many rows a method can train on and what is wrong with the rest.

Owns: the report. Does not own: what a row must hold (`formats`, `preferences`, `messages`) nor tokens (`preflight`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.data import ground, preferences, textchecks
from bashgym.data.dppo_checks import scan_replay
from bashgym.data.duplicates import RowHashes
from bashgym.data.findings import Collector, Issue
from bashgym.data.formats import PROBE_ROWS, Reading
from bashgym.data.messages import PlainSizes
from bashgym.data.readers import RowBatch, Scan
from bashgym.data.reward_rows import read_row
from bashgym.data.sessions.contract import scan_records
from bashgym.data.transitions import scan_transitions
from bashgym.data.types import MAX_ROWS_LISTED, Finding, Severity, SftExample

METHODS = ("sft", *preferences.METHODS, "session_distillation", "dppo", "reward_model")


class ContractReport(msgspec.Struct):
    """The result of `check_dataset`. Rows are lines of JSONL or elements of an array, 1-based."""

    path: str
    method: str
    format: str
    total_examples: int
    valid_examples: int
    is_valid: bool
    """All rows are valid, there is at least one, and no finding is an error."""
    error_count: int
    warning_count: int
    issues: list[Issue]
    """The first 50, row by row."""
    summary_stats: dict[str, Any]
    """role_counts, prompt_length and completion_length in characters {min, median, max, mean}, duplicate_rows."""
    sha256: str
    """Of the file, measured in the same pass."""
    findings: list[Finding]

    @property
    def rows(self) -> int:
        """`total_examples`."""
        return self.total_examples

    @property
    def valid_rows(self) -> int:
        """`valid_examples`."""
        return self.valid_examples


def check_dataset(
    path: Path,
    method: str = "sft",
    *,
    findings: list[Finding] | None = None,
    dataset_format: str = "auto",
    column_mapping: Mapping[str, str] | None = None,
    reward_mode: str | None = None,
) -> ContractReport:
    """Reads every row once. `findings`, if given, receives what the report's `findings` hold.

    `reward_mode` (grpo, rlvr) decides what a row must hold beside its prompt.

    Raises `dataset_missing`, `dataset_empty`, `dataset_unreadable`, `dataset_format`, and `unknown_strategy`.
    """
    if method not in METHODS:
        raise fail("unknown_strategy", f"no dataset contract for {method!r}; there are {', '.join(METHODS)}")
    found: list[Finding] = [] if findings is None else findings
    start = len(found)
    collector = Collector(found)
    tally = _Tally()
    scan = _HashedScan(Path(path), collector, tally.hashes)
    try:
        if method == "sft":
            name = _sft_pass(Reading(scan, collector, dataset_format, column_mapping, tally.add_plain), tally)
        elif method == "session_distillation":
            name = _session_pass(scan, collector, tally)
        elif reward_mode == "rwml":
            name = _transition_pass(scan, collector, tally)
        elif method == "dppo":
            name = _replay_pass(scan, collector, tally)
        elif method == "reward_model":
            name = _reward_pass(scan, column_mapping, collector, tally)
        else:
            name = _prompt_pass((method, reward_mode), scan, column_mapping, collector, tally)
        tally.finish()
    finally:
        collector.flush()
    found += tally.findings
    counts = {severity: sum(f.count for f in tally.findings if f.severity is severity) for severity in Severity}
    return ContractReport(
        path=str(path),
        method=method,
        format=name,
        total_examples=scan.rows,
        valid_examples=tally.valid,
        is_valid=0 < tally.valid == scan.rows and all(f.severity is not Severity.ERROR for f in found[start:]),
        error_count=collector.errors + counts[Severity.ERROR],
        warning_count=collector.warnings + counts[Severity.WARNING],
        issues=collector.issues,
        summary_stats=tally.stats(),
        sha256=scan.sha256,
        findings=found[start:],
    )


def _sft_pass(reading: Reading, tally: _Tally) -> str:
    for example in reading:
        tally.add_example(example)
    return reading.shape.format


def _session_pass(scan: Scan, collector: Collector, tally: _Tally) -> str:
    for record in scan_records(scan, collector):
        tally.add_prompt(preferences.PromptRow(record.original_context, {"target": record.target_text}))
    return "session_distillation"


def _replay_pass(scan: Scan, collector: Collector, tally: _Tally) -> str:
    for _, record in scan_replay(scan, collector):
        tally.add_prompt(preferences.PromptRow(record.prompt, {"sampled": "".join(record.tokens())}))
    return "replay"


def _reward_pass(scan: Scan, mapping: Mapping[str, str] | None, collector: Collector, tally: _Tally) -> str:
    for batch in scan:
        for number, value in zip(batch.numbers, batch.values, strict=True):
            made = read_row(number, value, collector, mapping=mapping)
            if made is not None:
                tally.add_prompt(made.row)
    return "reward"


def _transition_pass(scan: Scan, collector: Collector, tally: _Tally) -> str:
    for row in scan_transitions(scan, collector, window=0):
        tally.add_prompt(row)
    return "replay"


def _prompt_pass(
    wanted: tuple[str, str | None],
    scan: Scan,
    mapping: Mapping[str, str] | None,
    collector: Collector,
    tally: _Tally,
) -> str:
    """`wanted`: (method, reward mode)."""
    method, reward_mode = wanted
    columns: dict[str, str] = {}
    pairs, types, truth = preferences.PairWatch(), preferences.TypeWatch(), False
    for batch in scan:
        if not columns:
            columns = preferences.resolve(method, batch.values[:PROBE_ROWS], mapping, scan.path, reward_mode)
            note = preferences.mapping_note(columns)
            if note:
                collector.add("columns_mapped", Severity.INFO, f"read as {method}: {note}")
            types.ignored = {"metadata", "id"} | {
                column for name, column in columns.items() if name not in ground.COLUMNS
            }
        for index, (number, value) in enumerate(zip(batch.numbers, batch.values, strict=True)):
            if index in batch.odd:
                textchecks.check(number, value, collector)
            types.add(number, value)
            truth = truth or not value.keys().isdisjoint(preferences.TRUTH_COLUMNS)
            row = preferences.check_row(method, columns, number, value, collector)
            if row is not None and not (method == "dpo" and pairs.add(number, row)):
                tally.add_prompt(row)
    tally.findings += [*filter(None, [pairs.finding(scan.rows)]), *types.findings()]
    if method == "grpo" and not truth and columns.keys().isdisjoint(ground.COLUMNS):
        collector.add(
            "no_ground_truth",
            Severity.WARNING,
            "no column holds a ground truth; only rewards that look at the completion alone can be used",
            mend=f"Add one of {', '.join(preferences.TRUTH_COLUMNS[:4])}, or choose such a reward.",
        )
    return method


class _HashedScan(Scan):
    """A scan that hashes every row it passes on."""

    def __init__(self, path: Path, collector: Collector, hashes: RowHashes) -> None:
        super().__init__(path, collector)
        self._hashes = hashes

    def __iter__(self) -> Iterator[RowBatch]:
        for batch in super().__iter__():
            self._hashes.add(batch.numbers, batch.lines)
            yield batch


class _Tally:
    """What is counted over the valid rows."""

    def __init__(self) -> None:
        self.valid = 0
        self.hashes = RowHashes()
        self.findings: list[Finding] = []
        self._shapes: Counter[tuple[str, ...]] = Counter()
        self._prompts, self._completions = _Lengths(), _Lengths()
        self._repeated = 0

    def add_plain(self, sizes: PlainSizes) -> None:
        self.valid += len(sizes.shapes)
        self._shapes.update(sizes.shapes)
        self._prompts.add(sizes.before)
        self._completions.add(sizes.last)

    def add_example(self, example: SftExample) -> None:
        self.valid += 1
        if example.messages is not None:
            self._add_sides(example.messages[:-1], example.messages[-1:])
        elif example.text is not None:
            self._completions.add([len(example.text)])
        else:
            self._add_sides(example.prompt, example.completion)

    def add_prompt(self, row: preferences.PromptRow) -> None:
        self.valid += 1
        self._add_sides(row.prompt, next(iter(row.sides.values()), None))

    def _add_sides(self, prompt: preferences.Side | None, completion: preferences.Side | None) -> None:
        for side, lengths in ((prompt, self._prompts), (completion, self._completions)):
            if side is None:
                continue
            lengths.add([len(side) if isinstance(side, str) else sum(len(turn["content"] or "") for turn in side)])
            if not isinstance(side, str):
                self._shapes[tuple(turn["role"] for turn in side)] += 1

    def finish(self) -> None:
        """To be called once, at the end of the pass."""
        self._repeated, rows = self.hashes.repeats()
        if self._repeated:
            listed = ", ".join(map(str, rows[:10])) + (", ..." if self._repeated > 10 else "")
            self.findings.append(
                Finding(
                    code="duplicate_rows",
                    severity=Severity.WARNING,
                    message=f"{self._repeated} row(s) repeat an earlier row byte for byte: {listed}",
                    mend="Leave the repeats out unless they are meant to weigh more.",
                    rows=tuple(rows[:MAX_ROWS_LISTED]),
                    count=self._repeated,
                )
            )

    def stats(self) -> dict[str, Any]:
        roles: Counter[str] = Counter()
        for shape, count in self._shapes.items():
            for role in shape:
                roles[role] += count
        return {
            "role_counts": dict(roles),
            "prompt_length": self._prompts.summary(),
            "completion_length": self._completions.summary(),
            "duplicate_rows": self._repeated,
        }


class _Lengths:
    """Exact min, median, max and mean. Memory: the different lengths, at most the root of the file size."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, lengths: Iterable[int]) -> None:
        self._counts.update(lengths)

    def summary(self) -> dict[str, float] | None:
        """None if nothing was measured."""
        if not self._counts:
            return None
        ordered = sorted(self._counts.items())
        total = self._counts.total()
        low, high = _at(iter(ordered), (total - 1) // 2), _at(iter(ordered), total // 2)
        mean = sum(length * count for length, count in ordered) / total
        return {"min": ordered[0][0], "median": (low + high) / 2, "max": ordered[-1][0], "mean": mean}


def _at(ordered: Iterator[tuple[int, int]], rank: int) -> int:
    for length, count in ordered:
        rank -= count
        if rank < 0:
            return length
    raise IndexError(rank)
