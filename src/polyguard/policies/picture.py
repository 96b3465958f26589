"""A patient as somebody sees who has the observation and the tables, and nothing else: what is wrong, and what a choice would do.

This is the agents' model of the world. It is not the simulator: hidden facts, true doses and chance are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from polyguard.env.patient import VITAL
from polyguard.env.types import REVIEWS, ActionType, Candidate, Observation, ProblemKind
from polyguard.knowledge import SEVERITY_WEIGHT, Knowledge, load

MAJOR = SEVERITY_WEIGHT["major"]
_KINDS = (
    (ProblemKind.DDI,),
    (ProblemKind.PIM, ProblemKind.DRUG_DISEASE, ProblemKind.DUPLICATE, ProblemKind.TAPER_NEEDED),
    (ProblemKind.RENAL_DOSE, ProblemKind.OVERDOSE),
)
"""Kinds of warnings that the lenses explain: graph, criteria, dosing."""
_SWAPS = frozenset({ActionType.SUBSTITUTE_WITHIN_CLASS, ActionType.RECOMMEND_ALTERNATIVE})
_TAPERS = frozenset({ActionType.INITIATE_TAPER, ActionType.CONTINUE_TAPER})


class Regimen(NamedTuple):
    """What is taken."""

    doses: dict[str, float | None]
    """drug -> daily mg; None where the dose is not known, 0 on hold."""
    tapering: frozenset[str]
    """Drugs that are being withdrawn: about them nothing more can be done."""


class Lenses(msgspec.Struct, frozen=True):
    """What the picture is made with. Each may be taken away, to see what it is worth."""

    graph: bool = True
    """The table of interacting pairs; without it only pairs that a warning names."""
    criteria: bool = True
    """Explicit criteria and duplicate classes; without them only what a warning names."""
    dosing: bool = True
    """Doses against the caps of label, age and kidneys; a dose that is listed as a bucket only is looked up."""


class Picture:
    """One observation, seen through the tables."""

    def __init__(self, observation: Observation, lenses: Lenses | None = None) -> None:
        self.observation, self.lenses = observation, lenses or Lenses()
        self.knowledge: Knowledge = load()
        patient = observation.patient
        self.age, self.egfr, self.crcl = patient["age"], patient.get("egfr"), patient.get("crcl")
        self.conditions = frozenset(patient["comorbidities"])
        self.rows = {row["drug"]: row for row in observation.medications}
        self.regimen = Regimen(
            {name: self._dose(name, row) for name, row in self.rows.items()},
            frozenset(name for name, row in self.rows.items() if row.get("tapering")),
        )
        self.days = {
            name: row["duration_days"] for name, row in self.rows.items() if row.get("duration_days") is not None
        }
        self.treated = {row["indication"] for row in self.rows.values() if row.get("indication")}
        used = (self.lenses.graph, self.lenses.criteria, self.lenses.dosing)
        self._explained = frozenset(kind for kinds, on in zip(_KINDS, used, strict=True) if on for kind in kinds)
        self.now = self.findings(self.regimen)

    def _dose(self, name: str, row: Mapping[str, object]) -> float | None:
        if row.get("on_hold"):
            return 0.0
        listed = row.get("daily_mg")
        if isinstance(listed, int | float):
            return float(listed)
        return self.knowledge.bucket_mg(name, str(row.get("dose_bucket")))

    def findings(self, regimen: Regimen) -> dict[str, float]:
        """Everything that is wrong with a regimen, as far as one can see -> how bad it is."""
        drugs = [name for name, dose in regimen.doses.items() if dose != 0.0]
        found: dict[str, float] = {}
        if self.lenses.graph:
            for pair in self.knowledge.interactions(drugs):
                found[f"ddi:{pair.a}+{pair.b}"] = SEVERITY_WEIGHT[pair.severity]
        if self.lenses.criteria:
            for hit in self.knowledge.beers(drugs, self.conditions, self.age, self.days):
                if regimen.tapering.isdisjoint(hit.members):
                    severity = "moderate" if hit.kind == "combination" else hit.severity
                    found[f"{hit.id}:{'+'.join(sorted(hit.members))}"] = SEVERITY_WEIGHT[severity]
            for group, members in self.knowledge.duplicates(drugs):
                found[f"duplicate:{group}"] = MAJOR * (len(members) - 1)
        if self.lenses.dosing:
            found |= self._dose_findings(drugs, regimen)
        found |= self._warned_only(drugs, regimen)
        for need in self.treated - {need for name in drugs for need in self.knowledge.indications(name)}:
            found[f"untreated:{need}"] = MAJOR if need in VITAL else SEVERITY_WEIGHT["minor"]
        return found

    def _dose_findings(self, drugs: list[str], regimen: Regimen) -> dict[str, float]:
        found = {}
        for name in drugs:
            cap, dose = self.cap(name), regimen.doses[name]
            if cap is not None and (cap == 0.0 or (dose is not None and dose > cap * 1.001)):
                found[f"dose:{name}"] = SEVERITY_WEIGHT["contraindicated"] if cap == 0.0 else MAJOR
        return found

    def _warned_only(self, drugs: list[str], regimen: Regimen) -> dict[str, float]:
        """Warnings that no lens in use explains; they last until one of their drugs is gone, withdrawn or lowered."""
        found = {}
        for item in self.observation.warnings:
            changed = any(
                name not in drugs or name in regimen.tapering or _less(regimen.doses[name], self.regimen.doses[name])
                for name in item.drugs
                if name in self.rows
            )
            if item.kind not in self._explained and not changed:
                found[f"warned:{item.id}"] = SEVERITY_WEIGHT[item.severity]
        return found

    def cap(self, drug: str) -> float | None:
        """The highest acceptable daily mg for this patient; 0.0: none, None: not limited."""
        labs = self.observation.labs.get("creatinine", {})
        return self.knowledge.dose_cap(
            drug,
            self.age,
            self.egfr,
            self.crcl,
            self.conditions,
            weight_kg=self.observation.patient.get("weight_kg"),
            creatinine=labs.get("value"),
        )

    def after(self, item: Candidate, regimen: Regimen | None = None) -> Regimen:
        """The regimen once a candidate is carried out."""
        old = self.regimen if regimen is None else regimen
        new, tapering = dict(old.doses), old.tapering
        target, kind = item.target_drug, item.action_type
        if target is None or target not in new:
            return old
        if kind in _SWAPS and item.replacement_drug:
            del new[target]
            new[item.replacement_drug] = self._given(item, item.replacement_drug)
        elif kind == ActionType.ADJUST_DOSE_BUCKET:
            new[target] = self._given(item, target)
        elif kind == ActionType.STOP_DRUG:
            del new[target]
        elif kind in _TAPERS:
            tapering |= {target}
        elif kind == ActionType.HOLD_DOSE:
            new[target] = 0.0
        return Regimen(new, tapering)

    def _given(self, item: Candidate, drug: str) -> float | None:
        if item.daily_mg is not None:
            return item.daily_mg
        return self.knowledge.bucket_mg(drug, item.dose_bucket)

    def faults(self, item: Candidate) -> list[str]:
        """Why the verifier might refuse a candidate, or a careful person not choose it."""
        target, kind = item.target_drug, item.action_type
        found = ["listed as illegal"] if item.legality_precheck is False else []
        if kind in REVIEWS:
            return found
        if target is not None and kind not in (ActionType.ORDER_MONITORING, ActionType.FETCH_EXTERNAL_EVIDENCE):
            found += [f"{target} is not taken"] if target not in self.rows else []
        if kind == ActionType.KEEP_REGIMEN and any(weight >= 1.0 for weight in self.now.values()):
            found.append("a contraindication would stay")
        if target and kind in (ActionType.STOP_DRUG, ActionType.HOLD_DOSE):
            found += self._abrupt(target)
        if target and kind in _TAPERS:
            rule = self.knowledge.taper(target)
            if rule is None or (item.taper_step_pct or 0.0) > rule.hard_cap_step_pct:
                found.append("a taper step that is too big, or of a drug that needs none")
        if kind in _SWAPS and item.replacement_drug:
            found += self._bad_swap(item, target, item.replacement_drug)
        if kind == ActionType.ADJUST_DOSE_BUCKET and target and self.lenses.dosing:
            cap, given = self.cap(target), self._given(item, target)
            if cap is not None and given is not None and given > cap * 1.001:
                found.append("a dose over the cap")
        return found

    def _abrupt(self, target: str) -> list[str]:
        rule, used = self.knowledge.taper(target), self.days.get(target)
        if rule is None or rule.optional or (used is not None and used < rule.min_use_days):
            return []
        return [f"{target} has to be tapered"]

    def _bad_swap(self, item: Candidate, target: str | None, new: str) -> list[str]:
        found = []
        others = [name for name in self.rows if name != target]
        if new in others:
            found.append(f"{new} is taken already")
        if self.lenses.graph and any(
            (pair := self.knowledge.interaction(new, other)) and pair.severity == "contraindicated" for other in others
        ):
            found.append(f"{new} must not be given with another drug")
        if self.lenses.dosing and self.cap(new) == 0.0:
            found.append(f"{new} must not be given to this patient")
        need = self.rows.get(target or "", {}).get("indication")
        if need and need not in self.knowledge.indications(new):
            found.append(f"{new} is not given for {need}")
        return found

    def burden(self, regimen: Regimen) -> float:
        """The burden index: less is better, and more than at the start is no safe resolution."""
        drugs = [name for name, dose in regimen.doses.items() if dose != 0.0]
        hits = self.knowledge.beers(drugs, self.conditions, self.age, self.days)
        return self.knowledge.burden(drugs, sum(regimen.tapering.isdisjoint(hit.members) for hit in hits))["index"]

    def gain(self, item: Candidate, regimen: Regimen | None = None) -> float:
        """By how much the findings become less bad; negative when new ones outweigh."""
        before = self.now if regimen is None else self.findings(regimen)
        return total(before) - total(self.findings(self.after(item, regimen)))

    def creates(self, item: Candidate) -> list[str]:
        """Findings of major severity or worse that a candidate would bring."""
        new = self.findings(self.after(item))
        return [key for key, weight in new.items() if weight >= MAJOR and key not in self.now]


def total(findings: Mapping[str, float]) -> float:
    """All of them together. What has to be resolved (major and worse) counts fully, the rest for a quarter."""
    return sum(weight if weight >= MAJOR else 0.25 * weight for weight in findings.values())


def _less(new: float | None, old: float | None) -> bool:
    return new is not None and (old is None or new < old)
