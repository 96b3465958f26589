"""The form of `tables.json`: which columns each table has and of what type. Read strictly; an unknown column is a fault."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Names = list[str]
Sources = Annotated[list[str], Meta(min_length=1)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Severity = Literal["contraindicated", "major", "moderate", "minor"]
Percent = Annotated[float, Meta(gt=0, le=100)]
Days = Annotated[int, Meta(gt=0)]
Identifier = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")]
Atc = Annotated[str, Meta(pattern=r"^[A-Z]\d{2}[A-Z]{2}\d{2}$")]
"""A code of level 5."""


class _Row(Struct, forbid_unknown_fields=True):
    """A row has all its columns and no other."""


class DosesRow(_Row):
    """Usual daily mg."""

    low: Positive
    medium: Positive
    high: Positive


class CypRow(_Row):
    """Enzymes and transporters."""

    substrate: Names
    inhibitor: Names
    inducer: Names


class DrugRow(_Row):
    """`drugs`"""

    id: Identifier
    name: str
    atc: Atc
    therapeutic_class: str
    groups: Names
    typical_daily_mg: DosesRow | None
    max_daily_mg: Positive | None
    older_adult_max_daily_mg: Positive | None
    older_adult_from_age: Positive
    acb_score: Annotated[int, Meta(ge=0, le=3)]
    qt_category: Literal["known", "possible", "conditional"] | None
    flags: Names
    cyp: CypRow
    taper_rule: str | None
    monitoring: Names
    indications: Annotated[list[str], Meta(min_length=1)]


class ProductRow(_Row):
    """`products`"""

    id: Identifier
    components: Annotated[list[str], Meta(min_length=2)]
    daily_mg: list[Positive]
    atc: Atc | None
    sources: Sources


class CapRow(_Row):
    """The dose of one of two drugs up to which the pair is acceptable."""

    drug: str
    max_daily_mg: Positive


class InteractionRow(_Row):
    """`interactions`"""

    id: str
    a: str
    b: str
    severity: Severity
    mechanism: str
    effect: str
    management: str
    sources: Sources
    note: str | None
    cap: CapRow | None = None


class DuplicateRow(_Row):
    """`duplicate_therapy`"""

    group: str
    max_count: Count
    note: str


class BeersRow(_Row):
    """`beers`"""

    id: str
    kind: Literal["pim", "caution", "drug_disease", "combination"]
    target: str
    recommendation: str
    rationale: str
    exception: str | None
    source: str
    conditions: Names
    unless: Names
    with_: Names = msgspec.field(name="with")
    unless_with: Names
    except_: Names = msgspec.field(name="except")
    min_days: Count
    min_age: Count
    severity: Severity


class StoppRow(_Row):
    """`stopp_start`"""

    id: str
    trigger: str
    rule: str
    action: str
    source: str


class RenalRow(_Row):
    """`renal_rules`"""

    id: str
    target: str
    metric: Literal["egfr", "crcl", "criteria"]
    operator: Literal["<", "<=", ">", ">="]
    threshold_ml_min: Positive
    action: str
    max_daily_mg: Positive | None
    sources: Sources
    kind: Literal["contraindicated", "avoid", "reduce", "caution"]
    condition: str | None


class HepaticRow(_Row):
    """`hepatic_rules`"""

    id: str
    target: str
    rule: str
    max_daily_mg: Positive | None
    sources: Sources
    kind: Literal["contraindicated", "avoid", "reduce"]
    conditions: Annotated[list[str], Meta(min_length=1)]


class TaperRow(_Row):
    """`taper_rules`"""

    max_step_pct: Percent
    interval_days: Days
    hard_cap_step_pct: Percent
    min_use_days_for_taper: Days
    min_total_days: Days
    risk: str
    sources: Sources
    note: str | None = None
    optional: bool = False


class SubstitutionRow(_Row):
    """`substitutions`"""

    from_: str = msgspec.field(name="from")
    to: str
    for_: Annotated[list[str], Meta(min_length=1)] = msgspec.field(name="for")
    when: str
    caution: str | None
    sources: Sources


class MonitoringRow(_Row):
    """`monitoring_rules`"""

    target: str
    lab: Identifier
    every_days: Days | None
    alert: str
    sources: Sources


class SourceRow(_Row):
    """`sources`"""

    id: str
    title: str
    reference: str
    kind: str


class BurdenRow(_Row):
    """`burden_index`"""

    description: str
    formula: str


class Tables(_Row):
    """The whole file."""

    schema_version: Literal["1.1"]
    title: str
    disclaimer: Annotated[str, Meta(min_length=1)]
    review_status: str
    encoding: dict[str, str | dict[str, Share]]
    sources: list[SourceRow]
    groups: dict[str, Names]
    class_groups: Names
    drugs: list[DrugRow]
    products: list[ProductRow]
    interactions: list[InteractionRow]
    duplicate_therapy: list[DuplicateRow]
    beers: list[BeersRow]
    stopp_start_note: str
    stopp_start: list[StoppRow]
    renal_rules: list[RenalRow]
    hepatic_rules: list[HepaticRow]
    taper_rules: dict[str, TaperRow]
    substitutions: list[SubstitutionRow]
    monitoring_rules: list[MonitoringRow]
    burden_index: BurdenRow
