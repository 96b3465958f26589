"""What a legal choice does to the patient, and what a week does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from polyguard.env.legality import DAYS_A_STEP, DISPENSING_RECORD
from polyguard.env.patient import Med, Patient, Taper, bucket_of
from polyguard.env.problems import Chart, regimen
from polyguard.env.types import ActionType, Candidate
from polyguard.knowledge.tables import Knowledge

if TYPE_CHECKING:
    from numpy.random import Generator

WORSE, BETTER = 0.06, 0.04
"""A week without a drug, and a week with one, in severity."""
EVENT_RATE = 0.08
"""Probability of an adverse event in a week at risk 1."""
FAILING = 60
"""eGFR below which doses of drugs that leave by the kidneys are judged."""
OTC_HISTORY = "otc_history"


def carry_out(candidate: Candidate, patient: Patient, chart: Chart, knowledge: Knowledge) -> list[str]:
    """Changes patient and chart; the facts that came to light. The candidate is legal."""
    kind, med = candidate.action_type, patient.med(candidate.target_drug)
    if kind == ActionType.STOP_DRUG and med:
        patient.meds.remove(med)
    elif kind in (ActionType.SUBSTITUTE_WITHIN_CLASS, ActionType.RECOMMEND_ALTERNATIVE) and med:
        new = candidate.replacement_drug or ""
        patient.meds[patient.meds.index(med)] = Med(
            new, candidate.daily_mg, med.indication, 0, med.prescriber, candidate.dose_bucket
        )
    elif kind == ActionType.ADJUST_DOSE_BUCKET and med:
        med.daily_mg, med.bucket = candidate.daily_mg, bucket_of(knowledge, med.drug, candidate.daily_mg)
    elif kind in (ActionType.INITIATE_TAPER, ActionType.CONTINUE_TAPER) and med:
        _withdraw(med, candidate, patient.day)
    elif kind == ActionType.HOLD_DOSE and med:
        med.on_hold = True
    elif kind == ActionType.ORDER_MONITORING:
        return _order(candidate.monitoring or "", patient, chart)
    elif kind == ActionType.FETCH_EXTERNAL_EVIDENCE:
        return _fetch(candidate.evidence_id or "", patient, chart)
    elif kind == ActionType.DECOMPOSE_NEW_DRUG and med:
        return _take_apart(med, patient, knowledge)
    return []


def _withdraw(med: Med, candidate: Candidate, day: int) -> None:
    pct = candidate.taper_step_pct or 0.0
    if med.taper is None:
        med.taper = Taper(pct, candidate.taper_days or DAYS_A_STEP, day)
    else:
        med.taper.steps_done += 1
        med.taper.last_day = day
    if med.daily_mg:
        med.daily_mg = round(med.daily_mg * (1 - pct / 100), 3)


def _order(lab: str, patient: Patient, chart: Chart) -> list[str]:
    found = patient.labs.get(lab)
    if found is None:
        return []
    fresh = found.shown is None or found.age_days > DAYS_A_STEP
    found.shown, found.age_days = found.true, 0
    chart.fields.pop(lab, None)
    return [f"lab.{lab}"] if fresh else []


def _fetch(document: str, patient: Patient, chart: Chart) -> list[str]:
    if document == DISPENSING_RECORD:
        chart.fields.pop(OTC_HISTORY, None)
        found = [f"drug.{med.drug}" for med in patient.otc]
        patient.meds += patient.otc
        patient.otc = []
        return found
    drug = document.removeprefix("drug_")
    hidden = {pair for pair in chart.pairs if drug in pair}
    chart.pairs -= hidden
    return [f"ddi:{'+'.join(sorted(pair))}" for pair in sorted(hidden, key=sorted)]


def _take_apart(med: Med, patient: Patient, knowledge: Knowledge) -> list[str]:
    product = knowledge.products[med.drug]
    at = patient.meds.index(med)
    made = []
    for name, mg in zip(product.components, product.daily_mg, strict=True):
        indication = next((i for i in knowledge.indications(name) if i in patient.treated), "")
        made.append(Med(name, mg, indication, med.duration_days, med.prescriber, bucket_of(knowledge, name, mg)))
    patient.meds[at : at + 1] = made
    return [f"drug.{name}" for name in product.components]


def reveals(candidate: Candidate, patient: Patient, chart: Chart) -> bool:
    """Whether a gathering choice would bring something new to light."""
    if candidate.action_type == ActionType.ORDER_MONITORING:
        lab = patient.labs.get(candidate.monitoring or "")
        return lab is not None and (lab.shown is None or lab.age_days > DAYS_A_STEP)
    if candidate.action_type == ActionType.FETCH_EXTERNAL_EVIDENCE:
        document = candidate.evidence_id or ""
        if document == DISPENSING_RECORD:
            return bool(patient.otc)
        return any(document.removeprefix("drug_") in pair for pair in chart.pairs)
    return True


def pass_week(patient: Patient) -> None:
    """Time: use goes on, labs age, conditions grow worse without a drug and better with one."""
    patient.day += DAYS_A_STEP
    for med in (*patient.meds, *patient.otc):
        med.duration_days += DAYS_A_STEP
    for lab in patient.labs.values():
        lab.age_days += DAYS_A_STEP
    covered = regimen(tuple(patient.active(seen=False))).covered
    for name, value in patient.severity.items():
        change = WORSE if name not in covered else -BETTER * patient.true_adherence
        patient.severity[name] = min(1.0, max(0.0, value + change))


def adverse_event(values: list[tuple[float, tuple[str, ...]]], risk: float, rng: Generator) -> bool:
    """Whether something serious happens this week."""
    draw = float(rng.random())
    return draw < EVENT_RATE * risk and max((value for value, _ in values), default=0.0) >= 0.5


def dose_errors(patient: Patient, knowledge: Knowledge) -> tuple[float, ...]:
    """|log(dose / limit)| of drugs over a limit of kidneys, age or label; 0 of those within one that matters here."""
    egfr, _ = patient.kidneys(seen=False)
    if egfr is None or egfr >= FAILING:
        return ()
    found = []
    for name, med in patient.active(seen=False).items():
        if not med.daily_mg or not knowledge.has_renal_rule(name):
            continue
        cap = patient.limit(name, knowledge, seen=False).daily_mg
        if cap is not None:
            found.append(abs(math.log(med.daily_mg / cap)) if 0 < cap < med.daily_mg else 0.0 if cap else 1.4)
    return tuple(found)
