"""Makes a scenario: patients around templates, filled up with drugs that fit, and proved to have a safe way out.

Everything follows from the seed. A draft in which a template is not the problem that it should be, which has other serious
problems, or from which good choices lead nowhere within the budget, is thrown away and drawn anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from bashgym.core.errors import fail
from polyguard.env.candidates import Desk
from polyguard.env.patient import Lab, Med, Patient, bucket_of
from polyguard.env.problems import SERIOUS, Chart, assess
from polyguard.env.tasks import Task, Template, scenario_id, scenario_seed, task, templates
from polyguard.env.transition import OTC_HISTORY, carry_out
from polyguard.env.types import Difficulty, DoseBucket
from polyguard.knowledge.tables import Knowledge, load

DRAFTS, EASED = 600, 60
"""Drafts before a seed is given up, and those after which a scenario has as few templates as its task allows."""
SHOWN = {Difficulty.EASY: 1.0, Difficulty.MEDIUM: 0.6, Difficulty.HARD: 0.3}
"""Probability that an interaction is in the warnings before anybody looks it up."""
_NORMAL = {
    "creatinine": 0.8, "potassium": 4.3, "sodium": 139.0, "inr": 2.4, "tsh": 2.1, "digoxin_level": 0.7, "lithium_level": 0.6,
    "hba1c": 6.9, "qtc_ms": 425.0, "hemoglobin": 13.2,
}  # fmt: skip
_OTC = ("ibuprofen", "naproxen", "diphenhydramine")
Rng = np.random.Generator


class Case(msgspec.Struct):
    """One patient and what its chart hides."""

    patient: Patient
    chart: Chart


class Scenario(msgspec.Struct):
    """What an episode begins with."""

    id: str
    task: Task
    split: str
    index: int
    seed: int
    cases: list[Case]
    templates: tuple[str, ...]
    conflicts: tuple[str, ...] = ()

    def fresh(self) -> list[Case]:
        """Independent copies of the cases."""
        return [Case(case.patient.copy(), Chart(set(case.chart.pairs), dict(case.chart.fields))) for case in self.cases]


@lru_cache(maxsize=8192)
def scenario(task_id: str, split: str, index: int, seed: int | None = None) -> Scenario:
    """The scenario with that place in its split, or with that seed. Cached; take `fresh` copies. `invalid_field`."""
    kind = task(task_id)
    if split not in ("train", "validation", "test") or index < 0:
        raise fail("invalid_field", f"no scenario {split[:20]!r} {index}", fields=["split", "index"])
    number = scenario_seed(task_id, split, index) if seed is None else seed
    for draft in range(DRAFTS):
        rng = np.random.Generator(np.random.PCG64([number, draft]))
        made = _draft(kind, split, rng, load(), eased=draft >= EASED)
        if made is not None:
            cases, names = made
            conflicts = _conflicts(cases[0].patient, rng) if kind.conflict else ()
            return Scenario(scenario_id(task_id, split, index), kind, split, index, number, cases, names, conflicts)
    raise fail("internal", f"no scenario of {task_id} in {split} could be made from seed {number}")


def _conflicts(patient: Patient, rng: Rng) -> tuple[str, ...]:
    med = patient.meds[int(rng.integers(len(patient.meds)))]
    return (f"The specialist wants to keep {med.drug}; the family doctor would rather stop it.",)


def _draft(
    kind: Task, split: str, rng: Rng, knowledge: Knowledge, *, eased: bool
) -> tuple[list[Case], tuple[str, ...]] | None:
    chosen = _templates(kind, split, rng, eased)
    if chosen is None:
        return None
    cases = []
    for number in range(kind.cases):
        case = _case(kind, chosen, rng, knowledge, f"{number}")
        if case is None or _crowded(case, chosen, knowledge) or not _solvable(case, kind, knowledge):
            return None
        cases.append(case)
    return cases, tuple(item.id for item in chosen)


def _templates(kind: Task, split: str, rng: Rng, eased: bool) -> list[Template] | None:
    wanted = [*kind.kinds, *([kind.kinds[-1]] * int(rng.integers(kind.extra + 1)))]
    wanted = wanted[: max(1, len(kind.kinds) - 1)] if eased else wanted
    chosen: list[Template] = []
    for kinds in wanted:
        pool = [item for name in kinds for item in templates().get((name, split), ())]
        taken = {drug for item in chosen for drug in item.drugs}
        pool = [item for item in pool if taken.isdisjoint(item.drugs)]
        if not pool:
            return None
        chosen.append(pool[int(rng.integers(len(pool)))])
    return chosen


def _case(kind: Task, chosen: Sequence[Template], rng: Rng, knowledge: Knowledge, name: str) -> Case | None:
    patient = _person(chosen, rng, name)
    for template in chosen:
        for drug in template.drugs:
            _add(patient, drug, template, rng, knowledge)
    wanted = int(rng.integers(kind.drugs[0], kind.drugs[1] + 1))
    chart = Chart()
    _fill(patient, wanted, rng, knowledge)
    _settle(patient, rng, knowledge)
    if not _as_meant(patient, chosen, knowledge):
        return None
    return _hide(Case(patient, chart), kind, rng, knowledge)


def _person(chosen: Sequence[Template], rng: Rng, name: str) -> Patient:
    female = bool(rng.integers(2))
    kidney = any(item.kind == "renal" for item in chosen)
    creatinine = round(float(rng.uniform(1.7, 3.2) if kidney else rng.uniform(0.6, 0.95)), 2)
    labs = {lab: Lab(value, value, int(rng.integers(1, 20))) for lab, value in _NORMAL.items()}
    labs["creatinine"] = Lab(creatinine, creatinine, int(rng.integers(1, 20)))
    conditions = {item.condition for item in chosen if item.condition}
    return Patient(
        id=f"sim-{name}",
        age=int(rng.integers(67, 91)),
        female=female,
        weight_kg=round(float(rng.uniform(48, 95)), 1),
        height_cm=round(float(rng.uniform(150, 188)), 0),
        conditions=tuple(sorted(conditions)),
        treated=(),
        frailty=round(float(rng.uniform(0.1, 0.8)), 2),
        true_adherence=round(float(rng.uniform(0.6, 1.0)), 2),
        severity={},
        meds=[],
        labs=labs,
        vitals={"systolic": float(rng.integers(108, 158)), "heart_rate": float(rng.integers(56, 92))},
    )


def _add(patient: Patient, drug: str, template: Template | None, rng: Rng, knowledge: Knowledge) -> None:
    options = knowledge.indications(drug)
    shared = [name for name in options if name in patient.treated]
    indication = (shared or options or ("",))[0]
    buckets = (DoseBucket.LOW, DoseBucket.MEDIUM, DoseBucket.HIGH)
    top = template is not None and template.kind == "renal"
    bucket = DoseBucket.HIGH if top else buckets[int(rng.integers(2))]
    mg = knowledge.bucket_mg(drug, bucket)
    long_use = template is not None and template.kind in ("taper", "pim")
    days = int(rng.integers(200, 900)) if long_use else int(rng.integers(60, 600))
    patient.meds.append(
        Med(drug, mg, indication, days, ("gp", "specialist")[int(rng.integers(2))], bucket if mg else DoseBucket.NA)
    )
    if indication:
        patient.treated = tuple(sorted({*patient.treated, indication}))
        patient.conditions = tuple(sorted({*patient.conditions, indication}))


def _fill(patient: Patient, wanted: int, rng: Rng, knowledge: Knowledge) -> None:
    """Adds drugs that make no problem, until there are `wanted`."""
    names = list(knowledge.drugs)
    egfr, crcl = patient.kidneys(seen=False)
    for at in rng.permutation(len(names)):
        if len(patient.meds) >= wanted:
            return
        name = names[at]
        here = [med.drug for med in patient.meds]
        if name in here or not knowledge.indications(name):
            continue
        conditions = {*patient.conditions, knowledge.indications(name)[0]}
        clean = (
            not any(knowledge.interaction(name, other) for other in here)
            and not any(name in members for _, members in knowledge.duplicates([*here, name]))
            and not any(name in hit.members for hit in knowledge.beers([*here, name], conditions, patient.age))
            and not knowledge.renal(name, egfr, crcl)
            and len(knowledge.beers([*here, name], conditions, patient.age))
            == len(knowledge.beers(here, patient.conditions, patient.age))
        )
        if clean:
            _add(patient, name, None, rng, knowledge)


def _settle(patient: Patient, rng: Rng, knowledge: Knowledge) -> None:
    """Conditions' severities, and fresh labs for what is taken."""
    patient.severity = {name: round(float(rng.uniform(0.1, 0.5)), 2) for name in patient.treated}
    for med in patient.meds:
        for rule in knowledge.monitoring(med.drug):
            if rule.lab not in patient.labs:
                patient.labs[rule.lab] = Lab(1.0, 1.0, int(rng.integers(1, 20)))
    order = rng.permutation(len(patient.meds))
    patient.meds = [patient.meds[at] for at in order]


def _as_meant(patient: Patient, chosen: Sequence[Template], knowledge: Knowledge) -> bool:
    """Whether every template shows as a serious problem, and nothing else does."""
    serious = [p for p in assess(patient, knowledge, seen=False, chart=Chart()) if p.severity in SERIOUS]
    ours = [set(item.drugs) for item in chosen]
    return all(any(drugs <= set(p.members) for p in serious) for drugs in ours) and all(
        any(drugs & set(p.members) for drugs in ours) and _belongs(p.members, chosen) for p in serious
    )


def _crowded(case: Case, chosen: Sequence[Template], knowledge: Knowledge) -> bool:
    """Whether hidden drugs make far more of it than was meant."""
    found = assess(case.patient, knowledge, seen=False, chart=case.chart)
    return sum(p.severity in SERIOUS for p in found) > len(chosen) + 3 + 3 * len(case.patient.otc)


def _belongs(members: Sequence[str], chosen: Sequence[Template]) -> bool:
    """A pair that is a problem has to be a template's own, not one of two templates."""
    return len(members) < 2 or any(set(members) <= set(item.drugs) for item in chosen)


def _hide(case: Case, kind: Task, rng: Rng, knowledge: Knowledge) -> Case | None:
    patient, chart = case.patient, case.chart
    hits = knowledge.interactions([med.drug for med in patient.meds])
    for hit in hits:
        if float(rng.random()) >= SHOWN[kind.difficulty]:
            chart.pairs.add(frozenset((hit.a, hit.b)))
    if "stale_creatinine" in kind.hidden:
        lab = patient.labs["creatinine"]
        lab.shown, lab.age_days = round(lab.true * 0.55, 2), 400
    if "creatinine" in kind.hidden:
        lab = patient.labs["creatinine"]
        lab.shown, lab.age_days = None, 999
        chart.fields["creatinine"] = "lab"
    if "otc" in kind.hidden:
        here = [med.drug for med in patient.meds]
        fitting = [name for name in _OTC if name not in here and any(knowledge.interaction(name, o) for o in here)]
        if fitting:
            drug = fitting[int(rng.integers(len(fitting)))]
            mg = knowledge.bucket_mg(drug, DoseBucket.LOW)
            patient.otc.append(
                Med(drug, mg, knowledge.indications(drug)[0], 60, "self", bucket_of(knowledge, drug, mg))
            )
            chart.fields[OTC_HISTORY] = "history"
    if "product" in kind.hidden and not _wrap(patient, rng, knowledge):
        return None
    return case


def _wrap(patient: Patient, rng: Rng, knowledge: Knowledge) -> bool:
    """Adds a combination product whose parts nobody has looked at."""
    here = {med.drug for med in patient.meds}
    fitting = [item for item in knowledge.products.values() if here.isdisjoint(item.components)]
    if not fitting:
        return False
    product = fitting[int(rng.integers(len(fitting)))]
    patient.meds.append(Med(product.id, None, "", 90, "specialist", DoseBucket.NA, components=product.components))
    return True


def _solvable(case: Case, kind: Task, knowledge: Knowledge) -> bool:
    """Whether good choices, one after the other, end every serious problem with steps to spare."""
    patient, chart = case.patient.copy(), Chart(set(case.chart.pairs), dict(case.chart.fields))
    steps = 0
    budget = kind.steps // kind.cases - (kind.cases == 1)
    while steps <= budget:
        true = [p for p in assess(patient, knowledge, seen=False, chart=chart) if p.severity in SERIOUS]
        if not true:
            return True
        steps += 1
        if patient.creatinine(seen=True) != patient.creatinine(seen=False):
            patient.labs["creatinine"].shown = patient.labs["creatinine"].true
            chart.fields.pop("creatinine", None)
            continue
        if chart.pairs:
            pair = min(chart.pairs, key=sorted)
            chart.pairs = {other for other in chart.pairs if not other & {min(pair)}}
            continue
        seen = assess(patient, knowledge, seen=True, chart=chart)
        desk = Desk(patient, knowledge, seen)
        serious = [p for p in seen if p.severity in SERIOUS]
        good = next((o for p in serious for o in desk.answers(p) if o.good), None)
        if good is None:
            return False
        carry_out(good.candidate, patient, chart, knowledge)
    return False
