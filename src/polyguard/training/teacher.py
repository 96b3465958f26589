"""Shows how it is done: plays training scenarios with good choices and keeps the states with their answers.

The teacher knows what agents do not (which listed choices are good); what it leaves behind is an observation and an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from polyguard.env.engine import Engine
from polyguard.env.problems import SERIOUS
from polyguard.env.scenarios import Scenario
from polyguard.env.text import messages
from polyguard.env.types import REVIEWS, SUCCESS, Action, Candidate

MISTAKES = 0.15
"""Share of steps at which the teacher first does something else, to show what follows a mistake."""
SURE, UNSURE = 0.9, 0.4


class State(msgspec.Struct):
    """A situation, how to come to it, and the teacher's answer."""

    scenario: Scenario
    history: list[str]
    """Ids of the candidates that lead here."""
    messages: list[dict[str, Any]]
    answer: str


def choose(engine: Engine) -> Candidate:
    """A good choice, what is missing first, then the worst warning; a review where none is good."""
    good, seen = engine.good_choices(), engine.observation
    for tag in [m.id for m in seen.missing] + [w.id for w in seen.warnings if w.severity in SERIOUS]:
        for candidate in seen.candidates:
            if candidate.candidate_id in good and tag in candidate.rationale_tags:
                return candidate
    rest = [c for c in seen.candidates if c.candidate_id in good]
    return rest[0] if rest else next(c for c in seen.candidates if c.action_type in REVIEWS)


def answer_of(candidate: Candidate) -> str:
    """The one JSON object that is asked for."""
    sure = SURE if candidate.rationale_tags else UNSURE
    body = {"candidate_id": candidate.candidate_id, "confidence": sure, "cited_facts": list(candidate.rationale_tags)}
    return json.dumps(body, separators=(",", ":"))


def lesson(made: Scenario, rng: np.random.Generator) -> Iterator[State]:
    """The states of one episode; none if it does not end well."""
    engine, states, history = Engine(), list[State](), list[str]()
    engine.begin(made)
    while not engine.done:
        if rng.random() < MISTAKES:
            other = engine.observation.candidates[int(rng.integers(len(engine.observation.candidates)))]
            if other.action_type not in REVIEWS:
                history.append(other.candidate_id)
                engine.step(Action(other.candidate_id))
                continue
        best = choose(engine)
        states.append(State(made, list(history), messages(engine.observation), answer_of(best)))
        history.append(best.candidate_id)
        engine.step(Action(best.candidate_id, SURE, "", best.rationale_tags))
    if engine.termination in SUCCESS:
        yield from states


def at(task_id: str, split: str, index: int, history: list[str]) -> Engine:
    """An engine in the situation that a history leads to."""
    engine = Engine()
    engine.reset(task_id, split=split, index=index)
    for name in history:
        engine.step(Action(name))
    return engine
