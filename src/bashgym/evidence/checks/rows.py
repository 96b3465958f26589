"""Row files that a card binds: preference pairs, reward examples, session records and session metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.data.pair_validation import validate_pairs
from bashgym.data.reward_examples import validate as validate_examples
from bashgym.data.sessions.contract import faults
from bashgym.evidence.card import PATH_FIELDS
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Gate
from bashgym.evidence.points import PointStream
from bashgym.store.jsonl import JsonlTail


def check_rows(ctx: Context) -> None:
    """Every row file of the card, and the session fields that go with them."""
    _check_validated(ctx, "preference_pairs", validate_pairs)
    _check_validated(ctx, "reward_examples", validate_examples)
    _check_file(ctx, "session_records", "session_distillation_records_empty", _session_fault)
    _check_session_metrics(ctx)
    _check_session_fields(ctx)


def _check_file(ctx: Context, kind: str, empty_code: str, fault: Callable[[dict[str, Any]], str]) -> None:
    path = ctx.files.get(kind)
    if path is None:
        return
    field, before = PATH_FIELDS[kind], len(ctx.book.findings)
    tail, rows = JsonlTail(path), 0
    while batch := tail.read_new(10_000):
        for row in batch:
            rows += 1
            if code := fault(row):
                ctx.book.fail(Gate.METHOD, code, f"row {rows} of {path.name} is not acceptable: {code}", field)
    if tail.skipped or not rows:
        message = f"{path.name} has {rows} row(s) and {tail.skipped} unreadable line(s)"
        ctx.book.fail(Gate.METHOD, empty_code, message, field)
    _check_trained(ctx, kind)
    if not any(f.level == "fail" for f in ctx.book.findings[before:]):
        ctx.accepted.add(kind)


def _check_validated(ctx: Context, kind: str, validate: Callable[..., dict[str, Any]]) -> None:
    """A file that a strict validator has to pass; its codes become `<kind>_<code>`."""
    path, before = ctx.files.get(kind), len(ctx.book.findings)
    if path is None:
        return
    field = PATH_FIELDS[kind]
    try:
        report = validate(path, strict=True)
    except BashGymError as error:
        ctx.book.fail(Gate.METHOD, f"invalid_{kind}_artifact", error.message, field)
        return
    for finding in report["findings"]:
        if finding["level"] == "fail":
            ctx.book.fail(Gate.METHOD, f"{kind}_{finding['code']}", finding["message"], field)
    _check_trained(ctx, kind)
    if not any(f.level == "fail" for f in ctx.book.findings[before:]):
        ctx.accepted.add(kind)


def _check_trained(ctx: Context, kind: str) -> None:
    """Rows that stand for the run's training data are the very file that it trained on."""
    entry = next(entry for entry in ctx.card.evidence if entry.kind == kind)
    trained = ctx.run.get("dataset_digest")
    if trained and trained != entry.sha256 and kind != "reward_examples":
        message = f"{entry.path} is not the file that the run trained on (by digest)"
        ctx.book.fail(Gate.METHOD, "evidence_run_mismatch", message, PATH_FIELDS[kind])


def _session_fault(row: dict[str, Any]) -> str:
    return "session_distillation_record_invalid" if faults(row) else ""


def _check_session_metrics(ctx: Context) -> None:
    path, name = ctx.files.get("masked_token_metrics"), "session_distillation_masked_tokens"
    if path is None:
        return
    values = [point[name] for point in PointStream(path) if isinstance(point.get(name), int | float)]
    if values and min(values) > 0:
        ctx.accepted.add("masked_token_metrics")
    else:
        message = f"{path.name} does not report {name} above zero at every step"
        field = PATH_FIELDS["masked_token_metrics"]
        ctx.book.fail(Gate.METHOD, "session_distillation_metrics_missing_masked_loss", message, field)


def _check_session_fields(ctx: Context) -> None:
    if ctx.method is None or ctx.method.name != "session_distillation":
        return
    card, prefix = ctx.card, "session_distillation_"
    confidence, count = card.session_distillation_confidence_threshold, card.session_distillation_target_token_count
    checks = (
        ("confidence_threshold", confidence is not None and not 0 <= confidence <= 1, "lies outside [0, 1]"),
        (
            "mask_policy",
            card.session_distillation_mask_policy not in ("", "target_span_only"),
            "is not target_span_only",
        ),
        ("target_token_count", count is not None and count <= 0, "is not above zero: nothing was trained"),
    )
    for name, wrong, why in checks:
        if wrong:
            ctx.book.fail(Gate.METHOD, f"invalid_{prefix}{name}", f"{prefix}{name} {why}", prefix + name)
