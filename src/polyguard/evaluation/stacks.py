"""The policy stacks that are compared, by name, and what they are made of. A stack whose model is not there says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bashgym.core.errors import fail
from polyguard.env.engine import Engine
from polyguard.env.reward import weights
from polyguard.env.types import StepResult
from polyguard.evaluation.play import scenarios
from polyguard.policies.agents import AgentStack, Parts
from polyguard.policies.bandit import LinUCB, Signal
from polyguard.policies.base import Policy, Privileged
from polyguard.policies.compose import Shortlist, Watched
from polyguard.policies.search import BeamSearch, Expert
from polyguard.policies.simple import GreedyEstimate, NoChange, PositionOnly, RandomLegal, ReviewOnly, RulesOnly

BANDIT_EPISODES = 300
"""Training scenarios that the bandit learns from."""
NEEDS_MODEL = frozenset({"llm-only", "llm+bandit", "llm+critic"})


@dataclass
class Bench:
    """What stacks share: one model and one fitted bandit, each made when first asked for."""

    model: str | Path | None = None
    adapter: str | Path | None = None
    why_none: str = "no model was named, and none has been trained here"
    bandit_episodes: int = BANDIT_EPISODES
    profile: str = "strict"
    _llm: Policy | None = None
    _bandits: dict[bool, LinUCB] = field(default_factory=dict)

    def llm(self) -> Policy:
        """The model as a policy; `model_missing` if there is none."""
        if self.model is None:
            raise fail("model_missing", self.why_none, hint="Train one, or give --model.")
        if self._llm is None:
            from polyguard.policies.local_model import ModelPolicy

            self._llm = ModelPolicy(self.model, self.adapter)
        return self._llm

    def bandit(self, *, abstention_reward: bool = True) -> LinUCB:
        """The fitted bandit, with or without the part of the reward that is for abstaining well."""
        if abstention_reward not in self._bandits:
            signal = None if abstention_reward else _without_abstention(self.profile)
            self._bandits[abstention_reward] = fit_bandit(self.bandit_episodes, self.profile, signal)
        return self._bandits[abstention_reward]


def fit_bandit(episodes: int, profile: str = "strict", signal: Signal | None = None) -> LinUCB:
    """A bandit that has played the first training scenarios."""
    return LinUCB().fit(_training(episodes, profile), signal)


def _training(episodes: int, profile: str) -> list[Engine]:
    engines = []
    for item in scenarios("train", episodes):
        engine = Engine(profile=profile)
        engine.reset(item.task_id, split=item.split, index=item.index)
        engines.append(engine)
    return engines


def _without_abstention(profile: str) -> Signal:
    weight = weights(profile)["abstention_quality_score"]

    def signal(result: StepResult) -> float:
        return result.reward - weight * result.breakdown["abstention_quality_score"]

    return signal


Maker = Callable[[Bench], "Policy | Privileged"]

STACKS: dict[str, Maker] = {
    "no_change": lambda _: NoChange(),
    "review_only": lambda _: ReviewOnly(),
    "random_legal": lambda _: RandomLegal(),
    "position_only": lambda _: PositionOnly(),
    "greedy_estimate": lambda _: GreedyEstimate(),
    "rules_only": lambda _: RulesOnly(),
    "beam_search": lambda _: BeamSearch(),
    "agent_stack": lambda _: AgentStack(),
    "bandit-only": lambda bench: bench.bandit(),
    "llm-only": lambda bench: bench.llm(),
    "llm+bandit": lambda bench: Shortlist(bench.llm(), bench.bandit()),
    "llm+critic": lambda bench: Watched(bench.llm()),
    "expert": lambda _: Expert(),
}
"""Cheap ones first. `expert` sees the truth: an upper bound, not a competitor."""


def _without(part: str) -> Maker:
    parts = msgspec.structs.replace(Parts(), **{part: False})
    return lambda _: AgentStack(parts, name=f"without_{part}")


COMPONENTS: dict[str, tuple[str, Maker]] = {
    **{name: ("agent_stack", _without(name)) for name in Parts.__struct_fields__},
    "abstention_reward": ("bandit-only", lambda bench: bench.bandit(abstention_reward=False)),
}
"""Part -> (the stack that it is a part of, that stack without it)."""
