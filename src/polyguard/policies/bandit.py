"""A contextual bandit over candidates: LinUCB (Li et al. 2010, arXiv:1003.0146, algorithm 1) on features of what is listed.

It learns by playing training scenarios and then stays as it is: a pure function of the observation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from polyguard.env.types import Action, ActionType, Candidate, Observation
from polyguard.policies.base import Single, answer, weight_of
from polyguard.policies.picture import Picture

if TYPE_CHECKING:
    from polyguard.env.engine import Engine
    from polyguard.env.types import StepResult

_TYPES = tuple(ActionType)
Signal = Callable[["StepResult"], float]
"""What the bandit learns from a step."""


def features(picture: Picture, item: Candidate) -> list[float]:
    """What is known of a candidate: its type, what is listed of it, and what the picture says it would do."""
    observation = picture.observation
    refused = float(bool(picture.faults(item)))
    return [
        1.0,
        *(float(item.action_type == kind) for kind in _TYPES),
        item.estimated_safety_delta,
        item.burden_delta,
        item.disease_stability_estimate,
        item.uncertainty_score,
        weight_of(observation, item),
        float(any(gap.id in item.rationale_tags for gap in observation.missing)),
        float(bool(observation.abstention.get("recommended"))),
        refused,
        picture.gain(item) * (1 - refused),
        float(len(picture.creates(item))),
    ]


class LinUCB(Single):
    """One linear model of the reward for all candidates, with an upper confidence bound while it learns."""

    name = "contextual_bandit"

    def __init__(self, alpha: float = 0.5, ridge: float = 1.0) -> None:
        self._alpha, self._ridge = alpha, ridge
        self._a: Any = None
        self._b: Any = None
        self._theta: Any = None

    def fit(self, engines: Sequence[Engine], signal: Signal | None = None) -> LinUCB:
        """Plays each engine, freshly reset, to its end and learns from every step (by default its reward)."""
        import numpy as np

        for engine in engines:
            while not engine.done:
                observation = engine.observation
                rows_cf = self._features(observation)
                if self._a is None:
                    self._a, self._b = self._ridge * np.eye(rows_cf.shape[1]), np.zeros(rows_cf.shape[1])
                inverse = np.linalg.inv(self._a)
                self._theta = inverse @ self._b
                bound = self._alpha * np.sqrt(np.einsum("cf,fg,cg->c", rows_cf, inverse, rows_cf))
                chosen = int((rows_cf @ self._theta + bound).argmax())
                result = engine.step(answer(observation, observation.candidates[chosen]))
                self._a += np.outer(rows_cf[chosen], rows_cf[chosen])
                self._b += (signal(result) if signal else result.reward) * rows_cf[chosen]
        if self._a is not None:
            self._theta = np.linalg.inv(self._a) @ self._b
        return self

    def _features(self, observation: Observation) -> Any:
        import numpy as np

        picture = Picture(observation)
        return np.array([features(picture, item) for item in observation.candidates])

    def values(self, observation: Observation) -> list[float]:
        """The expected reward of each candidate."""
        rows_cf = self._features(observation)
        return [0.0] * len(rows_cf) if self._theta is None else [float(value) for value in rows_cf @ self._theta]

    def choose(self, observation: Observation) -> Action:
        """The candidate of the highest expected reward."""
        values = self.values(observation)
        best = max(range(len(values)), key=values.__getitem__)
        return answer(observation, observation.candidates[best], min(1.0, max(0.0, values[best])))
