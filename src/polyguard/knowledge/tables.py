"""The tables as look-ups: everything is expanded once, after that every question is a few dict accesses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from operator import ge, gt, le, lt
from typing import Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail
from polyguard.knowledge import expand
from polyguard.knowledge.expand import Criterion, RenalRule
from polyguard.knowledge.rows import (
    BeersHit,
    Interaction,
    MonitoringRule,
    RenalHit,
    Substitution,
    TaperRule,
)
from polyguard.knowledge.validate import faults

OLDER_ADULT = 65
_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge}
_RENAL_SEVERITY = {"contraindicated": "contraindicated", "avoid": "major", "reduce": "major", "caution": "minor"}
_BUCKETS = {"LOW": 0, "MEDIUM": 1, "HIGH": 2}
_CNS_LIMIT = 3
_ACB_LIMIT = 3


class Knowledge:
    """What is known about drugs. Shared by all episodes; nothing may change it."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.tables = tables
        """The rows as they are in the file, for documents and exports."""
        self.version = digest_json(tables)[:12]
        self.drugs = {row["id"]: expand.drug(row) for row in tables["drugs"]}
        self._cns_active = frozenset(name for name, drug in self.drugs.items() if drug.cns_active)
        self._acb = {name: drug.acb_score for name, drug in self.drugs.items() if drug.acb_score}
        self.groups = {name: frozenset(members) for name, members in tables["groups"].items()}
        targets = expand.Targets(self.drugs, self.groups)
        self.pairs = expand.interactions(tables["interactions"], targets)
        self.partners: dict[str, dict[str, Interaction]] = {name: {} for name in self.drugs}
        """drug -> other drug -> interaction: the quickest way to ask about many."""
        for item in self.pairs.values():
            self.partners[item.a][item.b] = self.partners[item.b][item.a] = item
        self.products = expand.products(tables["products"])
        self.tapers = expand.taper_rules(tables["taper_rules"])
        # group -> (place in the table, limit); the first of two groups with the same members gives the name.
        self._limits = {
            row["group"]: (place, row["max_count"]) for place, row in enumerate(tables["duplicate_therapy"])
        }
        self._limited = {name: tuple(drug.groups & self._limits.keys()) for name, drug in self.drugs.items()}
        self._criteria = expand.criteria(tables["beers"], tables["hepatic_rules"], targets)
        self._counts = {row["target"]: row for row in tables["beers"] if row["target"].startswith("count:")}
        self._renal = expand.renal_rules(tables["renal_rules"], targets)
        self._hepatic = expand.hepatic_rules(tables["hepatic_rules"])
        class_groups = frozenset(tables["class_groups"])
        self._substitutes = expand.substitutions(tables["substitutions"], class_groups, targets)
        self._monitoring = expand.monitoring_rules(tables["monitoring_rules"], targets)
        self._for: dict[str, tuple[str, ...]] = {}
        for name, drug in self.drugs.items():
            for indication in drug.indications:
                self._for[indication] = (*self._for.get(indication, ()), name)
        self._conditions = tuple(sorted(set(self._for) | self._named_conditions()))
        self._labs = tuple(sorted({row["lab"] for row in tables["monitoring_rules"]}))

    def _named_conditions(self) -> set[str]:
        rows = [*self.tables["beers"], *self.tables["hepatic_rules"]]
        named = {name for row in rows for name in (*row["conditions"], *row.get("unless", ()))}
        return named | {row["condition"] for row in self.tables["renal_rules"] if row["condition"]}

    def interaction(self, a: str, b: str) -> Interaction | None:
        """What the two do to each other (highest severity of all rules that cover them)."""
        others = self.partners.get(a)
        return None if others is None else others.get(b)

    def interactions(self, drugs: Sequence[str]) -> list[Interaction]:
        """All interacting pairs of a regimen, in its order."""
        found = []
        for index, name in enumerate(drugs):
            others = self.partners.get(name)
            if others:
                found += [others[other] for other in drugs[index + 1 :] if other in others]
        return found

    def duplicates(self, drugs: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """(group, members) of which the regimen has more than it should; the same members are named once."""
        by_group: dict[str, list[str]] = {}
        for name in dict.fromkeys(drugs):
            for group in self._limited.get(name, ()):
                by_group.setdefault(group, []).append(name)
        found: dict[tuple[str, ...], str] = {}
        for group in sorted(by_group, key=self._limits.__getitem__):
            members = by_group[group]
            if len(members) > self._limits[group][1]:
                found.setdefault(tuple(members), group)
        return [(group, members) for members, group in found.items()]

    def beers(
        self, drugs: Sequence[str], conditions: Collection[str], age: float, days: Mapping[str, int] | None = None
    ) -> list[BeersHit]:
        """The explicit criteria that the regimen meets: Beers, and the liver rules that allow no dose.

        `days` (drug -> days of use) is for criteria that begin after weeks; a drug that it lacks counts as in long use.
        """
        here = frozenset(conditions)
        regimen = frozenset(drugs)
        found = []
        for name in dict.fromkeys(drugs):
            for rule in self._criteria.get(name, ()):
                if not _applies(rule, here, regimen, age):
                    continue
                if rule.min_days and days is not None and days.get(name, rule.min_days) < rule.min_days:
                    continue
                causes = rule.conditions & here
                found.append(rule.because[min(causes)] if causes else rule.plain)
        if age >= OLDER_ADULT:
            found += self._combinations(drugs)
        return found

    def _combinations(self, drugs: Sequence[str]) -> list[BeersHit]:
        active = tuple(name for name in dict.fromkeys(drugs) if name in self._cns_active)
        burdened = tuple(name for name in dict.fromkeys(drugs) if name in self._acb)
        found = []
        if len(active) >= _CNS_LIMIT:
            found.append(expand.hit(self._counts["count:cns_active>=3"], active))
        # One drug of score 3 alone is a finding about that drug, and has a row of its own.
        if len(burdened) > 1 and sum(self._acb[name] for name in burdened) >= _ACB_LIMIT:
            found.append(expand.hit(self._counts["count:acb>=3_total"], burdened))
        return found

    def renal(
        self,
        drug: str,
        egfr: float | None,
        crcl: float | None,
        *,
        age: float | None = None,
        weight_kg: float | None = None,
        creatinine: float | None = None,
        conditions: Collection[str] | None = None,
    ) -> list[RenalHit]:
        """The strictest rule that applies (so none or one).

        What is None triggers nothing. Rules for one condition apply if `conditions` has it (apixaban, edoxaban: atrial
        fibrillation only), or is not given.
        """
        for rule in self._renal.get(drug, ()):
            if rule.condition and conditions is not None and rule.condition not in conditions:
                continue
            value = _metric(rule, egfr, crcl, (age, weight_kg, creatinine))
            if value is not None and _COMPARE[rule.operator](value, rule.threshold):
                none = rule.kind in ("contraindicated", "avoid")
                severity = _RENAL_SEVERITY[rule.kind]
                return [RenalHit(rule.id, none, rule.max_daily_mg, rule.text, rule.kind, severity, rule.source)]
        return []

    def has_renal_rule(self, drug: str) -> bool:
        """Whether kidney function matters for it at all."""
        return drug in self._renal

    def dose_cap(
        self,
        drug: str,
        age: float,
        egfr: float | None,
        crcl: float | None,
        conditions: Collection[str] | None = None,
        *,
        weight_kg: float | None = None,
        creatinine: float | None = None,
    ) -> float | None:
        """The highest acceptable daily mg of label, age, kidneys and liver. 0.0: no dose; None: no limit known."""
        row = self.drugs.get(drug)
        if row is None:
            return None
        limits = [row.max_daily_mg]
        if age >= row.older_adult_from_age:
            limits.append(row.older_adult_max_daily_mg)
        patient: dict[str, Any] = {"age": age, "weight_kg": weight_kg, "creatinine": creatinine}
        for hit in self.renal(drug, egfr, crcl, conditions=conditions, **patient):
            limits.append(0.0 if hit.contraindicated else hit.max_daily_mg)
        liver = self._hepatic.get(drug)
        if liver and conditions and not liver.conditions.isdisjoint(conditions):
            limits.append(liver.max_daily_mg)
        return min((limit for limit in limits if limit is not None), default=None)

    def bucket_mg(self, drug: str, bucket: str) -> float | None:
        """Daily mg of LOW, MEDIUM, HIGH; 0.0 of HOLD; None of NA, or if not modelled."""
        if bucket == "HOLD":
            return 0.0
        row = self.drugs.get(drug)
        index = _BUCKETS.get(bucket)
        return None if row is None or row.doses is None or index is None else row.doses[index]

    def taper(self, drug: str) -> TaperRule | None:
        """How it is withdrawn; None: it may be stopped."""
        row = self.drugs.get(drug)
        return self.tapers[row.taper_rule] if row and row.taper_rule else None

    def substitutes(self, drug: str) -> list[Substitution]:
        """What may be given instead, and for which indications."""
        return list(self._substitutes.get(drug, ()))

    def monitoring(self, drug: str) -> list[MonitoringRule]:
        """Labs that it needs."""
        return list(self._monitoring.get(drug, ()))

    def burden(self, drugs: Sequence[str], n_beers_hits: int) -> dict[str, float]:
        """index (0..1), n_drugs, acb_total, cns_active_count, beers_hits. Unknown drugs count as drugs only."""
        acb = sum(self._acb.get(name, 0) for name in drugs)
        active = sum(name in self._cns_active for name in drugs)
        index = (
            0.35 * min(1.0, len(drugs) / 12)
            + 0.25 * min(1.0, acb / 6)
            + 0.20 * min(1.0, active / 4)
            + 0.20 * min(1.0, n_beers_hits / 4)
        )
        return {
            "index": index,
            "n_drugs": len(drugs),
            "acb_total": acb,
            "cns_active_count": active,
            "beers_hits": n_beers_hits,
        }

    def indications(self, drug: str) -> tuple[str, ...]:
        """What it is given for."""
        row = self.drugs.get(drug)
        return row.indications if row else ()

    def drugs_for(self, indication: str) -> tuple[str, ...]:
        """What is given for it."""
        return self._for.get(indication, ())

    def conditions(self) -> tuple[str, ...]:
        """Every condition that a rule or an indication names, sorted."""
        return self._conditions

    def labs(self) -> tuple[str, ...]:
        """Every lab that a monitoring rule names, sorted."""
        return self._labs


def _applies(rule: Criterion, here: frozenset[str], regimen: frozenset[str], age: float) -> bool:
    return (
        age >= rule.min_age
        and (not rule.conditions or not rule.conditions.isdisjoint(here))
        and rule.unless.isdisjoint(here)
        and (not rule.beside or not rule.beside.isdisjoint(regimen))
        and rule.unless_beside.isdisjoint(regimen)
    )


_Patient = tuple[float | None, float | None, float | None]
"""Age, weight in kg, creatinine in mg/dL."""


def _metric(rule: RenalRule, egfr: float | None, crcl: float | None, patient: _Patient) -> float | None:
    if rule.metric == "egfr":
        return egfr
    if rule.metric == "crcl":
        return crcl
    age, weight_kg, creatinine = patient
    # Apixaban: how many of three. What is unknown is not met.
    return (
        (age is not None and age >= 80)
        + (weight_kg is not None and weight_kg <= 60)
        + (creatinine is not None and creatinine >= 1.5)
    )


def read_tables() -> dict[str, Any]:
    """The rows of `tables.json`, unchecked."""
    data = resources.files("polyguard.knowledge").joinpath("tables.json").read_bytes()
    return dict(msgspec.json.decode(data, type=dict[str, Any]))


@cache
def load() -> Knowledge:
    """The checked tables of this package; `invalid_field` if they do not hold together."""
    tables = read_tables()
    if found := faults(tables):
        raise fail(
            "invalid_field", f"knowledge tables: {found[0]} ({len(found)} faults in all)", fields=["tables.json"]
        )
    return Knowledge(tables)
