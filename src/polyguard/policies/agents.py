"""The stack of agents, each a small function, each of which can be left out: what an ablation shows to be useless is not here.

graph safety and dosing are lenses of the `Picture`; planner, evidence, critic and explainer read it, in this order. Tried and
dropped, because they added nothing to the return: reconciling doses apart from dosing, a supervisor that decides when to hand a
case on (it is handed on when nothing acceptable is left), and planning two steps ahead (`search.BeamSearch` still does).
Nothing here is learned; `bandit` and language models take the planner's place.
"""

from __future__ import annotations

import msgspec

from polyguard.env.types import REVIEWS, Action, ActionType, Candidate, Observation
from polyguard.policies.base import Single, answer, first
from polyguard.policies.picture import MAJOR, Lenses, Picture
from polyguard.policies.search import gathers

_REVIEW = (ActionType.REQUEST_PHARMACIST_REVIEW, ActionType.REQUEST_SPECIALIST_REVIEW)


class Parts(msgspec.Struct, frozen=True):
    """Which agents take part."""

    graph: bool = True
    dosing: bool = True
    planner: bool = True
    evidence: bool = True
    critic: bool = True
    explainer: bool = True


class AgentStack(Single):
    """The whole pipeline, or what is left of it."""

    def __init__(self, parts: Parts | None = None, name: str = "agent_stack") -> None:
        self.parts, self.name = parts or Parts(), name
        self._lenses = Lenses(graph=self.parts.graph, dosing=self.parts.dosing)

    def choose(self, observation: Observation) -> Action:
        """One pass through the agents."""
        picture = Picture(observation, self._lenses)
        ranked = planner(picture) if self.parts.planner else by_estimate(picture)
        if self.parts.evidence:
            ranked = evidence(picture, ranked)
        if self.parts.critic:
            ranked = critic(picture, ranked)
        chosen = ranked[0] if ranked else first(observation, *_REVIEW)
        if self.parts.explainer:
            return explainer(picture, chosen)
        return Action(candidate_id=chosen.candidate_id)


def planner(picture: Picture) -> list[Candidate]:
    """Candidates that are no reviews, best first."""
    return sorted(_options(picture), key=lambda item: -score(picture, item))


def by_estimate(picture: Picture) -> list[Candidate]:
    """What is left without a planner: the listed estimates."""
    return sorted(_options(picture), key=lambda item: -item.estimated_safety_delta)


def _options(picture: Picture) -> list[Candidate]:
    return [item for item in picture.observation.candidates if item.action_type not in REVIEWS]


def score(picture: Picture, item: Candidate) -> float:
    """What a candidate is worth by the picture: findings that go less those that come, and burden."""
    change = picture.burden(picture.after(item)) - picture.burden(picture.regimen)
    return picture.gain(item) - change


def evidence(picture: Picture, ranked: list[Candidate]) -> list[Candidate]:
    """Closes gaps first, as they may change what is best. What the tables tell of interactions can wait for serious acts."""
    gaps = {gap.id: gap.field for gap in picture.observation.missing}
    wanted = [item for item in ranked if gathers(picture.observation, item)]
    if picture.lenses.graph and any(picture.gain(item) >= MAJOR for item in critic(picture, ranked)):
        wanted = [item for item in wanted if not _of_tables(gaps, item)]
    return wanted + [item for item in ranked if item not in wanted]


def _of_tables(gaps: dict[str, str], item: Candidate) -> bool:
    return all(gaps[tag].startswith("interactions:") for tag in item.rationale_tags if tag in gaps)


def critic(picture: Picture, ranked: list[Candidate]) -> list[Candidate]:
    """Strikes out what would be refused."""
    return [item for item in ranked if not picture.faults(item)]


def explainer(picture: Picture, chosen: Candidate) -> Action:
    """Says why, with the facts that speak for it and an honest confidence."""
    sure = 0.9 if chosen.action_type not in REVIEWS and picture.gain(chosen) > 0 else 0.1
    words = chosen.action_type.value.replace("_", " ").lower()
    return answer(picture.observation, chosen, sure, f"{words} {chosen.target_drug or ''}".strip())
