"""The arithmetic of DPPO: advantages, divergences of single tokens, the trust-region mask and its telemetry. Pure, no torch.

Policies are compared at the sampled token only, as two-way distributions {that token, any other}: p under the policy in
training, q under the one that acted. Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning",
sections on Binary-TV and Binary-KL; the trainer's form of the same lines is `training.dppo`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from bashgym.core.errors import fail

if TYPE_CHECKING:
    from bashgym.data.replay_records import ReplayRecord

EPSILON = 1e-12
"""Probabilities are clamped to [EPSILON, 1 - EPSILON]."""
THRESHOLDS = {"binary_tv": 0.15, "binary_kl": 0.05}
"""Divergence -> default radius of the trust region."""
COLLAPSE_TOKENS, COLLAPSE_FRACTION = 200, 0.95
"""At least so many tokens of which at least such a share is masked: the rollouts are too old to learn from."""
ZERO_STD = 1e-8
"""A group whose rewards have no more spread than this has no contrast."""


class MaskReason(StrEnum):
    """Why a token is or is not trained."""

    INSIDE = "inside_trust_region"
    POSITIVE = "positive_advantage_above_trust_region"
    NEGATIVE = "negative_advantage_above_trust_region"


@dataclass(frozen=True)
class TokenUpdate:
    """One token, judged."""

    binary_tv: float
    binary_kl: float
    abs_logprob_diff: float
    abs_policy_mismatch: float
    """|p/q - 1|: how far the importance ratio is from 1."""
    reason: MaskReason

    @property
    def masked(self) -> bool:
        """Whether the token leaves the loss."""
        return self.reason is not MaskReason.INSIDE


def probability(logprob: float) -> float:
    """exp of a log probability that is first capped at 0, clamped to [EPSILON, 1 - EPSILON]."""
    return min(max(math.exp(min(logprob, 0.0)), EPSILON), 1 - EPSILON)


def binary_tv(train_logprob: float, behavior_logprob: float) -> float:
    """Total variation of the two-way distributions: |p - q|, in [0, 1)."""
    return abs(probability(train_logprob) - probability(behavior_logprob))


def binary_kl(train_logprob: float, behavior_logprob: float) -> float:
    """KL(behaviour || train) of the two-way distributions: q ln(q/p) + (1-q) ln((1-q)/(1-p)), at least 0, in nats."""
    p, q = probability(train_logprob), probability(behavior_logprob)
    return max(0.0, q * (math.log(q) - math.log(p)) + (1 - q) * (math.log1p(-q) - math.log1p(-p)))


def threshold_of(divergence: str, threshold: float | None = None) -> float:
    """The radius; None is the default of the divergence. `invalid_field` for another divergence or a bad radius."""
    if divergence not in THRESHOLDS:
        known = ", ".join(THRESHOLDS)
        raise fail("invalid_field", f"divergence is {divergence[:80]!r}; there are {known}", fields=["divergence"])
    radius = THRESHOLDS[divergence] if threshold is None else threshold
    if not (math.isfinite(radius) and radius >= 0):
        raise fail("invalid_field", f"threshold is {radius}, not a number from 0", fields=["threshold"])
    return radius


def judge_token(
    train_logprob: float, behavior_logprob: float, advantage: float, divergence: str, threshold: float
) -> TokenUpdate:
    """Masked where the divergence is above `threshold` and the update would push further out:
    (A > 0 and p > q) or (A < 0 and p < q)."""
    tv, kl = binary_tv(train_logprob, behavior_logprob), binary_kl(train_logprob, behavior_logprob)
    p, q = probability(train_logprob), probability(behavior_logprob)
    reason = MaskReason.INSIDE
    if (tv if divergence == "binary_tv" else kl) > threshold:
        if advantage > 0 and p > q:
            reason = MaskReason.POSITIVE
        elif advantage < 0 and p < q:
            reason = MaskReason.NEGATIVE
    difference = abs(min(train_logprob, 0.0) - min(behavior_logprob, 0.0))
    return TokenUpdate(tv, kl, difference, abs(p / q - 1), reason)


def judge_tokens(
    train_logprobs: Sequence[float],
    behavior_logprobs: Sequence[float],
    advantages: Sequence[float],
    *,
    divergence: str = "binary_tv",
    threshold: float | None = None,
) -> list[TokenUpdate]:
    """`judge_token` of every token; the three sequences have its length. `replay_invalid` if they do not."""
    radius = threshold_of(divergence, threshold)
    if not len(train_logprobs) == len(behavior_logprobs) == len(advantages):
        counts = f"{len(train_logprobs)} training and {len(behavior_logprobs)} behaviour log probabilities"
        raise fail("replay_invalid", f"{counts} for {len(advantages)} advantages", fields=["train_logprobs"])
    return [
        judge_token(train, behavior, advantage, divergence, radius)
        for train, behavior, advantage in zip(train_logprobs, behavior_logprobs, advantages, strict=True)
    ]


def telemetry(updates: Sequence[TokenUpdate], *, divergence: str, threshold: float) -> dict[str, object]:
    """Counts, means and maxima over the tokens, and whether the update has collapsed (nearly all of it is masked)."""
    count = len(updates)
    masked = sum(update.masked for update in updates)
    fraction = masked / count if count else 0.0
    reasons = {str(reason): sum(update.reason is reason for update in updates) for reason in MaskReason}
    found: dict[str, object] = {"n_tokens": count, "masked_updates": masked, "masked_fraction": fraction}
    for name in ("binary_tv", "binary_kl", "abs_logprob_diff", "abs_policy_mismatch"):
        values = [getattr(update, name) for update in updates]
        found[f"mean_{name}"] = math.fsum(values) / count if count else 0.0
        found[f"max_{name}"] = max(values, default=0.0)
    collapsed = collapsing(masked, count)
    return {
        **found,
        "reasons": reasons,
        "divergence": divergence,
        "threshold": threshold,
        "collapse_warning": collapsed,
    }


def collapsing(masked: float, tokens: float) -> bool:
    """Whether so many tokens are masked that the rollouts are too old to learn from."""
    return tokens >= COLLAPSE_TOKENS and masked >= COLLAPSE_FRACTION * tokens


def group_statistics(rewards: Iterable[tuple[Hashable, float]]) -> dict[Hashable, tuple[float, float]]:
    """Group -> (mean, population standard deviation) of its rewards."""
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for group, reward in rewards:
        groups[group].append(reward)
    found = {}
    for group, values in groups.items():
        mean = math.fsum(values) / len(values)
        found[group] = mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return found


def advantages(records: Sequence[ReplayRecord]) -> list[float]:
    """reward - mean reward of the record's (batch, environment); not divided by the spread."""
    means = group_statistics((record.group, record.reward) for record in records)
    return [record.reward - means[record.group][0] for record in records]
