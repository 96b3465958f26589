"""The row's environment as judge: one answer in the text protocol, judged as in evaluation; what its verdict is as a reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bashgym.envs.rewards.types import RewardItem, RewardResult, RewardStatus
from bashgym.envs.rollout import EpisodeResult, check_runnable
from bashgym.envs.sandbox import Limits
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.terminal.suite import judge_completion
from bashgym.envs.verdict import VerifierStatus


def parse_environment(value: object) -> EnvironmentSpec:
    """The spec of a row; `environment_invalid` where it is none, or cannot be run in the local sandbox."""
    spec = EnvironmentSpec.from_dict(value if isinstance(value, Mapping) else {"instruction": value})
    check_runnable(spec)
    return spec


def environment(item: RewardItem, value: Any, timeout_s: float) -> RewardResult:
    """Runs the completion's command in a fresh workspace; its wall time is the shorter of the spec's and `timeout_s`."""
    return as_reward(judge_completion(parse_environment(value), item.completion, Limits(wall_s=timeout_s)))


def as_reward(result: EpisodeResult) -> RewardResult:
    """The verdict of an episode: its reward, its components by name, and `solved`."""
    if result.verifier_status is VerifierStatus.REWARD_ERROR:
        return RewardResult(None, {}, RewardStatus.ERROR, result.detail)
    parts = {**result.reward_components, "solved": float(result.passed)}
    return RewardResult(result.reward, parts, RewardStatus(result.verifier_status.value), result.detail)
