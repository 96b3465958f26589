"""The OpenEnv faces of an action, an observation and the state: pydantic, closed, and with nothing in them that is hidden.

They say what `polyguard.env.types` says; the server makes the one out of the other.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, ConfigDict, Field

from polyguard.env import types
from polyguard.env.parse import MAX_FACT_CHARS, MAX_FACTS, MAX_RATIONALE


class PolyGuardAction(Action):
    """The choice of one listed candidate."""

    candidate_id: str = Field(pattern=r"^cand_[0-9]{2}$", description="One of the listed candidates")
    confidence: float = Field(
        default=0.5, ge=0, le=1, allow_inf_nan=False, description="That the choice lowers the risk"
    )
    rationale: str = Field(default="", max_length=MAX_RATIONALE, description="One sentence; its length earns nothing")
    cited_facts: list[Annotated[str, Field(max_length=MAX_FACT_CHARS)]] = Field(
        default_factory=list,
        max_length=MAX_FACTS,
        description="Ids in the observation that speak for it: w1, c1, m1, lab.NAME, drug.NAME",
    )
    expected_action_type: types.ActionType | None = Field(
        default=None, description="If given, it has to be the type of the candidate"
    )

    def answer(self) -> str:
        """The JSON that a model would have written: read by the same parser, with the same checks."""
        chosen = self.model_dump(mode="python", exclude={"metadata"}, exclude_none=True)
        return msgspec.json.encode(chosen).decode()


class Closed(BaseModel):
    """A part of an observation."""

    model_config = ConfigDict(extra="forbid")


class CandidateAction(Closed):
    """One choice of a step. The order means nothing; estimates are noisy; the verifier alone decides what is legal."""

    candidate_id: str
    mode: types.DecisionMode
    action_type: types.ActionType
    target_drug: str | None = None
    replacement_drug: str | None = None
    dose_bucket: types.DoseBucket = types.DoseBucket.NA
    daily_mg: float | None = None
    taper_step_pct: float | None = None
    taper_days: int | None = None
    monitoring: str | None = None
    evidence_id: str | None = None
    estimated_safety_delta: float = 0.0
    burden_delta: float = 0.0
    disease_stability_estimate: float = 0.0
    uncertainty_score: float = 0.0
    rationale_tags: list[str] = Field(default_factory=list)
    required_monitoring: list[str] = Field(default_factory=list)
    legality_precheck: bool | None = None


class SafetyWarning(Closed):
    """A problem that the chart shows."""

    id: str
    kind: types.ProblemKind
    drugs: list[str]
    severity: types.Severity
    text: str
    source: str = ""


class MissingFact(Closed):
    """Something that is not known, and which action tells it."""

    id: str
    field: str
    how_to_get: types.ActionType


class PolyGuardObservation(Observation):
    """All that an agent knows. Empty, with `done`, where no episode has begun."""

    episode_id: str = ""
    task_id: str = ""
    difficulty: types.Difficulty | None = None
    sub_environment: types.SubEnvironment | None = None
    step_index: int = 0
    steps_remaining: int = 0
    patient: dict[str, Any] = Field(default_factory=dict)
    medications: list[dict[str, Any]] = Field(default_factory=list)
    labs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    vitals: dict[str, float] = Field(default_factory=dict)
    warnings: list[SafetyWarning] = Field(default_factory=list)
    burden: dict[str, float] = Field(default_factory=dict)
    conflicts: list[dict[str, str]] = Field(default_factory=list)
    missing: list[MissingFact] = Field(default_factory=list)
    candidates: list[CandidateAction] = Field(default_factory=list)
    history: list[dict[str, Any]] = Field(default_factory=list)
    abstention: dict[str, Any] = Field(default_factory=dict)
    last_result: dict[str, Any] | None = None
    text: str = Field(default="", description="The observation as a prompt")


class PolyGuardState(State):
    """What anybody may know of the episode."""

    task_id: str = ""
    split: str = ""
    max_steps: int = 0
    done: bool = False
    termination_reason: types.Termination | None = None
    cumulative_reward: float = 0.0
