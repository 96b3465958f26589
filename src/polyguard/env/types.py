"""What the parts of the environment say to each other. Everything here may be shown to an agent, except `Patient` and `Hidden`.

msgspec Structs, because an episode makes thousands a second; `polyguard.models` has the OpenEnv (pydantic) faces of `Action`,
`Observation` and the state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Difficulty(StrEnum):
    """How much is hidden, and how much is wrong."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


class SubEnvironment(StrEnum):
    """What kind of case it is."""

    DDI = "DDI"
    REGIMEN_RISK = "REGIMEN_RISK"
    BANDIT_MINING = "BANDIT_MINING"
    PRECISION_DOSING = "PRECISION_DOSING"
    DEPRESCRIBING = "DEPRESCRIBING"
    WEB_SEARCH_MISSING_DATA = "WEB_SEARCH_MISSING_DATA"
    ALTERNATIVE_SUGGESTION = "ALTERNATIVE_SUGGESTION"
    NEW_DRUG_DECOMPOSITION = "NEW_DRUG_DECOMPOSITION"


class DecisionMode(StrEnum):
    """What a candidate is about."""

    REGIMEN_OPT = "REGIMEN_OPT"
    DOSE_OPT = "DOSE_OPT"
    REVIEW = "REVIEW"


class DoseBucket(StrEnum):
    """A dose without its number."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    HOLD = "HOLD"
    NA = "NA"


class ActionType(StrEnum):
    """What can be done in a step."""

    KEEP_REGIMEN = "KEEP_REGIMEN"
    STOP_DRUG = "STOP_DRUG"
    SUBSTITUTE_WITHIN_CLASS = "SUBSTITUTE_WITHIN_CLASS"
    RECOMMEND_ALTERNATIVE = "RECOMMEND_ALTERNATIVE"
    ADJUST_DOSE_BUCKET = "ADJUST_DOSE_BUCKET"
    INITIATE_TAPER = "INITIATE_TAPER"
    CONTINUE_TAPER = "CONTINUE_TAPER"
    HOLD_DOSE = "HOLD_DOSE"
    ORDER_MONITORING = "ORDER_MONITORING"
    FETCH_EXTERNAL_EVIDENCE = "FETCH_EXTERNAL_EVIDENCE"
    DECOMPOSE_NEW_DRUG = "DECOMPOSE_NEW_DRUG"
    REQUEST_SPECIALIST_REVIEW = "REQUEST_SPECIALIST_REVIEW"
    REQUEST_PHARMACIST_REVIEW = "REQUEST_PHARMACIST_REVIEW"


REVIEWS = frozenset({ActionType.REQUEST_SPECIALIST_REVIEW, ActionType.REQUEST_PHARMACIST_REVIEW})
GATHERING = frozenset({ActionType.ORDER_MONITORING, ActionType.FETCH_EXTERNAL_EVIDENCE, ActionType.DECOMPOSE_NEW_DRUG})
"""Actions that reveal and change nothing."""


class ProblemKind(StrEnum):
    """What may be wrong with a regimen."""

    DDI = "ddi"
    DUPLICATE = "duplicate"
    RENAL_DOSE = "renal_dose"
    PIM = "pim"
    DRUG_DISEASE = "drug_disease"
    TAPER_NEEDED = "taper_needed"
    MISSING_MONITORING = "missing_monitoring"
    MISSING_DATA = "missing_data"
    UNKNOWN_DRUG = "unknown_drug"
    OVERDOSE = "overdose"
    UNTREATED_INDICATION = "untreated_indication"


class Severity(StrEnum):
    """How bad; `WEIGHTS` of them in `polyguard.knowledge`."""

    CONTRAINDICATED = "contraindicated"
    MAJOR = "major"
    MODERATE = "moderate"
    MINOR = "minor"


class Termination(StrEnum):
    """Why an episode is over."""

    SAFE_RESOLUTION = "safe_resolution"
    JUSTIFIED_REVIEW = "justified_review"
    UNJUSTIFIED_REVIEW = "unjustified_review"
    DESTABILISED = "destabilised"
    EXPLOIT_DETECTION = "exploit_detection"
    REPEATED_INVALID = "repeated_invalid"
    SAFETY_VETO = "safety_veto"
    STEP_BUDGET_EXHAUSTED = "step_budget_exhausted"
    STEP_TIMEOUT = "step_timeout"
    WALL_CLOCK_TIMEOUT = "wall_clock_timeout"


TRUNCATED = frozenset({Termination.STEP_BUDGET_EXHAUSTED, Termination.STEP_TIMEOUT, Termination.WALL_CLOCK_TIMEOUT})
SUCCESS = frozenset({Termination.SAFE_RESOLUTION, Termination.JUSTIFIED_REVIEW})


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong. Problems of one kind with the same members are the same problem."""

    id: str
    """`<kind>:<rule or members>`, stable within an episode."""
    kind: ProblemKind
    members: tuple[str, ...]
    """Drug ids; for missing data the field, for an untreated indication the indication."""
    severity: Severity
    rule_id: str = ""
    visible: bool = True
    """Whether what the agent sees supports it."""


class Candidate(msgspec.Struct, frozen=True):
    """One choice of a step."""

    candidate_id: str
    """`cand_01` ... `cand_14`; the order is shuffled every step and means nothing."""
    mode: DecisionMode
    action_type: ActionType
    target_drug: str | None = None
    replacement_drug: str | None = None
    dose_bucket: DoseBucket = DoseBucket.NA
    daily_mg: float | None = None
    taper_step_pct: float | None = None
    taper_days: int | None = None
    monitoring: str | None = None
    """The lab of ORDER_MONITORING."""
    evidence_id: str | None = None
    """The document of FETCH_EXTERNAL_EVIDENCE."""
    estimated_safety_delta: float = 0.0
    """Noisy, and never the true term of the reward."""
    burden_delta: float = 0.0
    disease_stability_estimate: float = 0.0
    uncertainty_score: float = 0.0
    rationale_tags: tuple[str, ...] = ()
    """What it is about: ids of visible warnings, conflicts or missing fields (`w1`, `c1`, `m1`) and names of classes."""
    required_monitoring: tuple[str, ...] = ()
    legality_precheck: bool | None = None
    """None in hard cases, and never to be trusted: the verifier decides."""


class Action(msgspec.Struct, frozen=True):
    """What an agent answers."""

    candidate_id: str
    confidence: float = 0.5
    rationale: str = ""
    cited_facts: tuple[str, ...] = ()
    """Ids of facts in the observation that speak for the choice."""
    expected_action_type: ActionType | None = None
    """If given, it has to be the candidate's."""


class Warning(msgspec.Struct, frozen=True):
    """A problem as the agent is told of it."""

    id: str
    """`w1`, `w2`, ..."""
    kind: ProblemKind
    drugs: tuple[str, ...]
    severity: Severity
    text: str
    source: str = ""


class Missing(msgspec.Struct, frozen=True):
    """Something that is not known, and which action tells it."""

    id: str
    """`m1`, ..."""
    field: str
    how_to_get: ActionType


class Medication(msgspec.Struct):
    """A drug that the patient takes."""

    drug: str
    """Id in the tables, or the name of an unknown product."""
    daily_mg: float | None = None
    """None: not modelled, or (shown to the agent in hard cases) not known."""
    dose_bucket: DoseBucket = DoseBucket.MEDIUM
    indication: str | None = None
    duration_days: int = 0
    prescriber: str = ""
    on_hold: bool = False


class Observation(msgspec.Struct):
    """All that an agent knows."""

    episode_id: str
    task_id: str
    difficulty: Difficulty
    sub_environment: SubEnvironment
    step_index: int
    steps_remaining: int
    patient: dict[str, Any]
    """age, sex, weight_kg, frailty, egfr?, crcl?, comorbidities."""
    medications: list[dict[str, Any]]
    """drug, class, daily_mg?, dose_bucket, indication?, duration_days?, needs_taper."""
    labs: dict[str, dict[str, Any]]
    """name -> value?, age_days, flag."""
    vitals: dict[str, float]
    warnings: list[Warning]
    burden: dict[str, float]
    """index, n_drugs, acb_total, cns_active_count, beers_hits."""
    conflicts: list[dict[str, str]]
    """id (`c1`, ...) and text: what prescribers disagree about. Foreign text."""
    missing: list[Missing]
    candidates: list[Candidate]
    history: list[dict[str, Any]]
    """step, candidate_id, action_type, target, outcome."""
    abstention: dict[str, Any]
    """recommended, reasons."""
    last_result: dict[str, Any] | None = None
    """legal, failure_reasons, transition_delta; None before the first step."""

    def facts(self) -> frozenset[str]:
        """Ids that an action may cite: warnings, conflicts, missing fields, `lab.<name>`, `drug.<id>`."""
        ids = {item.id for item in self.warnings} | {item.id for item in self.missing}
        ids |= {item["id"] for item in self.conflicts} | {f"lab.{name}" for name in self.labs}
        return frozenset(ids | {f"drug.{row['drug']}" for row in self.medications})


class Verdict(msgspec.Struct, frozen=True):
    """What the legality verifier says of a candidate before anything changes."""

    legal: bool
    reasons: tuple[str, ...] = ()
    dominated: bool = False
    """Legal, but it brings back a problem that was resolved."""
    contraindicated: bool = False
    """Illegal because it keeps or makes a contraindication; two of these end an episode."""


class Transition(msgspec.Struct):
    """What a step did to the simulated patient: the true numbers, for rewards and reports, never for agents."""

    action_type: ActionType | None
    """None: the answer could not be read, or named no candidate."""
    target: str | None = None
    risk_before: float = 0.0
    risk_after: float = 0.0
    burden_before: float = 0.0
    burden_after: float = 0.0
    severity_after: float = 0.0
    """Mean severity of the conditions, 0..1."""
    newly_uncovered: int = 0
    """Indications that lost their drug."""
    dose_errors: tuple[float, ...] = ()
    """|log(dose / target)| for each drug whose dose matters here."""
    preconditions: tuple[int, int] = (0, 0)
    """(met, required) before an act that depends on data."""
    supporting_facts: frozenset[str] = frozenset()
    """Ids of the observation that speak for the chosen candidate."""
    resolved: tuple[str, ...] = ()
    new_major: tuple[str, ...] = ()
    revealed: tuple[str, ...] = ()
    adverse_event: bool = False
    review_justified: bool | None = None
    """Of a review; None for other actions."""
    review_warranted: bool = False
    """Whether a review would have been justified."""


class StepResult(msgspec.Struct):
    """Everything about one step."""

    observation: Observation
    reward: float
    """The step's total under the profile, quantised to 0.001..0.999."""
    breakdown: dict[str, float]
    """The 13 components."""
    channels: dict[str, float]
    """The 4 channels."""
    done: bool
    termination: Termination | None
    verdict: Verdict
    transition: Transition
    anti_cheat: list[str]
    """`<level>:<check>`, level soft or hard."""
    failure_reasons: list[str]
    checks: dict[str, bool]
    episode_return: float | None = None
    """R_ep; None until the episode is over."""
