"""Rewards of sampled completions: one module per mode, one `Rewarder` that judges a batch in parallel.

`types` has items and results, `rewarder` the pool, `extract` what counts as the code or the answer of a completion;
`code`, `verification`, `environment`, `function` the modes (`host` is the process of a user's function, `runner` that of
pytest in the sandbox, `interpreter` what both run under), `tools` the multi-turn shell that TRL drives.
"""

from bashgym.data.reward_function import function_facts
from bashgym.envs.rewards.rewarder import Rewarder, make_rewarder
from bashgym.envs.rewards.types import RewardItem, RewardResult, RewardStatus

__all__ = ["RewardItem", "RewardResult", "RewardStatus", "Rewarder", "function_facts", "make_rewarder"]
