"""Arithmetic of prompt groups: which have contrast, what was sampled for them, which prompts are drawn next, and lengths.

Pure and torch-free. What the trainer does with the answers is `policy`'s.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

CONTRAST = 1e-8
"""A group whose population standard deviation is not above this teaches nothing: every advantage is zero."""

REFILL_ROUNDS = 4
"""How often active sampling draws replacements before a batch stays short."""


def population_std(rewards: Sequence[float]) -> float:
    """Standard deviation over the rewards that are numbers (NaN: no verdict); 0 for fewer than two."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    if len(known) < 2:
        return 0.0
    mean = math.fsum(known) / len(known)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / len(known))


def has_contrast(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards differ (DAPO keeps only such groups: Yu et al. 2025, arXiv 2503.14476, eq. 11)."""
    return population_std(rewards) > CONTRAST


@dataclass
class Tally:
    """What happened to the groups of one rollout batch, over all processes."""

    requested: int
    candidates: int = 0
    effective: int = 0
    dropped: int = 0
    all_zero: int = 0
    all_one: int = 0

    def add(self, rewards: Sequence[float]) -> bool:
        """Counts one candidate group; True if it is kept. A group without any verdict is dropped, and neither 0 nor 1."""
        self.candidates += 1
        if has_contrast(rewards):
            self.effective += 1
            return True
        known = [reward for reward in rewards if not math.isnan(reward)]
        self.dropped += 1
        self.all_zero += bool(known) and all(abs(reward) <= CONTRAST for reward in known)
        self.all_one += bool(known) and all(abs(reward - 1) <= CONTRAST for reward in known)
        return False

    def metrics(self) -> dict[str, float]:
        """Telemetry by metric name. Refills are the groups that were walked beyond those requested."""
        return {
            "active_sampling_refills": max(0, self.effective + self.dropped - self.requested),
            "zero_std_groups_dropped": self.dropped,
            "all_zero_groups_dropped": self.all_zero,
            "all_one_groups_dropped": self.all_one,
            "effective_prompt_groups": self.effective,
            "requested_prompt_groups": self.requested,
            "candidate_prompt_groups": self.candidates,
            "maintained_batch": float(self.effective >= self.requested),
        }


def draw_rows(rows: int, count: int, key: tuple[int, int, int], without: Collection[int] = ()) -> list[int]:
    """`count` row positions below `rows` for (seed, step, round): always the same ones, those in `without` last.

    Each row comes once before any comes twice.
    """
    draw = random.Random("/".join(map(str, key)))  # noqa: S311 - a reproducible draw, not a secret
    order = draw.sample(range(rows), min(rows, count + len(without)))
    order.sort(key=lambda row: row in without)
    return [order[i % len(order)] for i in range(count)]


def is_easy(rewards: Sequence[float], rate: float) -> bool:
    """Whether at least the share `rate` of a group's verdicts are passes (rewards of 1)."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    return bool(known) and sum(reward == 1 for reward in known) >= rate * len(known)


def draw(key: tuple[int, int, int]) -> float:
    """A number in [0, 1) for (seed, step, group): always the same one."""
    return random.Random("easy/" + "/".join(map(str, key))).random()  # noqa: S311 - a reproducible draw, not a secret


def overlong_penalty(length: int, limit: int, buffer: int, penalty: float) -> float:
    """Soft punishment of length (DAPO, Yu et al. 2025, arXiv 2503.14476, eq. 13), in [-penalty, 0].

    0 up to `limit - buffer` tokens, then linear, `-penalty` from `limit` on.
    """
    excess = length - (limit - buffer)
    return -penalty * min(1.0, max(0.0, excess / buffer))
