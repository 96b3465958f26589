"""What an agent is shown of a situation: the chart, the warnings that it supports, the choices, what is known to be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from polyguard.env import candidates
from polyguard.env.patient import Patient
from polyguard.env.problems import Chart, assess, hazards, must_taper
from polyguard.env.types import ActionType, Candidate, Missing, Problem, ProblemKind, Severity, Warning
from polyguard.knowledge.tables import Knowledge

if TYPE_CHECKING:
    from numpy.random import Generator

MAX_WARNINGS = 8
_ELSEWHERE = (ProblemKind.MISSING_DATA, ProblemKind.UNKNOWN_DRUG)
"""Kinds that are shown as missing facts, not as warnings."""
_OLD_DAYS = 180
"""A creatinine that is older says little."""


class View(msgspec.Struct):
    """A situation as an agent sees it, and what the engine has to know of it."""

    seen: list[Problem]
    warnings: list[Warning]
    missing: list[Missing]
    tags: dict[str, str]
    """Problem id -> id of the warning or missing fact."""
    whole: bool
    """Whether the chart hides nothing."""
    candidates: list[Candidate]
    good: set[str]
    """Ids of the choices that end a problem safely; never shown."""


def look(
    patient: Patient, chart: Chart, knowledge: Knowledge, rng: Generator, difficulty: str, *, true: list[Problem]
) -> View:
    """The view; draws the order and the noise of the candidates. `true`: every problem, seen if the chart hides nothing."""
    whole = not _hides(patient, chart)
    seen = true if whole else assess(patient, knowledge, seen=True, chart=chart)
    tags: dict[str, str] = {}
    warnings: list[Warning] = []
    for item in [p for p in seen if p.kind not in _ELSEWHERE][:MAX_WARNINGS]:
        tags[item.id] = f"w{len(warnings) + 1}"
        warnings.append(
            Warning(
                tags[item.id], item.kind, item.members, item.severity, _words(item, patient, knowledge), item.rule_id
            )
        )
    missing, lookups = _missing(patient, chart, seen, tags)
    desk = candidates.Desk(patient, knowledge, seen)
    values = hazards(seen, patient, knowledge, seen=True)
    made, good = candidates.build(desk, rng, difficulty, tags=tags, lookups=lookups, values=values)
    return View(seen, warnings, missing, tags, whole, made, good)


def _hides(patient: Patient, chart: Chart) -> bool:
    """Whether the chart is not the whole truth. Each of these makes `assess` differ between the two."""
    unlike = patient.creatinine(seen=True) != patient.creatinine(seen=False)
    return bool(chart.pairs or patient.otc or unlike or any(med.components for med in patient.meds))


def _words(item: Problem, patient: Patient, knowledge: Knowledge) -> str:
    """One short line: the drugs, and the limit where one decides."""
    if item.kind in (ProblemKind.RENAL_DOSE, ProblemKind.OVERDOSE):
        cap = patient.limit(item.members[0], knowledge, seen=True).daily_mg
        return f"{item.members[0]} {'no dose' if cap == 0 else f'at most {cap:g} mg'}"
    if item.kind == ProblemKind.DDI:
        hit = knowledge.interaction(*item.members)
        return hit.effect if hit else ""
    return " ".join(item.members)


def _missing(
    patient: Patient, chart: Chart, seen: Sequence[Problem], tags: dict[str, str]
) -> tuple[list[Missing], dict[str, str]]:
    """(missing facts, drug whose interactions nobody has looked up, or old lab -> its missing id)."""
    found: list[Missing] = []

    def add(field: str, how: ActionType) -> str:
        found.append(Missing(f"m{len(found) + 1}", field, how))
        return found[-1].id

    for item in seen:
        if item.kind == ProblemKind.UNKNOWN_DRUG:
            tags[item.id] = add(f"components:{item.members[0]}", ActionType.DECOMPOSE_NEW_DRUG)
        elif item.kind == ProblemKind.MISSING_DATA:
            lab = chart.fields.get(item.members[0]) == "lab"
            how = ActionType.ORDER_MONITORING if lab else ActionType.FETCH_EXTERNAL_EVIDENCE
            tags[item.id] = add(item.members[0], how)
    lookups: dict[str, str] = {}
    creatinine = patient.labs["creatinine"]
    if creatinine.shown is not None and creatinine.age_days > _OLD_DAYS:
        lookups["creatinine"] = add("creatinine", ActionType.ORDER_MONITORING)
        tags[lookups["creatinine"]] = lookups["creatinine"]
    here = {med.drug for med in patient.meds}
    # The fewest drugs whose interactions cover all that nobody has looked up.
    open_pairs = {pair for pair in chart.pairs if pair <= here}
    while open_pairs:
        drug = max(sorted(here), key=lambda name: sum(name in pair for pair in open_pairs))
        lookups[drug] = add(f"interactions:{drug}", ActionType.FETCH_EXTERNAL_EVIDENCE)
        open_pairs = {pair for pair in open_pairs if drug not in pair}
        tags[lookups[drug]] = lookups[drug]
    return found, lookups


def medications(patient: Patient, knowledge: Knowledge, difficulty: str) -> list[dict[str, Any]]:
    """The table of drugs as the chart has it; doses in mg are left out in hard cases."""
    rows = []
    for med in patient.meds:
        row = knowledge.drugs.get(med.drug)
        rows.append(
            {
                "drug": med.drug,
                "class": row.therapeutic_class if row else "unknown",
                "daily_mg": None if difficulty == "hard" else med.daily_mg,
                "dose_bucket": str(med.bucket),
                "indication": med.indication or None,
                "duration_days": med.duration_days,
                "needs_taper": must_taper(med, knowledge),
                "tapering": med.taper is not None,
                "on_hold": med.on_hold,
            }
        )
    return rows


def labs(patient: Patient, knowledge: Knowledge) -> dict[str, dict[str, Any]]:
    """Labs that matter for what is taken."""
    wanted = {"creatinine"} | {rule.lab for med in patient.meds for rule in knowledge.monitoring(med.drug)}
    return {
        name: {"value": lab.shown, "age_days": lab.age_days, "flag": "old" if lab.age_days > _OLD_DAYS else ""}
        for name, lab in sorted(patient.labs.items())
        if name in wanted
    }


def person(patient: Patient) -> dict[str, Any]:
    """age, sex, weight, frailty, kidneys by the chart, conditions."""
    egfr, crcl = patient.kidneys(seen=True)
    return {
        "age": patient.age,
        "sex": "F" if patient.female else "M",
        "weight_kg": patient.weight_kg,
        "frailty": patient.frailty,
        "egfr": None if egfr is None else round(egfr),
        "crcl": None if crcl is None else round(crcl),
        "comorbidities": list(patient.conditions),
    }


def abstention(view: View, uncertainty: float) -> dict[str, Any]:
    """Whether the chart speaks for a review, and why."""
    serious = [p for p in view.seen if p.severity in (Severity.CONTRAINDICATED, Severity.MAJOR)]
    reasons = []
    if uncertainty >= 0.6:
        reasons.append("much is unknown")
    if serious and not view.good:
        reasons.append("no listed choice ends a serious problem")
    return {"recommended": uncertainty >= 0.6, "reasons": reasons[:1] if uncertainty >= 0.6 else []}
