"""Findings turned into what a person reads: a headline, the failed gates, what to do next, the state of each file."""

from __future__ import annotations

from typing import Any

from bashgym.evidence.bundle import Integrity
from bashgym.evidence.card import PATH_FIELDS
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Finding, Gate, Level

NEXT: dict[Gate, str] = {
    Gate.CARD: "Fill the named fields: create the card again with `bashgym training runcard create`.",
    Gate.RUN: "Create the card for a completed run whose directory is here and untouched.",
    Gate.EVIDENCE: "Restore the named files, or attach the right ones with `bashgym training runcard attach-evidence`.",
    Gate.SOURCES: "Mend source_manifest.json or training_plan.json of the run, then attach it.",
    Gate.METRICS: "Read `bashgym training analyze --run-id <run_id>`; a diverged run is trained again, not promoted.",
    Gate.RELEASE: "Compare the final model with its base (`bashgym eval run`); attach that as --release-evidence.",
    Gate.METHOD: "Gather the evidence that this method needs (`bashgym training docs --topic strategy`) and attach it.",
    Gate.CLAIM: "Lower claim_tier, or attach the evidence that it asks for.",
    Gate.THRESHOLDS: "The thresholds were set before the result: keep them, and improve the model or the evidence.",
    Gate.DECISION: "Set the decision to hold or reject until the findings are gone.",
}


def promotion_explanation(findings: list[Finding], promotion: bool) -> dict[str, Any]:
    """`bashgym.run_card_promotion_explanation.v1`."""
    fails = [finding for finding in findings if finding.level == Level.FAIL]
    failed = []
    for gate in Gate:
        own = [finding for finding in fails if finding.gate == gate]
        if own:
            failed.append(
                {
                    "gate": str(gate),
                    "blocker_count": len(own),
                    "codes": sorted({finding.code for finding in own}),
                    "summary": own[0].message + (f" (and {len(own) - 1} more)" if len(own) > 1 else ""),
                    "next_action": NEXT[gate],
                }
            )
    what = "promotion" if promotion else "this card"
    headline = f"Nothing stands against {what}."
    if fails:
        headline = f"{len(fails)} finding(s) stand against {what}; the first: {fails[0].message}"
    return {
        "schema_version": "bashgym.run_card_promotion_explanation.v1",
        "ok": not fails,
        "headline": headline,
        "blocker_count": len(fails),
        "warning_count": sum(finding.level == Level.WARN for finding in findings),
        "diagnostic_count": sum(finding.level == Level.DIAGNOSTIC for finding in findings),
        "failed_gates": failed,
        "next_actions": [gate["next_action"] for gate in failed],
    }


def artifact_status(ctx: Context) -> dict[str, dict[str, Any]]:
    """Kind -> {path, field, status, sha256, size_bytes, accepted}. Status: intact, missing, empty, changed, unbound,
    not_given."""
    entries = {entry.kind: entry for entry in ctx.card.evidence}
    status: dict[str, dict[str, Any]] = {}
    for kind in [*PATH_FIELDS, *sorted(entries.keys() - PATH_FIELDS.keys())]:
        field, entry = PATH_FIELDS.get(kind), entries.get(kind)
        unbound = getattr(ctx.card, field) if field else ""
        status[kind] = {
            "path": entry.path if entry else unbound or None,
            "field": field,
            "status": str(ctx.states.get(kind, Integrity.MISSING)) if entry else "unbound" if unbound else "not_given",
            "sha256": entry.sha256 if entry else None,
            "size_bytes": entry.size_bytes if entry else None,
            "accepted": kind in ctx.accepted,
        }
    return status
