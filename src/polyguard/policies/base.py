"""What a policy is, and what most of them share: answering with a candidate, and the facts that speak for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from polyguard.env.types import Action, ActionType, Candidate, Observation, Severity
from polyguard.knowledge import SEVERITY_WEIGHT

if TYPE_CHECKING:
    from polyguard.env.engine import Engine

WORST = (Severity.CONTRAINDICATED, Severity.MAJOR)
"""Severities that have to be dealt with before an episode counts as resolved."""


@runtime_checkable
class Policy(Protocol):
    """Answers a batch of running episodes. It keeps nothing between steps: all that it may know is in the observation."""

    name: str

    def begin(self, n: int) -> None:
        """`n` new episodes are about to start together."""

    def act(self, observations: Sequence[Observation]) -> list[Action | str]:
        """One answer for each running episode, in order. A str is a model's raw text, which the environment reads."""


@runtime_checkable
class Privileged(Protocol):
    """A policy that looks behind the observation: an upper bound and a teacher, never a competitor."""

    name: str

    def begin(self, n: int) -> None:
        """As in `Policy`."""

    def act_engines(self, engines: Sequence[Engine]) -> list[Action]:
        """One answer for each running episode, in order. The engines are not changed."""


class Single:
    """A policy that decides each episode by itself: give it a `choose`."""

    name = ""

    def begin(self, n: int) -> None:
        """Nothing to prepare."""

    def act(self, observations: Sequence[Observation]) -> list[Action | str]:
        """One choice after the other."""
        return [self.choose(observation) for observation in observations]

    def choose(self, observation: Observation) -> Action:
        """The answer to one observation."""
        raise NotImplementedError


def answer(observation: Observation, candidate: Candidate, confidence: float = 0.5, rationale: str = "") -> Action:
    """The action that picks a candidate and cites what speaks for it."""
    return Action(
        candidate_id=candidate.candidate_id,
        confidence=confidence,
        rationale=rationale,
        cited_facts=facts_for(observation, candidate),
        expected_action_type=candidate.action_type,
    )


def facts_for(observation: Observation, candidate: Candidate) -> tuple[str, ...]:
    """Facts that speak for a candidate: those that it names, or else the drug that it is about. At most eight."""
    known = observation.facts()
    named = [tag for tag in candidate.rationale_tags if tag in known]
    if not named and candidate.target_drug is not None:
        named = [name for name in (f"drug.{candidate.target_drug}",) if name in known]
    return tuple(dict.fromkeys(named))[:8]


def weight_of(observation: Observation, candidate: Candidate) -> float:
    """How bad the warnings that a candidate names are, together."""
    tags = set(candidate.rationale_tags)
    return sum(SEVERITY_WEIGHT[item.severity] for item in observation.warnings if item.id in tags)


def of_type(observation: Observation, *kinds: ActionType) -> list[Candidate]:
    """Candidates of some types, in the order that they are listed."""
    return [item for item in observation.candidates if item.action_type in kinds]


def first(observation: Observation, *kinds: ActionType) -> Candidate:
    """The first candidate of the earliest type that there is one of; failing all, the first that is listed."""
    for kind in kinds:
        if found := of_type(observation, kind):
            return found[0]
    return observation.candidates[0]
