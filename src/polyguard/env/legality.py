"""The hard rules: which candidate may be carried out at all. Judged before anything changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from polyguard.env.patient import Patient
from polyguard.env.problems import must_taper
from polyguard.env.types import REVIEWS, ActionType, Candidate, Problem, ProblemKind, Severity, Verdict
from polyguard.knowledge import evidence
from polyguard.knowledge.tables import Knowledge

DISPENSING_RECORD = "record_dispensing"
"""Evidence that is not in the index of documents: what the pharmacy has handed out."""
DAYS_A_STEP = 7
Fault = tuple[str, bool]
"""(reason, whether it keeps or makes a contraindication)."""


def judge(
    candidate: Candidate,
    patient: Patient,
    seen: Sequence[Problem],
    knowledge: Knowledge,
    resolved: Collection[str] = (),
) -> Verdict:
    """The verdict. `seen`: problems of the chart; `resolved`: ids of problems that were there and are gone."""
    if candidate.action_type in REVIEWS:
        return Verdict(True)
    rule = _RULES.get(candidate.action_type, _gathering)
    fault = rule(candidate, patient, seen, knowledge)
    if fault is not None:
        return Verdict(False, (fault[0],), contraindicated=fault[1])
    return Verdict(True, dominated=_brings_back(candidate, patient, knowledge, resolved))


def _keep(_: Candidate, __: Patient, seen: Sequence[Problem], ___: Knowledge) -> Fault | None:
    worst = next((p for p in seen if p.severity == Severity.CONTRAINDICATED), None)
    return (f"keeps a contraindication: {worst.id}", True) if worst else None


def _stop(candidate: Candidate, patient: Patient, _: Sequence[Problem], knowledge: Knowledge) -> Fault | None:
    med = patient.med(candidate.target_drug)
    if med is None:
        return f"{candidate.target_drug} is not taken", False
    if must_taper(med, knowledge) and not _withdrawn(patient, med.drug):
        return f"{med.drug} may not be stopped at once: it has to be withdrawn step by step", False
    return None


def _withdrawn(patient: Patient, drug: str) -> bool:
    med = patient.med(drug)
    return bool(med and med.taper and med.taper.steps_done * med.taper.step_pct >= 100)


def _replace(candidate: Candidate, patient: Patient, _: Sequence[Problem], knowledge: Knowledge) -> Fault | None:
    med, new = patient.med(candidate.target_drug), candidate.replacement_drug
    if med is None or new is None or new not in knowledge.drugs:
        return f"{candidate.target_drug} or {new} is not there", False
    within = candidate.action_type == ActionType.SUBSTITUTE_WITHIN_CLASS
    listed = [s for s in knowledge.substitutes(med.drug) if s.to == new and s.within_class == within]
    if not listed and not (within and same_class(med.drug, new, knowledge)):
        return f"{new} is no known substitute for {med.drug}", False
    if med.indication and med.indication not in knowledge.indications(new):
        return f"{new} is not given for {med.indication}", False
    if patient.limit(new, knowledge, seen=True).daily_mg == 0:
        return f"no dose of {new} is acceptable here", True
    for other in patient.active(seen=True):
        hit = knowledge.interaction(new, other) if other != med.drug else None
        if hit and hit.severity == Severity.CONTRAINDICATED:
            return f"{new} may not be given with {other}", True
    return None


def same_class(a: str, b: str, knowledge: Knowledge) -> bool:
    """Whether two drugs have one therapeutic class."""
    first, second = knowledge.drugs.get(a), knowledge.drugs.get(b)
    return bool(first and second and first.therapeutic_class == second.therapeutic_class)


def _adjust(candidate: Candidate, patient: Patient, _: Sequence[Problem], knowledge: Knowledge) -> Fault | None:
    med = patient.med(candidate.target_drug)
    if med is None or candidate.daily_mg is None:
        return f"{candidate.target_drug} has no dose to change", False
    cap = patient.limit(med.drug, knowledge, seen=True).daily_mg
    if cap is not None and candidate.daily_mg > cap * 1.001:
        return f"{candidate.daily_mg:g} mg of {med.drug} are over the limit of {cap:g} mg", cap == 0
    return None


def _taper(candidate: Candidate, patient: Patient, _: Sequence[Problem], knowledge: Knowledge) -> Fault | None:
    med = patient.med(candidate.target_drug)
    rule = knowledge.taper(med.drug) if med else None
    if med is None or rule is None or candidate.taper_step_pct is None:
        return f"{candidate.target_drug} is no drug that is withdrawn step by step", False
    if candidate.taper_step_pct > rule.hard_cap_step_pct:
        return f"steps of {candidate.taper_step_pct:g} % are over {rule.hard_cap_step_pct:g} % for {med.drug}", False
    if candidate.action_type == ActionType.INITIATE_TAPER:
        return (f"{med.drug} is being withdrawn already", False) if med.taper else None
    if med.taper is None:
        return f"{med.drug} is not being withdrawn", False
    if patient.day - med.taper.last_day < med.taper.interval_days:
        return f"the next step of {med.drug} is due {med.taper.interval_days} days after the last", False
    return None


def _hold(candidate: Candidate, patient: Patient, _: Sequence[Problem], knowledge: Knowledge) -> Fault | None:
    med = patient.med(candidate.target_drug)
    if med is None or med.on_hold:
        return f"{candidate.target_drug} is not taken", False
    return (f"{med.drug} may not be interrupted", False) if must_taper(med, knowledge) else None


def _order(candidate: Candidate, patient: Patient, _: Sequence[Problem], knowledge: Knowledge) -> Fault | None:
    if candidate.monitoring not in relevant_labs(patient, knowledge):
        return f"{candidate.monitoring} says nothing about this regimen", False
    return None


def relevant_labs(patient: Patient, knowledge: Knowledge) -> set[str]:
    """Labs that a drug of the chart needs, and creatinine."""
    drugs = patient.active(seen=True)
    return {"creatinine"} | {rule.lab for name in drugs for rule in knowledge.monitoring(name)}


def _gathering(candidate: Candidate, patient: Patient, _: Sequence[Problem], __: Knowledge) -> Fault | None:
    if candidate.action_type == ActionType.FETCH_EXTERNAL_EVIDENCE:
        name = candidate.evidence_id or ""
        known = name == DISPENSING_RECORD or evidence.get(name) is not None
        return None if known else (f"there is no evidence {name[:60]!r}", False)
    med = patient.med(candidate.target_drug)
    return None if med and med.components else (f"{candidate.target_drug} is no unknown product", False)


def _brings_back(candidate: Candidate, patient: Patient, knowledge: Knowledge, resolved: Collection[str]) -> bool:
    new = candidate.replacement_drug
    if new is None or not resolved:
        return False
    pairs = [sorted((new, other)) for other in patient.active(seen=True)]
    return any(f"{ProblemKind.DDI}:{a}+{b}" in resolved for a, b in pairs)


_RULES = {
    ActionType.KEEP_REGIMEN: _keep,
    ActionType.STOP_DRUG: _stop,
    ActionType.SUBSTITUTE_WITHIN_CLASS: _replace,
    ActionType.RECOMMEND_ALTERNATIVE: _replace,
    ActionType.ADJUST_DOSE_BUCKET: _adjust,
    ActionType.INITIATE_TAPER: _taper,
    ActionType.CONTINUE_TAPER: _taper,
    ActionType.HOLD_DOSE: _hold,
    ActionType.ORDER_MONITORING: _order,
}
