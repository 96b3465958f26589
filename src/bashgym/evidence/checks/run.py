"""Required fields of a card, and that it speaks about the run that is here."""

from __future__ import annotations

from bashgym.evidence.card import DECISIONS, TIERS
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Gate

_REQUIRED = (
    "run_id",
    "training_method",
    "base_model",
    "compute_target_id",
    "training_plan_path",
    "source_manifest_path",
)
_REQUIRED_FOR_PROMOTION = ("metrics_path", "release_evidence_path")
_BOUND = {
    "manifest_digest": "manifest.json",
    "request_digest": "request.json",
    "strategy": "the strategy",
    "model_digest": "the base model",
    "dataset_digest": "the dataset",
}


def check_fields(ctx: Context) -> None:
    """Fields that every card, and every promotion, needs."""
    needed = _REQUIRED + (_REQUIRED_FOR_PROMOTION if ctx.promotion else ())
    for name in needed:
        if not getattr(ctx.card, name).strip():
            ctx.book.fail(Gate.CARD, f"missing_{name}", f"the card has no {name}", name)
    if ctx.card.training_method and ctx.method is None:
        message = f"no training method is called {ctx.card.training_method[:80]!r}"
        ctx.book.fail(Gate.CARD, "unknown_training_method", message, "training_method")
    if ctx.card.decision not in DECISIONS:
        message = f"decision {ctx.card.decision[:80]!r} is not one of {', '.join(DECISIONS)}"
        ctx.book.warn(Gate.DECISION, "unknown_decision", message, "decision")
    if ctx.card.claim_tier not in TIERS:
        message = f"claim_tier {ctx.card.claim_tier[:80]!r} is not one of {', '.join(TIERS)}"
        ctx.book.fail(Gate.CLAIM, "unknown_claim_tier", message, "claim_tier")


def check_run(ctx: Context) -> None:
    """The run exists, is the one that was bound, ended well, and its saved model is unchanged."""
    if ctx.run_dir is None:
        say = ctx.book.fail if ctx.promotion else ctx.book.warn
        message = f"run {ctx.card.run_id or '(none)'} is not here: nothing of its identity can be re-checked"
        return say(Gate.RUN, "run_unbound", message, "run_id")
    _check_stated(ctx)
    _check_bound(ctx)
    status, forced = ctx.run.get("status"), ctx.run.get("forced")
    if ctx.promotion and status != "completed":
        ctx.book.fail(Gate.RUN, "run_not_completed", f"the run is {status or 'without a state'}, not completed")
    if ctx.promotion and forced:
        message = f"the run was started over preflight findings: {', '.join(map(str, forced))}"
        ctx.book.warn(Gate.RUN, "run_forced_preflight", message)
    return None


def _check_stated(ctx: Context) -> None:
    run, card = ctx.run, ctx.card
    if ctx.method and run.get("strategy") and ctx.method.name != run["strategy"]:
        message = f"the card says {card.training_method}, the run trained with {run['strategy']}"
        ctx.book.fail(Gate.RUN, "run_strategy_mismatch", message, "training_method")
    if card.base_model and run.get("model_name") and card.base_model != run["model_name"]:
        message = f"the card says {card.base_model}, the run started from {run['model_name']}"
        ctx.book.fail(Gate.RUN, "run_base_model_mismatch", message, "base_model")


def _check_bound(ctx: Context) -> None:
    bound = ctx.card.run
    if not bound:
        say = ctx.book.fail if ctx.promotion else ctx.book.warn
        return say(Gate.RUN, "run_unbound", "the card holds no measured identity of its run; create it again", "run")
    for key, what in _BOUND.items():
        if bound.get(key) != ctx.run.get(key):
            ctx.book.fail(Gate.RUN, "run_binding_mismatch", f"{what} of the run is not what the card was bound to", key)
    stated, measured = bound.get("artifacts"), ctx.run["artifacts"]
    stated = stated if isinstance(stated, dict) else {}
    for name in sorted(stated.keys() | (measured.keys() if ctx.promotion else ())):
        if measured.get(name) != stated.get(name):
            message = f"{name}/ is not the model that the card was bound to"
            ctx.book.fail(Gate.RUN, "artifact_digest_mismatch", message, name)
    if ctx.promotion and not ctx.run["artifacts"]:
        ctx.book.fail(Gate.RUN, "artifact_missing", "the run has no saved model to promote")
    return None
