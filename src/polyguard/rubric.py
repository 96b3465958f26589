"""The step reward as a tree of OpenEnv rubrics, to be looked into: `rubric.named_rubrics()` has the last score of each part.

The numbers are those of `polyguard.env.reward`: leaves read the breakdown of the step, the tree weighs them as the profile does.
"""

from __future__ import annotations

from typing import Any

from openenv.core.rubrics import Rubric, RubricDict, WeightedSum

from polyguard.env import reward


class Component(Rubric):
    """One of the 13 components."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, action: Any, observation: Any) -> float:
        """Its score in this step; the lowest where there was none."""
        return float(observation.metadata.get("reward_breakdown", {}).get(self.name, reward.LOW))


class Channel(Rubric):
    """The plain average of a channel's components."""

    def __init__(self, parts: dict[str, Component]) -> None:
        super().__init__()
        self.components = RubricDict(parts)

    def forward(self, action: Any, observation: Any) -> float:
        """The average."""
        return round(sum(part(action, observation) for part in self.components.values()) / len(self.components), 3)


class StepRubric(Rubric):
    """The total of a step under a profile; a quarter of it if the step was illegal, unreadable or an exploit."""

    def __init__(self, profile: str = "strict") -> None:
        super().__init__()
        weights = reward.weights(profile)
        parts = {name: Component(name) for name in weights}
        self.channels = RubricDict(
            {channel: Channel({name: parts[name] for name in names}) for channel, names in reward.CHANNELS.items()}
        )
        self.weighted = WeightedSum(list(parts.values()), list(weights.values()))

    def forward(self, action: Any, observation: Any) -> float:
        """The total, as `Observation.reward` has it."""
        for channel in self.channels.values():
            channel(action, observation)
        value = self.weighted(action, observation)
        return reward.q(reward.GATE * value if observation.metadata.get("gated", True) else value)
