"""From the rows of `tables.json` to the rows of `polyguard.knowledge.rows`: targets become drugs, once, at load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from polyguard.knowledge.rows import (
    SEVERITY_WEIGHT,
    BeersHit,
    Drug,
    Interaction,
    MonitoringRule,
    Product,
    Substitution,
    TaperRule,
)


class Criterion(msgspec.Struct, frozen=True):
    """An explicit criterion for one drug, with everything that decides whether it applies."""

    conditions: frozenset[str]
    """Any of them; none listed: always."""
    unless: frozenset[str]
    """None of them."""
    beside: frozenset[str]
    """Any of these drugs is taken too; none listed: always."""
    unless_beside: frozenset[str]
    min_days: int
    min_age: float
    plain: BeersHit
    """The hit, made once."""
    because: dict[str, BeersHit]
    """The hit for each of `conditions`."""


class RenalRule(msgspec.Struct, frozen=True):
    """One threshold for one drug."""

    id: str
    metric: str
    """egfr, crcl, or criteria (two of age, weight, creatinine)."""
    operator: str
    threshold: float
    kind: str
    max_daily_mg: float | None
    text: str
    condition: str | None
    """For this condition only."""
    source: str


class HepaticRule(msgspec.Struct, frozen=True):
    """A limit of one drug under some conditions; 0.0 mg: no dose."""

    conditions: frozenset[str]
    max_daily_mg: float


Rows = Sequence[Mapping[str, Any]]


def drug(row: Mapping[str, Any]) -> Drug:
    """One row of `drugs`."""
    doses, cyp = row["typical_daily_mg"], row["cyp"]
    return Drug(
        id=row["id"],
        name=row["name"],
        atc=row["atc"],
        therapeutic_class=row["therapeutic_class"],
        groups=frozenset(row["groups"]),
        doses=None if doses is None else (float(doses["low"]), float(doses["medium"]), float(doses["high"])),
        max_daily_mg=row["max_daily_mg"],
        older_adult_max_daily_mg=row["older_adult_max_daily_mg"],
        older_adult_from_age=row["older_adult_from_age"],
        acb_score=row["acb_score"],
        qt_category=row["qt_category"],
        flags=frozenset(row["flags"]),
        substrate=tuple(cyp["substrate"]),
        inhibitor=tuple(cyp["inhibitor"]),
        inducer=tuple(cyp["inducer"]),
        taper_rule=row["taper_rule"],
        monitoring=tuple(row["monitoring"]),
        indications=tuple(row["indications"]),
    )


class Targets:
    """Which drugs a target of a rule names."""

    def __init__(self, drugs: Mapping[str, Drug], groups: Mapping[str, frozenset[str]]) -> None:
        self.drugs, self.groups = drugs, groups

    def of(self, target: str) -> tuple[str, ...]:
        """Drugs in order; `count:` targets name none."""
        kind, _, name = target.partition(":")
        if not name:
            return (target,)
        if kind == "group":
            return tuple(sorted(self.groups[name]))
        if kind == "flag":
            return tuple(key for key, item in self.drugs.items() if name in item.flags)
        return ()

    def union(self, targets: Iterable[str]) -> frozenset[str]:
        """All that any of them names."""
        return frozenset(member for target in targets for member in self.of(target))


def interactions(rows: Rows, targets: Targets) -> dict[frozenset[str], Interaction]:
    """Every pair that a rule covers. The highest severity wins, among equals the first rule."""
    found: dict[frozenset[str], Interaction] = {}
    for row in rows:
        cap = row.get("cap") or {}
        for left in targets.of(row["a"]):
            for right in targets.of(row["b"]):
                pair = frozenset((left, right))
                known = found.get(pair)
                weight = SEVERITY_WEIGHT[row["severity"]]
                if len(pair) == 1 or (known and SEVERITY_WEIGHT[known.severity] >= weight):
                    continue
                a, b = sorted(pair)
                found[pair] = Interaction(
                    rule_id=row["id"],
                    a=a,
                    b=b,
                    severity=row["severity"],
                    mechanism=row["mechanism"],
                    effect=row["effect"],
                    management=row["management"],
                    source=row["sources"][0],
                    cap_drug=cap.get("drug"),
                    cap_daily_mg=cap.get("max_daily_mg"),
                )
    return found


def criteria(rows: Rows, hepatic: Rows, targets: Targets) -> dict[str, tuple[Criterion, ...]]:
    """drug -> explicit criteria on it: Beers rows, and the hepatic rules that allow no dose."""
    found: dict[str, list[Criterion]] = {}
    for row in rows:
        excepted = targets.union(row["except"])
        for member in targets.of(row["target"]):
            if member not in excepted:
                found.setdefault(member, []).append(_criterion(row, member, targets))
    for row in hepatic:
        if row["kind"] != "reduce":
            found.setdefault(row["target"], []).append(_criterion(_from_liver(row), row["target"], targets))
    return {key: tuple(value) for key, value in found.items()}


def _criterion(row: Mapping[str, Any], member: str, targets: Targets) -> Criterion:
    plain = hit(row, (member,))
    return Criterion(
        conditions=frozenset(row["conditions"]),
        unless=frozenset(row["unless"]),
        beside=targets.union(row["with"]),
        unless_beside=targets.union(row["unless_with"]),
        min_days=row["min_days"],
        min_age=row["min_age"],
        plain=plain,
        because={name: msgspec.structs.replace(plain, condition=name) for name in row["conditions"]},
    )


def hit(row: Mapping[str, Any], members: tuple[str, ...]) -> BeersHit:
    """The finding that a row of `beers` makes about some drugs."""
    text = f"{row['recommendation'].replace('_', ' ')}: {row['rationale']}"
    return BeersHit(row["id"], row["kind"], members, row["severity"], text, row["source"])


def _from_liver(row: Mapping[str, Any]) -> dict[str, Any]:
    """A liver rule that allows no dose, as a row of `beers`."""
    return {
        "id": row["id"],
        "kind": "drug_disease",
        "severity": "contraindicated" if row["kind"] == "contraindicated" else "major",
        "recommendation": "avoid",
        "rationale": row["rule"],
        "source": row["sources"][0],
        "conditions": row["conditions"],
        "unless": (),
        "with": (),
        "unless_with": (),
        "min_days": 0,
        "min_age": 0,
    }


def renal_rules(rows: Rows, targets: Targets) -> dict[str, tuple[RenalRule, ...]]:
    """drug -> its thresholds, strictest first: no dose, then the lowest dose, then advice."""
    found: dict[str, list[RenalRule]] = {}
    for row in rows:
        text = f"{row['metric']} {row['operator']} {row['threshold_ml_min']:g}: {row['action'].replace('_', ' ')}"
        rule = RenalRule(
            id=row["id"],
            metric=row["metric"],
            operator=row["operator"],
            threshold=row["threshold_ml_min"],
            kind=row["kind"],
            max_daily_mg=row["max_daily_mg"],
            text=text + (f", at most {row['max_daily_mg']:g} mg a day" if row["max_daily_mg"] else ""),
            condition=row["condition"],
            source=row["sources"][0],
        )
        for member in targets.of(row["target"]):
            found.setdefault(member, []).append(rule)
    rank = {"contraindicated": 0, "avoid": 1, "reduce": 2, "caution": 3}
    return {
        key: tuple(sorted(value, key=lambda rule: (rank[rule.kind], rule.max_daily_mg or 0.0)))
        for key, value in found.items()
    }


def hepatic_rules(rows: Rows) -> dict[str, HepaticRule]:
    """drug -> what its liver rule leaves."""
    return {row["target"]: HepaticRule(frozenset(row["conditions"]), float(row["max_daily_mg"] or 0.0)) for row in rows}


def taper_rules(table: Mapping[str, Mapping[str, Any]]) -> dict[str, TaperRule]:
    """Name of the rule -> rule."""
    return {
        name: TaperRule(
            id=name,
            max_step_pct=row["max_step_pct"],
            interval_days=row["interval_days"],
            hard_cap_step_pct=row["hard_cap_step_pct"],
            min_use_days=row["min_use_days_for_taper"],
            min_total_days=row["min_total_days"],
            risk=row["risk"],
            optional=bool(row.get("optional", False)),
            source=row["sources"][0],
        )
        for name, row in table.items()
    }


def substitutions(rows: Rows, class_groups: frozenset[str], targets: Targets) -> dict[str, tuple[Substitution, ...]]:
    """drug -> what may stand in for it, where the drug is given for an indication of the row."""
    found: dict[str, list[Substitution]] = {}
    for row in rows:
        new = targets.drugs[row["to"]]
        for member in targets.of(row["from"]):
            old = targets.drugs[member]
            covered = tuple(name for name in row["for"] if name in old.indications)
            if covered and member != new.id:
                shared = bool(old.groups & new.groups & class_groups)
                item = Substitution(new.id, row["when"], row["caution"], shared, covered, row["sources"][0])
                found.setdefault(member, []).append(item)
    return {key: tuple(value) for key, value in found.items()}


def monitoring_rules(rows: Rows, targets: Targets) -> dict[str, tuple[MonitoringRule, ...]]:
    """drug -> labs."""
    found: dict[str, list[MonitoringRule]] = {}
    for row in rows:
        for member in targets.of(row["target"]):
            rule = MonitoringRule(row["lab"], row["every_days"], row["alert"], row["sources"][0])
            found.setdefault(member, []).append(rule)
    return {key: tuple(value) for key, value in found.items()}


def products(rows: Rows) -> dict[str, Product]:
    """Id -> fixed combination."""
    return {
        row["id"]: Product(row["id"], tuple(row["components"]), tuple(float(mg) for mg in row["daily_mg"]), row["atc"])
        for row in rows
    }
