"""What reward examples show before compute is spent: kinds, splits, leakage, rewards without contrast, and tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bashgym.data.dpo_checks import pairs_pass
from bashgym.data.encode import Full, RowProblem
from bashgym.data.pairs import AnswersDoNotFit
from bashgym.data.reward_rows import RewardRow, Selection, chosen_kind, count_kinds, iter_rows, selected, sequences
from bashgym.data.types import MAX_ROWS_LISTED, Finding, LossPolicy, Severity

if TYPE_CHECKING:
    from bashgym.data.preflight import DatasetQuery, TokenStats

CODES: dict[str, tuple[Severity, str]] = {
    "answers_do_not_fit": (Severity.WARNING, ""),
    "side_without_tokens": (Severity.WARNING, "Mend or drop these rows."),
    "prompts_truncated": (Severity.WARNING, "Raise max_seq_length if what is cut off matters."),
    "reward_kinds_mixed": (Severity.ERROR, "Say which is meant by reward_kind, or give each kind a file of its own."),
    "rows_of_other_kinds": (Severity.WARNING, "Train the others in a run of their own."),
    "rows_of_other_splits": (
        Severity.INFO,
        "They stay unseen: score them, then `bashgym training reward-eval evaluate`.",
    ),
    "no_rows_of_split": (Severity.ERROR, "Name another reward_train_split, or give rows this split."),
    "eval_only_leakage": (Severity.ERROR, "Rebuild the splits so that no prompt is on both sides."),
    "rewards_without_contrast": (Severity.ERROR, "Give rows with better and with worse rewards."),
    "rewards_outside_unit": (Severity.ERROR, "Set reward_loss to mse, or scale the rewards to 0..1."),
    "centering_without_pairs": (
        Severity.ERROR,
        "Leave reward_center_coefficient at 0: only pairs leave the level open.",
    ),
}
"""Finding code -> (severity, mend)."""


def token_pass(query: DatasetQuery, model_dir: Path) -> tuple[TokenStats | None, int, list[Finding]]:
    """Figures, rows that training sees, and findings. Tokens of a pair are those of both sequences."""
    from bashgym.data.preflight import TokenStats

    options = query.options
    kinds = count_kinds(query.path, options)
    selection = Selection(chosen_kind(kinds, options), str(options["reward_train_split"]))
    found = [*_kind_findings(kinds, options, selection.kind), *_split_findings(query, selection)]
    rows = selected(query.path, options, selection)
    if not kinds[selection.kind]:
        return TokenStats(0, 0, 0, 0, 0, 0, 0), 0, found
    if selection.kind == "preference":
        stats, trainable, more = pairs_pass(query, model_dir, (made.row for made in rows))
    else:
        stats, trainable, more = _scored_pass(query, model_dir, rows, selection.kind)
        if options["reward_center_coefficient"]:
            found.append(_finding("centering_without_pairs", f"a run on {selection.kind} rows centres nothing", []))
    return stats, trainable, [*more, *found]


def loss_of(options: Mapping[str, Any], low: float, high: float) -> str:
    """The loss of rewards that lie between these: `auto` is cross-entropy where all are in 0..1."""
    asked = str(options["reward_loss"])
    if asked != "auto":
        return asked
    return "bce" if low >= 0 and high <= 1 else "mse"


def _kind_findings(kinds: Mapping[str, int], options: Mapping[str, Any], kind: str) -> Iterator[Finding]:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(kinds.items()))
    if options["reward_kind"] == "auto" and len(kinds) > 1:
        yield _finding(
            "reward_kinds_mixed", f"the file has {counts} rows, and a run learns one kind", [], "reward_kind"
        )
    others = sum(kinds.values()) - kinds.get(kind, 0)
    if options["reward_kind"] != "auto" and others:
        text = f"{others} rows are of other kinds than {kind} ({counts}) and are left out"
        yield _finding("rows_of_other_kinds", text, [], "reward_kind")
    if not kinds.get(kind):
        split = options["reward_train_split"]
        text = f"no {kind} row belongs to the split {split!r} or to none"
        yield _finding("no_rows_of_split", text, [], "reward_train_split")


def _split_findings(query: DatasetQuery, selection: Selection) -> Iterator[Finding]:
    """Rows that are kept apart, and prompts that are on both sides."""
    trained, apart = set[int](), dict[int, list[int]]()
    for made in iter_rows(query.path, mapping=query.column_mapping):
        key = hash(" ".join(made.example.prompt.split()).casefold())
        if selection.in_split(made.example):
            trained.add(key)
        else:
            apart.setdefault(key, []).append(made.example.number)
    kept = sorted(number for numbers in apart.values() for number in numbers)
    leaked = sorted(number for key, numbers in apart.items() if key in trained for number in numbers)
    if kept:
        text = f"{len(kept)} rows are of other splits than {selection.split!r} and are not trained on"
        yield _finding("rows_of_other_splits", text, kept, "reward_train_split")
    if leaked:
        text = f"{len(leaked)} rows of other splits have a prompt that is trained on"
        yield _finding("eval_only_leakage", text, leaked)


def _scored_pass(
    query: DatasetQuery, model_dir: Path, rows: Iterator[RewardRow], kind: str
) -> tuple[TokenStats, int, list[Finding]]:
    """Of outcomes and processes; the trained tokens are those that are scored."""
    from bashgym.data import token_checks
    from bashgym.data.tokens import TokenizerBundle

    bundle = TokenizerBundle.load(model_dir)
    scan = token_checks.Scan(bundle, query.max_seq_length)
    dropped: dict[str, list[RowProblem]] = {}
    truncated, targets, scored = list[int](), list[float](), 0

    def refuse(problem: RowProblem) -> None:
        if problem.code in CODES:
            dropped.setdefault(problem.code, []).append(problem)
        else:
            scan.refuse(problem)

    def watched() -> Iterator[RewardRow]:
        for made in rows:
            scan.examples += 1
            yield made

    how: dict[str, Any] = {"kind": kind, "max_length": query.max_seq_length, "on_problem": refuse}
    for made, (sequence,) in sequences(bundle, watched(), **how):
        scan.add(Full(made.example.number, sequence.input_ids, sequence.input_ids, len(sequence.input_ids)))
        targets += sequence.targets
        scored += len(sequence.ends)
        if sequence.full_length > len(sequence.input_ids):
            truncated.append(made.example.number)
    # A scorer is asked at the end of what it reads: whether a stop token is trained says nothing here.
    found = [f for f in token_checks.findings(scan, LossPolicy.ALL, None) if f.code != "stop_token_not_trained"]
    found += [*_dropped(dropped, scan.trainable), *_target_findings(targets, query.options)]
    if truncated:
        text = f"{len(truncated)} prompts lose their oldest tokens to fit into max_length {query.max_seq_length}"
        found.append(_finding("prompts_truncated", text, truncated, "max_seq_length"))
    counts = {"supervised": scored, "truncated_rows": len(truncated)}
    stats = msgspec.structs.replace(scan.stats(), **counts, zero_supervised_rows=sum(map(len, dropped.values())))
    return stats, scan.trainable, found


def _dropped(dropped: Mapping[str, list[RowProblem]], trainable: int) -> Iterator[Finding]:
    for code, problems in dropped.items():
        rows = [problem.row for problem in problems]
        made = _finding(code, f"{len(rows)} rows are left out, row {rows[0]} because {problems[0].message}", rows)
        changes: dict[str, object] = {} if trainable else {"severity": Severity.ERROR}
        if needed := [problem.needed for problem in problems if isinstance(problem, AnswersDoNotFit)]:
            mend = f"With max_seq_length {max(needed)} or more every such row is trained."
            changes |= {"mend": mend, "field": "max_seq_length"}
        yield msgspec.structs.replace(made, **changes)


def _target_findings(targets: list[float], options: Mapping[str, Any]) -> Iterator[Finding]:
    if not targets:
        return
    low, high = min(targets), max(targets)
    if low == high:
        yield _finding("rewards_without_contrast", f"every reward is {low:g}: there is nothing to learn", [], "reward")
    if loss_of(options, low, high) == "bce" and not 0 <= low <= high <= 1:
        text = f"reward_loss is bce, and rewards lie in {low:g}..{high:g}"
        yield _finding("rewards_outside_unit", text, [], "reward_loss")


def _finding(code: str, message: str, rows: list[int], name: str = "dataset_path") -> Finding:
    severity, mend = CODES[code]
    return Finding(code, severity, message, mend, name, tuple(rows[:MAX_ROWS_LISTED]), len(rows))
