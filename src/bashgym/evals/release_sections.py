"""What stands beside a trace gate: environment gates, external benchmarks, and diagnostics that decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.evals.wire import decode

GATES = ("holdout_gate", "holdout_comparison", "spurious_reward_control")
_QUALITY = {
    "rwml_pass_rate": (0.5, False),
    "embedding_distance_mean": (0.2, True),
    "calibration_error": (0.2, True),
    "heldout_pair_accuracy": (0.6, False),
}
"""Diagnostic -> (starter threshold, whether less is better)."""
_HEALTHY_ACCURACY = 0.7


class EnvironmentEvidence(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`environment_evidence` of a held-out request."""

    passk: dict[str, Any] | None = None
    holdout_gate: dict[str, Any] | None = None
    holdout_comparison: dict[str, Any] | None = None
    spurious_reward_control: dict[str, Any] | None = None
    external_benchmarks: dict[str, Any] | None = None
    world_model_quality: dict[str, Any] | None = None
    learned_reward_evidence: dict[str, Any] | None = None
    external_benchmark_min_scores: dict[str, float] = {}
    external_benchmarks_required: bool = False
    required: bool = False


def evidence_gate(body: Mapping[str, Any]) -> dict[str, Any]:
    """{environment_ship, external_benchmark_ship, reasons, sections, diagnostics}. A ship verdict that is absent is a no.

    Ship flags are null where nothing was given and nothing is required.
    """
    given = decode(body, EnvironmentEvidence)
    sections, reasons = {}, []
    for name in GATES:
        document = getattr(given, name)
        if document is None:
            continue
        gate = document.get(
            "gate", document.get("result", {}).get("gate") if isinstance(document.get("result"), dict) else None
        )
        if not isinstance(gate, dict) or not isinstance(gate.get("ship"), bool):
            raise fail("invalid_field", f"environment_evidence.{name} has no gate with a ship verdict", "", [name])
        sections[name] = gate["ship"]
        if not gate["ship"]:
            reasons.append(f"{name}: {'; '.join(map(str, gate.get('reasons') or ['does not ship']))}")
    if given.required and not sections:
        reasons.append("environment evidence is required and none was given")
    external = _external(given)
    environment = (
        (not any(not ship for ship in sections.values()) if sections else None)
        if not given.required
        else bool(sections) and all(sections.values())
    )
    return {
        "environment_ship": environment,
        "external_benchmark_ship": external["ship"],
        "reasons": [*reasons, *external["reasons"]],
        "sections": sections,
        "external": external,
        "diagnostics": {
            name: quality(getattr(given, name)) for name in ("world_model_quality", "learned_reward_evidence")
        },
    }


def _external(given: EnvironmentEvidence) -> dict[str, Any]:
    tasks = (given.external_benchmarks or {}).get("tasks", given.external_benchmarks or {})
    failures = []
    for name, least in given.external_benchmark_min_scores.items():
        found = tasks.get(name)
        value = found.get("value") if isinstance(found, dict) else found
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= least:
            failures.append(f"{name} is {value}, below {least:g}")
    if given.external_benchmarks_required and not tasks:
        failures.append("external benchmarks are required and none was given")
    if given.external_benchmarks_required and tasks and not given.external_benchmark_min_scores:
        failures.append("external benchmarks are required, and no least score says what would be enough")
    asked = given.external_benchmarks_required or bool(given.external_benchmark_min_scores)
    return {"ship": not failures if asked else None, "reasons": failures, "failures": failures}


def quality(metrics: dict[str, Any] | None) -> dict[str, Any]:
    """{status, signals} of a diagnostic, which promotes nothing.

    Status: missing, missing_quality_metrics, needs_attention, present (nothing alarms, nothing is good), healthy; improving
    where the echo loss, a list by step, fell.
    """
    if metrics is None:
        return {"status": "missing", "signals": []}
    known = {name: metrics[name] for name in _QUALITY if isinstance(metrics.get(name), int | float)}
    signals = [
        f"{name} is {value:.3g}, {'above' if less else 'below'} {limit:g}"
        for name, value in known.items()
        for limit, less in [_QUALITY[name]]
        if (value > limit if less else value < limit)
    ]
    for name in ("eval_only_leakage_count", "leakage"):
        if metrics.get(name):
            signals.append(f"{name} is {metrics[name]}")
    if metrics.get("reward_variance") == 0:
        signals.append("the rewards do not vary")
    losses = metrics.get("echo_loss")
    echo = losses[-1] - losses[0] if isinstance(losses, list) and len(losses) > 1 else None
    if echo is not None and echo > 0:
        signals.append(f"echo_loss rose by {echo:.3g}")
    if signals:
        return {"status": "needs_attention", "signals": signals}
    if echo is not None:
        return {"status": "improving" if echo < 0 else "present", "signals": []}
    if not known:
        return {"status": "missing_quality_metrics", "signals": []}
    fair = known.get("heldout_pair_accuracy", 1.0) < _HEALTHY_ACCURACY
    return {"status": "present" if fair else "healthy", "signals": []}
