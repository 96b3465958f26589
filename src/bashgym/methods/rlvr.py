"""Reinforcement learning with verifiable rewards: GRPO whose reward is always a verifier."""

from __future__ import annotations

from dataclasses import replace

from bashgym.methods import grpo
from bashgym.methods.spec import DatasetContract

REWARD_MODE = replace(
    grpo.REWARD_MODE,
    default="verification",
    choices=("verification", "answer", "environment"),
    prefixes=(),
    help="verification: share of the row's tests that pass; answer: the final answer is the row's; environment: the "
    "row's environment is solved; use grpo for rewards that verify nothing",
)

DATASET = DatasetContract(
    "grpo",
    "one prompt with the tests that decide",
    required=("prompt", "tests"),
    optional=("answer", "environment", "metadata"),
    rules=(
        "tests is pytest source that imports from `solution`; with another reward mode, answer or environment instead",
        "a row without what its reward needs is refused, never half rewarded",
        "the tests fail on an empty solution",
    ),
    example=grpo.DATASET.example,
)

METHOD = replace(
    grpo.METHOD,
    name="rlvr",
    title="RL with verifiable rewards",
    summary="GRPO with the pass rate of executed tests as reward.",
    objective="as grpo, with reward = passed / (passed + failed)",
    dataset=DATASET,
    own_fields=tuple(REWARD_MODE if f.name == REWARD_MODE.name else f for f in grpo.FIELDS),
    recipe=replace(
        grpo.RECIPE,
        when_to_use="As grpo, where every prompt comes with tests that run: code, shell tasks, exact answers.",
        settings={**grpo.RECIPE.settings, "grpo_reward_mode": "verification"},
        next=tuple((why, command.replace("--strategy grpo", "--strategy rlvr")) for why, command in grpo.RECIPE.next),
    ),
)
