"""What the knowledge tables say, row by row, after expansion. Data only: look-ups are in `polyguard.knowledge.tables`.

Severities are plain words (contraindicated, major, moderate, minor), equal to the members of `polyguard.env.types.Severity`.
"""

from __future__ import annotations

import msgspec

SEVERITY_WEIGHT: dict[str, float] = {"contraindicated": 1.0, "major": 0.7, "moderate": 0.35, "minor": 0.1}
"""How much a severity weighs, in hazards and in the share of problems that are resolved."""


class Drug(msgspec.Struct, frozen=True):
    """One active substance (two of them are fixed combinations that are never taken apart)."""

    id: str
    name: str
    atc: str
    therapeutic_class: str
    groups: frozenset[str]
    doses: tuple[float, float, float] | None
    """Daily mg of LOW, MEDIUM and HIGH; None where dose is not modelled."""
    max_daily_mg: float | None
    older_adult_max_daily_mg: float | None
    older_adult_from_age: float
    acb_score: int
    qt_category: str | None
    flags: frozenset[str]
    """bleed, cns_active, fall, sedate, ...: what it does to a patient."""
    substrate: tuple[str, ...]
    inhibitor: tuple[str, ...]
    inducer: tuple[str, ...]
    taper_rule: str | None
    monitoring: tuple[str, ...]
    """Labs and observations that speak about it."""
    indications: tuple[str, ...]

    @property
    def cns_active(self) -> bool:
        """Whether the Beers rule on three or more CNS-active drugs counts it."""
        return "cns_active" in self.flags


class Interaction(msgspec.Struct, frozen=True):
    """What two drugs do to each other; `a` < `b` alphabetically."""

    rule_id: str
    a: str
    b: str
    severity: str
    mechanism: str
    effect: str
    management: str
    source: str
    """Id of the first named source."""
    cap_drug: str | None = None
    """Where a dose limit is the remedy: the drug,"""
    cap_daily_mg: float | None = None
    """and the dose up to which the pair is acceptable."""

    @property
    def text(self) -> str:
        """A line for an agent."""
        return f"{self.effect} ({self.mechanism}); {self.management.replace('_', ' ')}"


class RenalHit(msgspec.Struct, frozen=True):
    """The strictest renal rule that a patient's kidneys trigger for one drug."""

    rule_id: str
    contraindicated: bool
    """No dose is acceptable (kind contraindicated or avoid): stop or replace it."""
    max_daily_mg: float | None
    """The highest acceptable dose; None when contraindicated or when there is advice only."""
    text: str
    kind: str = "reduce"
    """contraindicated, avoid, reduce or caution (advice only)."""
    severity: str = "major"
    source: str = ""


class BeersHit(msgspec.Struct, frozen=True):
    """A criterion that a regimen meets."""

    id: str
    kind: str
    """pim, caution, drug_disease (a liver rule too) or combination."""
    members: tuple[str, ...]
    severity: str
    text: str
    source: str
    condition: str | None = None
    """The condition of the patient that it is about."""


class TaperRule(msgspec.Struct, frozen=True):
    """How a drug is withdrawn. Percent are of the current dose, except that a last step may stop a LOW dose."""

    id: str
    max_step_pct: float
    """The usual step."""
    interval_days: int
    hard_cap_step_pct: float
    """A bigger step is illegal."""
    min_use_days: int
    """Used for less long, it may simply be stopped."""
    min_total_days: int
    risk: str
    optional: bool = False
    """Advised only; stopping at once is legal."""
    source: str = ""


class Substitution(msgspec.Struct, frozen=True):
    """Something that may be given instead."""

    to: str
    when: str
    caution: str | None
    within_class: bool
    """Both share a group of their class: SUBSTITUTE_WITHIN_CLASS; otherwise RECOMMEND_ALTERNATIVE."""
    indications: tuple[str, ...] = ()
    """For which indications of the old drug it stands in."""
    source: str = ""


class MonitoringRule(msgspec.Struct, frozen=True):
    """A lab that has to be looked at."""

    lab: str
    every_days: int | None
    """None: when there is a reason."""
    alert: str = ""
    source: str = ""


class Product(msgspec.Struct, frozen=True):
    """A fixed combination that hides its components from who does not take it apart."""

    id: str
    components: tuple[str, ...]
    daily_mg: tuple[float, ...]
    """One usual daily dose for each component."""
    atc: str | None = None
