"""The order in which a card is judged."""

from __future__ import annotations

from pathlib import Path

from bashgym.evidence.binding import find_run
from bashgym.evidence.card import PROMOTING, RunCard
from bashgym.evidence.checks.claims import check_decision, check_method, check_thresholds, check_tier
from bashgym.evidence.checks.documents import check_documents
from bashgym.evidence.checks.integrity import check_integrity
from bashgym.evidence.checks.metrics import check_metrics
from bashgym.evidence.checks.release import check_release
from bashgym.evidence.checks.rows import check_rows
from bashgym.evidence.checks.run import check_fields, check_run
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Book

_CHECKS = (
    check_fields,
    check_run,
    check_integrity,
    check_documents,
    check_metrics,
    check_rows,
    check_release,
    check_method,
    check_tier,
    check_thresholds,
    check_decision,
)


def judge(
    card: RunCard, card_dir: Path, *, promotion: bool = False, book: Book | None = None, models_dir: Path | None = None
) -> Context:
    """Runs every check. The promotion rules apply when asked for, and whenever the decision promotes."""
    ctx = Context(
        card=card,
        card_dir=card_dir,
        promotion=promotion or card.decision in PROMOTING,
        run_dir=find_run(card.run_id, card_dir, models_dir, card.run.get("path")),
        book=book or Book(),
    )
    for check in _CHECKS:
        check(ctx)
    return ctx
