"""What is wrong with a regimen, read off the tables, and how dangerous it is altogether."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from polyguard.env.patient import VITAL, Med, Patient
from polyguard.env.types import Problem, ProblemKind, Severity
from polyguard.knowledge import SEVERITY_WEIGHT
from polyguard.knowledge.tables import Knowledge

SERIOUS = frozenset({Severity.CONTRAINDICATED, Severity.MAJOR})
"""What an episode has to resolve."""
HAZARD = 0.6
"""Risk(s) = 1 - prod over hazards j of (1 - 0.6 h_j)."""
_HAZARDOUS = frozenset(
    {
        ProblemKind.DDI,
        ProblemKind.DUPLICATE,
        ProblemKind.RENAL_DOSE,
        ProblemKind.PIM,
        ProblemKind.DRUG_DISEASE,
        ProblemKind.TAPER_NEEDED,
        ProblemKind.OVERDOSE,
    }
)


class Chart(msgspec.Struct):
    """What hides problems from the agent, beyond the patient's own hidden drugs and labs."""

    pairs: set[frozenset[str]] = msgspec.field(default_factory=set)
    """Interacting pairs that nobody has looked up."""
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    """Critical facts that are missing: field -> `lab` or `history`."""


def assess(patient: Patient, knowledge: Knowledge, *, seen: bool, chart: Chart) -> list[Problem]:
    """Every problem of the regimen, the worst first; those of the chart alone if `seen`."""
    drugs = patient.active(seen)
    names = list(drugs)
    found = []
    for hit in knowledge.interactions(names):
        if seen and chart.pairs and frozenset((hit.a, hit.b)) in chart.pairs:
            continue
        severity = Severity(hit.severity)
        if severity == Severity.MAJOR and (drugs[hit.a].taper or drugs[hit.b].taper):
            severity = Severity.MODERATE  # one of them is being withdrawn
        found.append(Problem(f"ddi:{hit.a}+{hit.b}", ProblemKind.DDI, (hit.a, hit.b), severity, hit.rule_id))
    for group, members in knowledge.duplicates(names):
        found.append(Problem(f"duplicate:{group}", ProblemKind.DUPLICATE, members, Severity.MAJOR, group))
    found += _criteria(patient, drugs, knowledge)
    found += _doses(patient, drugs, knowledge, seen)
    found += _unmonitored(patient, drugs, knowledge)
    for field in chart.fields:
        found.append(Problem(f"missing_data:{field}", ProblemKind.MISSING_DATA, (field,), Severity.MAJOR))
    for med in patient.meds:
        if med.components:
            found.append(Problem(f"unknown_drug:{med.drug}", ProblemKind.UNKNOWN_DRUG, (med.drug,), Severity.MAJOR))
    for name in patient.uncovered(knowledge):
        severity = Severity.MAJOR if name in VITAL else Severity.MINOR
        found.append(Problem(f"untreated:{name}", ProblemKind.UNTREATED_INDICATION, (name,), severity))
    return sorted(found, key=lambda item: (-SEVERITY_WEIGHT[item.severity], item.id))


def _criteria(patient: Patient, drugs: Mapping[str, Med], knowledge: Knowledge) -> Iterable[Problem]:
    days = {name: med.duration_days for name, med in drugs.items()}
    for hit in knowledge.beers(list(drugs), patient.conditions, patient.age, days):
        if any(drugs[name].taper for name in hit.members if name in drugs):
            continue  # it is being withdrawn: that is all that can be done
        kind = ProblemKind.DRUG_DISEASE if hit.kind == "drug_disease" else ProblemKind.PIM
        if kind == ProblemKind.PIM and len(hit.members) == 1 and must_taper(drugs[hit.members[0]], knowledge):
            kind = ProblemKind.TAPER_NEEDED
        severity = Severity(hit.severity) if hit.kind != "combination" else Severity.MODERATE
        yield Problem(f"{kind}:{hit.id}:{'+'.join(hit.members)}", kind, hit.members, severity, hit.id)


def _doses(patient: Patient, drugs: Mapping[str, Med], knowledge: Knowledge, seen: bool) -> Iterable[Problem]:
    egfr, crcl = patient.kidneys(seen)
    how = {"age": patient.age, "weight_kg": patient.weight_kg, "creatinine": patient.creatinine(seen)}
    for name, med in drugs.items():
        hits = knowledge.renal(name, egfr, crcl, conditions=patient.conditions, **how) if egfr is not None else []
        for hit in hits:
            over = hit.max_daily_mg is not None and (med.daily_mg or 0) > hit.max_daily_mg * 1.001
            if hit.contraindicated or over:
                severity = Severity(hit.severity) if hit.contraindicated else Severity.MAJOR
                yield Problem(f"renal_dose:{name}", ProblemKind.RENAL_DOSE, (name,), severity, hit.rule_id)
        row = knowledge.drugs[name]
        limits = (row.max_daily_mg, row.older_adult_max_daily_mg if patient.age >= row.older_adult_from_age else None)
        if med.daily_mg and any(limit is not None and med.daily_mg > limit * 1.001 for limit in limits):
            yield Problem(f"overdose:{name}", ProblemKind.OVERDOSE, (name,), Severity.MAJOR)


def _unmonitored(patient: Patient, drugs: Mapping[str, Med], knowledge: Knowledge) -> Iterable[Problem]:
    found: dict[str, list[str]] = {}
    for name in drugs:
        for rule in knowledge.monitoring(name):
            lab = patient.labs.get(rule.lab)
            if rule.every_days and (lab is None or lab.shown is None or lab.age_days > rule.every_days):
                found.setdefault(rule.lab, []).append(name)
    for lab_name, members in found.items():
        yield Problem(
            f"missing_monitoring:{lab_name}", ProblemKind.MISSING_MONITORING, (lab_name, *members), Severity.MODERATE
        )


def must_taper(med: Med, knowledge: Knowledge) -> bool:
    """Whether the drug may not be stopped at once."""
    rule = knowledge.taper(med.drug)
    return rule is not None and not rule.optional and med.duration_days >= rule.min_use_days


def hazards(problems: Iterable[Problem], patient: Patient, knowledge: Knowledge) -> list[tuple[float, tuple[str, ...]]]:
    """(h_j, drugs) of each dangerous problem: severity x exposure x frailty x kidneys, at most 1."""
    drugs = patient.active(seen=False)
    egfr, _ = patient.kidneys(seen=False)
    weak = 0.85 + 0.4 * patient.frailty
    found = []
    for item in problems:
        if item.kind not in _HAZARDOUS:
            continue
        members = [drugs[name] for name in item.members if name in drugs]
        exposure = 1.0
        for med in members:
            exposure *= med.exposure()
        kidneys = 1.15 if egfr is not None and egfr < 45 and any(map(knowledge.has_renal_rule, item.members)) else 1.0
        value = SEVERITY_WEIGHT[item.severity] * exposure ** (1 / max(1, len(members))) * weak * kidneys
        found.append((min(1.0, value), item.members))
    return found


def risk(values: Iterable[float]) -> float:
    """1 - prod(1 - 0.6 h)."""
    safe = 1.0
    for value in values:
        safe *= 1 - HAZARD * value
    return 1 - safe


def burden(patient: Patient, problems: Iterable[Problem], knowledge: Knowledge) -> dict[str, float]:
    """The burden index of the true regimen with its parts."""
    hits = sum(item.kind in (ProblemKind.PIM, ProblemKind.DRUG_DISEASE, ProblemKind.TAPER_NEEDED) for item in problems)
    return knowledge.burden(list(patient.active(seen=False)), hits)
