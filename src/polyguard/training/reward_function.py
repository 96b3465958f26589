"""`grpo_reward_mode: python:<this file>:reward`: what one answer earns in the situation that a prompt shows.

BashGym calls it in worker processes of their own. The situation is made again from the row (task, split, index, history), the
answer is a step in it, and the parts are the four channels, weighted as the profile weighs their components.
"""

from __future__ import annotations

from typing import Any

from polyguard.env.reward import CHANNELS, weights
from polyguard.training.teacher import at

PROFILE = "strict"


def reward(prompt: Any, completion: str, row: dict[str, Any]) -> dict[str, float]:
    """Channel -> its share of the step's total; a quarter of it where the answer is illegal, unreadable or an exploit."""
    engine = at(str(row["task_id"]), str(row["split"]), int(row["index"]), list(row["history"]))
    result = engine.step(completion)
    weight = weights(PROFILE)
    parts = {name: sum(weight[c] * result.breakdown[c] for c in inside) for name, inside in CHANNELS.items()}
    whole = sum(parts.values())
    scale = result.reward / whole if whole else 0.0
    return {name: value * scale for name, value in parts.items()}
