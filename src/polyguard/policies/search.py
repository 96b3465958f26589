"""Two searches: one over the agents' own picture of the patient, and one, privileged, over the simulator's truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from polyguard.env.types import GATHERING, REVIEWS, SUCCESS, Action, ActionType, Candidate, Observation, Transition
from polyguard.knowledge import SEVERITY_WEIGHT
from polyguard.policies.base import Single, answer, first
from polyguard.policies.picture import Picture, Regimen, total

if TYPE_CHECKING:
    from polyguard.env.engine import Engine

_REVIEW = (ActionType.REQUEST_PHARMACIST_REVIEW, ActionType.REQUEST_SPECIALIST_REVIEW)
_GATHERED = 0.6
"""What a visible gap is worth to close, beside findings that weigh 0.7 or 1."""


def gathers(observation: Observation, item: Candidate) -> bool:
    """Whether a candidate closes a gap that is on view."""
    return item.action_type in GATHERING and any(gap.id in item.rationale_tags for gap in observation.missing)


class BeamSearch(Single):
    """Looks for the best sequence of the listed candidates under its own picture, and does the first. No oracle."""

    name = "beam_search"

    def __init__(self, width: int = 4, depth: int = 2) -> None:
        self._width, self._depth = width, depth

    def choose(self, observation: Observation) -> Action:
        """The beginning of the best sequence."""
        picture = Picture(observation)
        options = [
            item for item in observation.candidates if item.action_type not in REVIEWS and not picture.faults(item)
        ]
        if not options:
            return answer(observation, first(observation, *_REVIEW))
        start = _Path((), picture.regimen, total(picture.now), 0.0)
        beam, best = [start], start
        for _ in range(self._depth):
            grown = [_grow(picture, path, item) for path in beam for item in options if item not in path.items]
            beam = sorted(grown, key=lambda path: path.value)[: self._width]
            if not beam or beam[0].value >= best.value:
                break
            best = beam[0]
        if not best.items:
            return answer(observation, first(observation, ActionType.KEEP_REGIMEN))
        return answer(observation, best.items[0], 0.8)


class _Path(msgspec.Struct, frozen=True):
    items: tuple[Candidate, ...]
    regimen: Regimen
    badness: float
    gathered: float

    @property
    def value(self) -> float:
        return self.badness - self.gathered + 0.01 * len(self.items)


def _grow(picture: Picture, path: _Path, item: Candidate) -> _Path:
    if gathers(picture.observation, item):
        return _Path((*path.items, item), path.regimen, path.badness, path.gathered + _GATHERED)
    regimen = picture.after(item, path.regimen)
    return _Path((*path.items, item), regimen, total(picture.findings(regimen)), path.gathered)


class Expert:
    """Tries out every candidate on copies of the simulation, a few steps deep. Sees the truth; a teacher and an upper bound."""

    name = "expert"

    def __init__(self, width: int = 3, depth: int = 3) -> None:
        self._width, self._depth = width, depth

    def begin(self, n: int) -> None:
        """Nothing to prepare."""

    def act_engines(self, engines: Sequence[Engine]) -> list[Action]:
        """One search for each."""
        return [self.choose(engine) for engine in engines]

    def choose(self, engine: Engine) -> Action:
        """The beginning of the best line of play within the depth; its facts are those that the simulation accepts."""
        beam = [line for item in engine.observation.candidates if (line := _try(engine, None, item))]
        best = max(beam, key=lambda line: line.value)
        for _ in range(self._depth - 1):
            beam = sorted(beam, key=lambda line: -line.value)[: self._width]
            if best.engine.done and best.won:
                break
            grown = [
                line
                for path in beam
                if not path.engine.done
                for item in path.engine.observation.candidates
                if (line := _try(path.engine, path, item))
            ]
            if not grown:
                break
            beam = grown
            best = max([best, *beam], key=lambda line: line.value)
        return best.action


class _Line:
    """A line of play: where it leads, and how it begins."""

    def __init__(self, engine: Engine, action: Action, won: bool, value: float) -> None:
        self.engine, self.action, self.won, self.value = engine, action, won, value


def _try(engine: Engine, path: _Line | None, item: Candidate) -> _Line | None:
    """The line after one more step; None for a choice that is refused."""
    copy = engine.clone()
    result = copy.step(Action(candidate_id=item.candidate_id, confidence=0.9, expected_action_type=item.action_type))
    if not result.verdict.legal:
        return None
    won = result.termination in SUCCESS
    action = path.action if path else _taught(engine.observation, item, result.transition)
    return _Line(copy, action, won, _value(copy, won, result.termination is not None, item))


def _taught(observation: Observation, item: Candidate, transition: Transition) -> Action:
    supporting = transition.supporting_facts & observation.facts()
    less_risk = transition.risk_after < transition.risk_before
    return Action(
        candidate_id=item.candidate_id,
        confidence=0.9 if less_risk else 0.1,
        rationale=item.action_type.value.replace("_", " ").capitalize(),
        cited_facts=tuple(sorted(supporting))[:8],
    )


def _value(engine: Engine, won: bool, over: bool, last: Candidate) -> float:
    """Worth of a state: the return so far, less the danger that lasts; to solve it oneself is worth more than to hand it on."""
    if won:
        return engine.episode_return() + (0.1 if last.action_type in REVIEWS else 0.5)
    open_weight = sum(SEVERITY_WEIGHT[item.severity] for item in engine.true_problems())
    return engine.episode_return() - 0.3 * engine.true_risk() - 0.02 * open_weight - 0.5 * over
