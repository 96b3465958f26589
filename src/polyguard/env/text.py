"""An observation as text for a language model: short, regular lines, the choices last. Foreign text is in one marked line."""

from __future__ import annotations

from typing import Any

from polyguard.env.types import ActionType, Candidate, Observation

SYSTEM = (
    "Medication safety simulation for research only. Answer with one JSON object and nothing else: "
    '{"candidate_id":"cand_NN","confidence":0.0-1.0,"cited_facts":["w1"]}'
)
_MAX_QUOTE = 200


def messages(observation: Observation) -> list[dict[str, Any]]:
    """System and user turn."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": render(observation)}]


def render(observation: Observation) -> str:
    """The user turn."""
    patient = observation.patient
    lines = [
        f"{observation.sub_environment} {observation.difficulty} step {observation.step_index + 1} "
        f"left {observation.steps_remaining}",
        f"{patient['sex']}{patient['age']} {patient['weight_kg']:.0f}kg egfr {_or(patient['egfr'])} crcl {_or(patient['crcl'])}",
    ]
    conditions = [
        name for name in patient["comorbidities"] if name not in {m["indication"] for m in observation.medications}
    ]
    if conditions:
        lines.append("has " + " ".join(conditions))
    lines += [_drug(row) for row in observation.medications]
    lines += [f"{w.id} {w.kind} {w.severity} {' '.join(w.drugs)}: {w.text}" for w in observation.warnings]
    lines += [f"{m.id} missing {m.field}" for m in observation.missing]
    lines += [f"{c['id']} quote: {' '.join(c['text'].split())[:_MAX_QUOTE]}" for c in observation.conflicts]
    if observation.last_result and not observation.last_result["legal"]:
        lines.append("refused: " + "; ".join(observation.last_result["failure_reasons"])[:_MAX_QUOTE])
    lines += [choice(c) for c in observation.candidates]
    return "\n".join(lines)


def choice(candidate: Candidate) -> str:
    """The line of one candidate."""
    parts = [candidate.candidate_id, _SHORT[candidate.action_type]]
    if candidate.target_drug:
        parts.append(candidate.target_drug)
    if candidate.replacement_drug:
        parts += ["to", candidate.replacement_drug]
    elif candidate.action_type == ActionType.ADJUST_DOSE_BUCKET:
        parts.append(f"{candidate.dose_bucket} {candidate.daily_mg:g}mg")
    if candidate.taper_step_pct is not None:
        parts.append(f"{candidate.taper_step_pct:g}%")
    if candidate.monitoring:
        parts.append(candidate.monitoring)
    if candidate.evidence_id and not candidate.target_drug:
        parts.append(candidate.evidence_id)
    parts += candidate.rationale_tags
    if candidate.estimated_safety_delta:
        parts.append(f"{candidate.estimated_safety_delta:+.2f}")
    return " ".join(parts)


def _drug(row: dict[str, Any]) -> str:
    mg = f"{row['daily_mg']:g}mg" if row["daily_mg"] else row["dose_bucket"]
    marks = [
        name
        for name, on in (("taper", row["needs_taper"]), ("tapering", row["tapering"]), ("held", row["on_hold"]))
        if on
    ]
    return " ".join(["rx", row["drug"], mg, row["indication"] or "?", *marks])


def _or(value: object) -> str:
    return "?" if value is None else str(value)


_SHORT = {kind: kind.value for kind in ActionType}
