"""Policies made of others: a bandit that shortens the list for a model, and a critic that watches what a model chooses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bashgym.core.errors import fail
from polyguard.env.parse import parse_action
from polyguard.env.types import REVIEWS, Action, Observation
from polyguard.policies.agents import AgentStack, critic
from polyguard.policies.bandit import LinUCB
from polyguard.policies.base import Policy
from polyguard.policies.picture import Picture


class Shortlist:
    """`inner` sees only the `k` candidates that a bandit likes best; their order stays as it was."""

    def __init__(self, inner: Policy, bandit: LinUCB, k: int = 4, name: str = "llm+bandit") -> None:
        self._inner, self._bandit, self._k, self.name = inner, bandit, k, name
        if k < 1:
            raise fail("invalid_field", "a shortlist has at least one candidate", fields=["k"])

    def begin(self, n: int) -> None:
        """As `inner`."""
        self._inner.begin(n)

    def act(self, observations: Sequence[Observation]) -> list[Action | str]:
        """What `inner` answers to the shorter lists."""
        return self._inner.act([self._shorter(item) for item in observations])

    def _shorter(self, observation: Observation) -> Observation:
        values = self._bandit.values(observation)
        best = sorted(range(len(values)), key=lambda place: -values[place])[: self._k]
        return msgspec.structs.replace(
            observation, candidates=[observation.candidates[place] for place in sorted(best)]
        )


class Watched:
    """`inner` decides, unless its choice would be refused by the tables, or cannot be read: then the agents decide."""

    def __init__(self, inner: Policy, agents: AgentStack | None = None, name: str = "llm+critic") -> None:
        self._inner, self._agents, self.name = inner, agents or AgentStack(), name
        self.asked = self.vetoed = 0
        """Answers of `inner` so far, and those that were replaced: how much of the result is not its own."""

    def begin(self, n: int) -> None:
        """As `inner`."""
        self._inner.begin(n)

    def act(self, observations: Sequence[Observation]) -> list[Action | str]:
        """`inner`'s answers, with the vetoed ones replaced."""
        kept: list[Action | str] = []
        for observation, said in zip(observations, self._inner.act(observations), strict=True):
            passes = self._passes(observation, said)
            self.asked, self.vetoed = self.asked + 1, self.vetoed + (not passes)
            kept.append(said if passes else self._agents.choose(observation))
        return kept

    def _passes(self, observation: Observation, said: Action | str) -> bool:
        action = parse_action(said).action if isinstance(said, str) else said
        if action is None:
            return False
        chosen = next((item for item in observation.candidates if item.candidate_id == action.candidate_id), None)
        if chosen is None:
            return False
        return chosen.action_type in REVIEWS or bool(critic(Picture(observation), [chosen]))
