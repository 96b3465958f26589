"""What a card may claim: the evidence of its method, its claim tier, its thresholds, its decision."""

from __future__ import annotations

import math
from collections.abc import Callable

from bashgym.evidence.card import PROMOTING
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Gate
from bashgym.evidence.release import is_executed
from bashgym.methods.spec import EvidenceKind

_FORMAT_SLACK = 0.02
_LOWER_IS_BETTER = ("loss", "rate", "error", "kl", "latency", "leakage", "overlap", "drop", "p_value", "detectable")
_HIGHER_IS_BETTER = ("pass", "success", "win", "accuracy", "validity")


def _ships(ctx: Context) -> bool:
    return "release_evidence" in ctx.accepted and ctx.gate.get("ship") is True and not ctx.smoke


def _executed(ctx: Context) -> bool:
    return _ships(ctx) and is_executed(ctx.suite)


def _heldout_tasks(ctx: Context) -> bool:
    return _executed(ctx) and str(ctx.suite.get("split", "")).startswith("held")


def _format_valid(ctx: Context) -> bool:
    valid, base = ctx.observed.get("format_validity"), ctx.observed.get("baseline_format_validity")
    return _ships(ctx) and valid is not None and valid >= (base or 0.0) - _FORMAT_SLACK


def _zero_std(ctx: Context) -> bool:
    return "metrics" in ctx.accepted and {"reward_std", "frac_reward_zero_std"} <= ctx.series


DERIVED: dict[str, Callable[[Context], bool]] = {
    EvidenceKind.HELDOUT_BEHAVIOUR: _ships,
    EvidenceKind.NO_REGRESSION: _ships,
    EvidenceKind.ENVIRONMENT_PASSK: _executed,
    EvidenceKind.PASSK_BEFORE_AFTER: _executed,
    EvidenceKind.CORRELATED_PASSK: _executed,
    EvidenceKind.HOLDOUT_GATE: _heldout_tasks,
    EvidenceKind.FORMAT_VALIDITY: _format_valid,
    EvidenceKind.ZERO_STD_DIAGNOSTICS: _zero_std,
}
"""Kinds that other accepted evidence can satisfy. Every kind can also be satisfied by an entry of its own."""


def check_method(ctx: Context) -> None:
    """Each piece of evidence that the method's registry entry requires for promotion."""
    if not ctx.promotion or ctx.method is None:
        return
    for rule in ctx.method.evidence:
        if not rule.required_for_promotion or (rule.terminal_only and not ctx.terminal):
            continue
        absent = [name for name in rule.card_fields if getattr(ctx.card, name) in ("", None)]
        for name in absent:
            message = f"{ctx.method.name} needs {name}: {rule.means}"
            ctx.book.fail(Gate.METHOD, f"missing_{name}", message, name)
        derived = DERIVED.get(rule.kind)
        if not absent and rule.kind not in ctx.accepted and not (derived and derived(ctx)):
            message = f"{ctx.method.name} needs {rule.kind} evidence that holds: {rule.means}"
            ctx.book.fail(Gate.METHOD, f"missing_{rule.kind}", message, str(rule.kind))


def check_tier(ctx: Context) -> None:
    """A claim beyond local_smoke needs the gates that stand behind it."""
    if ctx.tier == 0:
        return
    fail, tier = ctx.book.fail, ctx.card.claim_tier
    if "release_evidence" not in ctx.files:
        return fail(Gate.CLAIM, "claim_tier_missing_release_evidence", f"{tier} needs release evidence", "claim_tier")
    if ctx.gate.get("ship") is not True:
        fail(Gate.CLAIM, "claim_tier_release_not_shippable", f"{tier} needs a gate that ships", "claim_tier")
    if not ctx.gate:
        fail(Gate.CLAIM, "claim_tier_missing_release_gate", f"{tier} needs a release gate", "claim_tier")
    gates = [("trace_ship", "trace_gate"), ("environment_ship", "environment_evidence")]
    gates += [("external_benchmark_ship", "external_benchmark")] if ctx.tier > 1 else []
    for key, what in gates:
        if ctx.gate.get(key) is not True:
            message = f"{tier} needs {key}; it is {ctx.gate.get(key)}"
            fail(Gate.CLAIM, f"claim_tier_{what}_missing_or_failed", message, "claim_tier")
    for kind in ("split_manifest", "decontamination_manifest") if ctx.tier > 1 else ():
        if kind not in ctx.accepted:
            message = f"{tier} needs a {kind} that is bound to this run"
            fail(Gate.CLAIM, f"claim_tier_{kind}_missing", message, "claim_tier")
    return None


def check_thresholds(ctx: Context) -> None:
    """The card's thresholds against what the release evidence observed. `min_` and `max_` prefixes decide direction."""
    for name, limit in ctx.card.thresholds.items():
        if not math.isfinite(limit):
            ctx.book.fail(Gate.THRESHOLDS, "threshold_not_numeric", f"threshold {name} is {limit}", name)
            continue
        if not ctx.observed and not ctx.strict:
            continue
        key, at_most = direction(name)
        value = ctx.observed.get(key)
        if value is None:
            known = ", ".join(sorted(k for k, v in ctx.observed.items() if v is not None)) or "nothing"
            message = f"the release evidence does not observe {key!r}; it has {known}"
            ctx.book.fail(Gate.THRESHOLDS, "threshold_unknown_metric", message, name)
        elif value > limit if at_most else value < limit:
            message = f"{key} is {value:.6g}; the card asks for {'at most' if at_most else 'at least'} {limit:g}"
            ctx.book.fail(Gate.THRESHOLDS, "threshold_not_met", message, name)


def direction(name: str) -> tuple[str, bool]:
    """(observed name, whether smaller is better) of a threshold's name."""
    for prefix, at_most in (("min_", False), ("max_", True)):
        if name.startswith(prefix):
            return name.removeprefix(prefix), at_most
    words = name.split("_")
    lower = name in _LOWER_IS_BETTER or any(word in _LOWER_IS_BETTER for word in words)
    return name, lower and not any(word in _HIGHER_IS_BETTER for word in words)


def check_decision(ctx: Context) -> None:
    """Nobody promotes over a blocking finding. Comes last."""
    if ctx.card.decision in PROMOTING and ctx.book.blocked():
        message = f"decision {ctx.card.decision!r} stands against blocking findings"
        ctx.book.fail(Gate.DECISION, "decision_contradicts_findings", message, "decision")
