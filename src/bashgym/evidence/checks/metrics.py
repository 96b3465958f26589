"""The run's metrics: its own, readable, finite, and complete for its method."""

from __future__ import annotations

from pathlib import Path

from bashgym.core.canonical import digest_file
from bashgym.evidence.binding import read_or_empty
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Gate
from bashgym.evidence.points import PointStream, non_finite

_FLAGS_KEPT = 10_000


def check_metrics(ctx: Context) -> None:
    """Reads metrics.jsonl whole, in bounded memory."""
    path = ctx.files.get("metrics")
    if path is None:
        return
    before = len(ctx.book.findings)
    own = ctx.run_dir / "metrics.jsonl" if ctx.run_dir else None
    if own is not None and (not own.is_file() or digest_file(own) != digest_file(path)):
        message = "these are not the metrics that the run wrote"
        ctx.book.fail(Gate.METRICS, "evidence_run_mismatch", message, "metrics_path", path=str(path))
    _read(ctx, path)
    if ctx.promotion:
        _check_series(ctx)
    if not any(f.level == "fail" for f in ctx.book.findings[before:]):
        ctx.accepted.add("metrics")


def _read(ctx: Context, path: Path) -> None:
    stream = PointStream(path)
    flags: dict[int, dict[str, str]] = {}
    points = 0
    for point in stream:
        points += 1
        step, broken = point["step"], non_finite(point)
        if flags and step in flags:
            # After a resume steps are reported again; the newer value counts.
            kept = {
                name: flag for name, flag in flags.pop(step).items() if not isinstance(point.get(name), int | float)
            }
            broken = {**kept, **broken}
        if broken and len(flags) < _FLAGS_KEPT:
            flags[step] = broken
        ctx.series.update(point)
    if not points:
        ctx.book.fail(Gate.METRICS, "metrics_file_empty", f"{path.name} holds no metric point", "metrics_path")
    if stream.skipped:
        message = f"{stream.skipped} line(s) of {path.name} are torn or no metric points"
        ctx.book.warn(Gate.METRICS, "metrics_lines_skipped", message, "metrics_path")
    if flags:
        step = min(flags)
        name, flag = next(iter(flags[step].items()))
        message = f"{name} is {flag} at step {step} ({len(flags)} step(s) with such values): the run diverged"
        ctx.book.fail(Gate.METRICS, "metrics_not_finite", message, "metrics_path")


def _check_series(ctx: Context) -> None:
    from bashgym.methods.registry import metric_aliases, must_emit

    aliases = metric_aliases()
    seen = {aliases.get(name, name) for name in ctx.series}
    request = read_or_empty(ctx.run_dir / "request.json") if ctx.run_dir else {}
    for name in must_emit(ctx.method, request) if ctx.method else ():
        if aliases.get(name, name) not in seen:
            message = f"a {ctx.card.training_method} run reports {name}; these metrics do not"
            ctx.book.fail(Gate.METRICS, "metrics_missing_series", message, name)
