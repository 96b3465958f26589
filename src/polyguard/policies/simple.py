"""Policies without a thought: what every other has to beat. `keep`, `review`, chance, position, and the listed estimates."""

from __future__ import annotations

from collections.abc import Sequence

from polyguard.env.types import GATHERING, Action, ActionType, Observation, ProblemKind
from polyguard.knowledge import SEVERITY_WEIGHT
from polyguard.policies.base import Single, answer, first
from polyguard.policies.picture import Picture

_REVIEW = (ActionType.REQUEST_PHARMACIST_REVIEW, ActionType.REQUEST_SPECIALIST_REVIEW)


class NoChange(Single):
    """Keeps the regimen, always."""

    name = "no_change"

    def choose(self, observation: Observation) -> Action:
        """Keep."""
        return answer(observation, first(observation, ActionType.KEEP_REGIMEN))


class ReviewOnly(Single):
    """Asks somebody else, at once."""

    name = "review_only"

    def choose(self, observation: Observation) -> Action:
        """Review."""
        return answer(observation, first(observation, *_REVIEW))


class RandomLegal:
    """Any candidate that is legal by the tables, with equal chances; drawn per episode, so neighbours do not matter."""

    name = "random_legal"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def begin(self, n: int) -> None:
        """Nothing to prepare."""

    def act(self, observations: Sequence[Observation]) -> list[Action | str]:
        """Draws from a generator of this seed, episode and step."""
        from numpy.random import PCG64, Generator

        from bashgym.core.canonical import digest_bytes

        answers: list[Action | str] = []
        for item in observations:
            key = int(digest_bytes(f"{self._seed}:{item.episode_id}:{item.step_index}".encode())[:16], 16)
            picture = Picture(item)
            choices = [option for option in item.candidates if not picture.faults(option)] or item.candidates
            answers.append(answer(item, choices[int(Generator(PCG64(key)).integers(len(choices)))]))
        return answers


class PositionOnly(Single):
    """Takes a fixed place in the list. If it did well, the order would give the answer away."""

    name = "position_only"

    def __init__(self, place: int = 0) -> None:
        self._place = place

    def choose(self, observation: Observation) -> Action:
        """The candidate at that place."""
        return answer(observation, observation.candidates[min(self._place, len(observation.candidates) - 1)])


class GreedyEstimate(Single):
    """Takes the largest listed estimate of safety. If it did well, the estimates would give the answer away."""

    name = "greedy_estimate"

    def choose(self, observation: Observation) -> Action:
        """Argmax of the estimate; among equals the first."""
        return answer(observation, max(observation.candidates, key=lambda item: item.estimated_safety_delta))


class RulesOnly(Single):
    """A checklist over what is visibly wrong, the worst first: for each kind of problem one order of remedies.

    It obeys the hard rules of the tables, gives nothing new that they warn of, and weighs nothing: remedies are not compared.
    """

    name = "rules_only"

    def choose(self, observation: Observation) -> Action:
        """The first remedy for the worst thing that has one."""
        picture = Picture(observation)
        options = [item for item in observation.candidates if not (picture.faults(item) or picture.creates(item))]
        for gap in observation.missing:
            if found := [item for item in options if gap.id in item.rationale_tags and item.action_type in GATHERING]:
                return answer(observation, found[0], 0.2)
        for warning in sorted(observation.warnings, key=lambda item: -SEVERITY_WEIGHT[item.severity]):
            about = [item for item in options if warning.id in item.rationale_tags]
            for kind in _REMEDIES.get(warning.kind, _ANY):
                if found := [item for item in about if item.action_type == kind]:
                    return answer(observation, found[0], 0.7)
        return answer(observation, first(observation, ActionType.KEEP_REGIMEN))


_SWAPS = (ActionType.SUBSTITUTE_WITHIN_CLASS, ActionType.RECOMMEND_ALTERNATIVE)
_ANY = (*_SWAPS, ActionType.INITIATE_TAPER, ActionType.STOP_DRUG)
_DOSES = (ActionType.ADJUST_DOSE_BUCKET, *_SWAPS, ActionType.STOP_DRUG)
_REMEDIES: dict[ProblemKind, tuple[ActionType, ...]] = {
    ProblemKind.DUPLICATE: (ActionType.STOP_DRUG, *_SWAPS),
    ProblemKind.PIM: (*_SWAPS, ActionType.STOP_DRUG, ActionType.INITIATE_TAPER),
    ProblemKind.TAPER_NEEDED: (ActionType.INITIATE_TAPER, *_SWAPS),
    ProblemKind.RENAL_DOSE: _DOSES,
    ProblemKind.OVERDOSE: _DOSES,
    ProblemKind.MISSING_MONITORING: (ActionType.ORDER_MONITORING,),
}
