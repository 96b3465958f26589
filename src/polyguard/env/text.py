"""An observation as text for a language model: short, regular lines, the choices last. Foreign text is in one marked line."""

from __future__ import annotations

from typing import Any

from polyguard.env.types import ActionType, Candidate, Observation, ProblemKind, Warning

SYSTEM = (
    "Medication safety simulation for research only. Answer with one JSON object and nothing else: "
    '{"candidate_id":"cand_NN","confidence":0.0-1.0,"cited_facts":["w1"]}'
)
_MAX_QUOTE = 200


def messages(observation: Observation) -> list[dict[str, Any]]:
    """System and user turn."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": render(observation)}]


def render(observation: Observation) -> str:
    """The user turn. Drugs that are taken are called d1, d2, ... after their first line."""
    patient, names = observation.patient, _Names(observation)
    treated = {row["indication"] for row in observation.medications}
    lines = [
        f"{observation.sub_environment} {observation.difficulty} left {observation.steps_remaining}",
        f"{patient['sex']}{patient['age']} {patient['weight_kg']:.0f}kg egfr {_or(patient['egfr'])} crcl {_or(patient['crcl'])}",
    ]
    if conditions := [name for name in patient["comorbidities"] if name not in treated]:
        lines.append("has " + " ".join(conditions))
    lines += [_drug(f"d{at}", row) for at, row in enumerate(observation.medications, 1)]
    lines += [_warning(item, names) for item in observation.warnings]
    lines += [f"{item.id} {names.field(item.field)}" for item in observation.missing]
    lines += [f"{c['id']} quote: {' '.join(c['text'].split())[:_MAX_QUOTE]}" for c in observation.conflicts]
    if observation.last_result and not observation.last_result["legal"]:
        lines.append("refused: " + "; ".join(observation.last_result["failure_reasons"])[:_MAX_QUOTE])
    lines += [choice(item, names) for item in observation.candidates]
    return "\n".join(lines)


class _Names:
    """Short names of the drugs of an observation."""

    def __init__(self, observation: Observation) -> None:
        self._short = {row["drug"]: f"d{at}" for at, row in enumerate(observation.medications, 1)}

    def __call__(self, drug: str) -> str:
        return self._short.get(drug, drug)

    def field(self, name: str) -> str:
        """A missing field, with its drug's short name."""
        what, _, drug = name.partition(":")
        return f"{what} {self(drug)}" if drug else what


def choice(candidate: Candidate, names: _Names | None = None) -> str:
    """The line of one candidate."""
    name = names or str
    parts = [candidate.candidate_id, _SHORT[candidate.action_type]]
    if candidate.target_drug:
        parts.append(name(candidate.target_drug))
    if candidate.replacement_drug:
        parts.append(candidate.replacement_drug)
    elif candidate.action_type == ActionType.ADJUST_DOSE_BUCKET:
        parts.append(f"{candidate.daily_mg:g}mg")
    if candidate.taper_step_pct is not None:
        parts.append(f"{candidate.taper_step_pct:g}%")
    if candidate.monitoring:
        parts.append(candidate.monitoring)
    if candidate.evidence_id and not candidate.target_drug:
        parts.append(candidate.evidence_id)
    parts += candidate.rationale_tags
    if candidate.estimated_safety_delta:
        parts.append(f"{candidate.estimated_safety_delta:+.1f}")
    return " ".join(parts)


def _drug(name: str, row: dict[str, Any]) -> str:
    mg = f"{row['daily_mg']:g}mg" if row["daily_mg"] else row["dose_bucket"]
    flags = (("taper", row["needs_taper"]), ("tapering", row["tapering"]), ("held", row["on_hold"]))
    return " ".join([name, row["drug"], mg, row["indication"] or "?", *(mark for mark, on in flags if on)])


def _warning(item: Warning, names: _Names) -> str:
    short = [names(drug) for drug in item.drugs]
    limit = item.text.removeprefix(f"{item.drugs[0]} ") if item.kind in _LIMITED else ""
    return " ".join([item.id, item.kind, item.severity, *short, limit]).rstrip()


def _or(value: object) -> str:
    return "?" if value is None else str(value)


_LIMITED = (ProblemKind.RENAL_DOSE, ProblemKind.OVERDOSE)
"""Kinds whose warning names a dose."""
_SHORT = {
    ActionType.KEEP_REGIMEN: "KEEP",
    ActionType.STOP_DRUG: "STOP",
    ActionType.SUBSTITUTE_WITHIN_CLASS: "SWAP",
    ActionType.RECOMMEND_ALTERNATIVE: "ALTERNATIVE",
    ActionType.ADJUST_DOSE_BUCKET: "DOSE",
    ActionType.INITIATE_TAPER: "TAPER",
    ActionType.CONTINUE_TAPER: "TAPER_ON",
    ActionType.HOLD_DOSE: "HOLD",
    ActionType.ORDER_MONITORING: "LAB",
    ActionType.FETCH_EXTERNAL_EVIDENCE: "LOOKUP",
    ActionType.DECOMPOSE_NEW_DRUG: "SPLIT",
    ActionType.REQUEST_SPECIALIST_REVIEW: "REVIEW specialist",
    ActionType.REQUEST_PHARMACIST_REVIEW: "REVIEW pharmacist",
}
"""What a candidate's action is called in the text."""
