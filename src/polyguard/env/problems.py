"""What is wrong with a regimen, read off the tables, and how dangerous it is altogether."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from polyguard.env.patient import VITAL, Med, Patient
from polyguard.env.types import Problem, ProblemKind, Severity
from polyguard.knowledge import SEVERITY_WEIGHT
from polyguard.knowledge.rows import BeersHit, Interaction
from polyguard.knowledge.tables import Knowledge, load

SERIOUS = frozenset({Severity.CONTRAINDICATED, Severity.MAJOR})
"""What an episode has to resolve."""
LONG_USE_DAYS = 84
"""No criterion begins later: from here on the number of days changes nothing."""
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


class Regimen(msgspec.Struct, frozen=True):
    """What follows from the names of the drugs alone."""

    interactions: tuple[Interaction, ...]
    duplicates: tuple[tuple[str, tuple[str, ...]], ...]
    covered: frozenset[str]
    """Indications."""


@lru_cache(maxsize=4096)
def regimen(names: tuple[str, ...]) -> Regimen:
    """Cached: a regimen stays for several steps, and comes back in every episode of its scenario."""
    knowledge = load()
    covered = frozenset(indication for name in names for indication in knowledge.indications(name))
    return Regimen(tuple(knowledge.interactions(names)), tuple(knowledge.duplicates(names)), covered)


def assess(patient: Patient, knowledge: Knowledge, *, seen: bool, chart: Chart) -> list[Problem]:
    """Every problem of the regimen, the worst first; those of the chart alone if `seen`."""
    drugs = patient.active(seen)
    here = regimen(tuple(drugs))
    found = []
    for hit in here.interactions:
        if seen and chart.pairs and frozenset((hit.a, hit.b)) in chart.pairs:
            continue
        severity = Severity(hit.severity)
        if severity == Severity.MAJOR and (drugs[hit.a].taper or drugs[hit.b].taper):
            severity = Severity.MODERATE  # one of them is being withdrawn
        found.append(Problem(f"ddi:{hit.a}+{hit.b}", ProblemKind.DDI, (hit.a, hit.b), severity, hit.rule_id))
    for group, members in here.duplicates:
        found.append(Problem(f"duplicate:{group}", ProblemKind.DUPLICATE, members, Severity.MAJOR, group))
    found += _criteria(patient, drugs, knowledge)
    found += _doses(patient, drugs, knowledge, seen)
    found += _unmonitored(patient, drugs, knowledge)
    for field in chart.fields:
        found.append(Problem(f"missing_data:{field}", ProblemKind.MISSING_DATA, (field,), Severity.MAJOR))
    for med in patient.meds:
        if med.components:
            found.append(Problem(f"unknown_drug:{med.drug}", ProblemKind.UNKNOWN_DRUG, (med.drug,), Severity.MAJOR))
    # What covers an indication is what is taken, whatever the chart says.
    covered = regimen(tuple(patient.active(seen=False))).covered if seen else here.covered
    for name in [name for name in patient.treated if name not in covered]:
        severity = Severity.MAJOR if name in VITAL else Severity.MINOR
        found.append(Problem(f"untreated:{name}", ProblemKind.UNTREATED_INDICATION, (name,), severity))
    return sorted(found, key=lambda item: (-SEVERITY_WEIGHT[item.severity], item.id))


@lru_cache(maxsize=4096)
def _criteria_met(
    names: tuple[str, ...], conditions: tuple[str, ...], age: int, short: tuple[tuple[str, int], ...]
) -> tuple[BeersHit, ...]:
    return tuple(load().beers(names, conditions, age, dict(short)))


def _criteria(patient: Patient, drugs: Mapping[str, Med], knowledge: Knowledge) -> Iterable[Problem]:
    short = tuple((name, med.duration_days) for name, med in drugs.items() if med.duration_days < LONG_USE_DAYS)
    for hit in _criteria_met(tuple(drugs), patient.conditions, patient.age, short):
        if any(drugs[name].taper for name in hit.members if name in drugs):
            continue  # it is being withdrawn: that is all that can be done
        kind = ProblemKind.DRUG_DISEASE if hit.kind == "drug_disease" else ProblemKind.PIM
        if kind == ProblemKind.PIM and len(hit.members) == 1 and must_taper(drugs[hit.members[0]], knowledge):
            kind = ProblemKind.TAPER_NEEDED
        severity = Severity(hit.severity) if hit.kind != "combination" else Severity.MODERATE
        yield Problem(f"{kind}:{hit.id}:{'+'.join(hit.members)}", kind, hit.members, severity, hit.id)


def _doses(patient: Patient, drugs: Mapping[str, Med], knowledge: Knowledge, seen: bool) -> Iterable[Problem]:
    for name, med in drugs.items():
        hit = patient.limit(name, knowledge, seen=seen).renal if knowledge.has_renal_rule(name) else None
        known = hit is not None and patient.creatinine(seen) is not None
        if hit and known and (hit.contraindicated or _over(med.daily_mg or 0.0, hit.max_daily_mg)):
            severity = Severity(hit.severity) if hit.contraindicated else Severity.MAJOR
            yield Problem(f"renal_dose:{name}", ProblemKind.RENAL_DOSE, (name,), severity, hit.rule_id)
        row = knowledge.drugs[name]
        older = row.older_adult_max_daily_mg if patient.age >= row.older_adult_from_age else None
        if med.daily_mg and (_over(med.daily_mg, row.max_daily_mg) or _over(med.daily_mg, older)):
            yield Problem(f"overdose:{name}", ProblemKind.OVERDOSE, (name,), Severity.MAJOR)


def _over(daily_mg: float, limit: float | None) -> bool:
    return limit is not None and daily_mg > limit * 1.001


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


def hazards(
    problems: Iterable[Problem], patient: Patient, knowledge: Knowledge, *, seen: bool
) -> list[tuple[float, tuple[str, ...]]]:
    """(h_j, drugs) of each dangerous problem: severity x exposure x frailty x kidneys, at most 1. By the chart if `seen`."""
    drugs = patient.active(seen)
    egfr, _ = patient.kidneys(seen)
    failing = egfr is not None and egfr < 45
    weak = 0.85 + 0.4 * patient.frailty
    found = []
    for item in problems:
        if item.kind not in _HAZARDOUS:
            continue
        members = [drugs[name] for name in item.members if name in drugs]
        exposure = 1.0
        for med in members:
            exposure *= med.exposure()
        kidneys = 1.15 if failing and any(map(knowledge.has_renal_rule, item.members)) else 1.0
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
