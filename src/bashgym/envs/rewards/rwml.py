"""RWML: a binary reward for predicting what a command will show, judged in an embedding space. No torch.

    r = 1 if 1 - cos(E(predicted), E(real)) < threshold, else 0

E is handed in: mean-pooled hidden states of a local model (`training.embedding`), or `hashed_ngrams`, which is deterministic,
needs no model and sees spelling, not meaning.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

from bashgym.envs.rewards.types import RewardResult, RewardStatus

Vector = dict[int, float]
"""Sparse; absent entries are 0."""
Embed = Callable[[Sequence[str]], Sequence[Vector]]

NGRAMS = (1, 2, 3)
BUCKETS = 1 << 16
DISTANCE = "embedding_distance"
"""Name of the part that holds the cosine distance."""


def hashed_ngrams(texts: Sequence[str]) -> list[Vector]:
    """Counts of character n-grams (1 to 3, runs of blanks as one), hashed with CRC-32 into 65,536 buckets."""
    return [_ngrams(" ".join(text.split())) for text in texts]


def _ngrams(text: str) -> Vector:
    counts: Counter[int] = Counter()
    for size in NGRAMS:
        for start in range(len(text) - size + 1):
            piece = text[start : start + size].encode("utf-8", "surrogatepass")
            counts[zlib.crc32(piece, size) % BUCKETS] += 1
    return {bucket: float(count) for bucket, count in counts.items()}


def cosine_distance(a: Vector, b: Vector) -> float:
    """1 - cos in [0, 2]. Two zero vectors are at 0, a zero vector is at 1 from any other; NaN if a number is not finite."""
    if not a or not b:
        return float(bool(a) != bool(b))
    dot = math.fsum(value * b.get(key, 0.0) for key, value in a.items())
    norms = math.sqrt(math.fsum(v * v for v in a.values()) * math.fsum(v * v for v in b.values()))
    if not math.isfinite(norms):
        return math.nan
    return 1 - max(-1.0, min(1.0, dot / norms)) if norms else 0.0


def reward_factory(embed: Embed, threshold: float) -> Callable[[Sequence[str], Sequence[str]], list[RewardResult]]:
    """A function (predictions, real observations) -> one verdict each, with the distance as a part."""

    def judge(predicted: Sequence[str], real: Sequence[str]) -> list[RewardResult]:
        vectors = embed([*predicted, *real])
        found = []
        for guess, truth in zip(vectors[: len(predicted)], vectors[len(predicted) :], strict=True):
            distance = cosine_distance(guess, truth)
            if not math.isfinite(distance):
                found.append(RewardResult(None, {}, RewardStatus.ERROR, "the embedding is not finite"))
                continue
            right = distance < threshold
            status = RewardStatus.PASSED if right else RewardStatus.FAILED
            found.append(RewardResult(float(right), {DISTANCE: distance}, status))
        return found

    return judge


def distance_metrics(results: Sequence[RewardResult]) -> dict[str, float]:
    """rwml_pass_rate, and mean and 95th percentile (nearest rank) of the distances; empty where there are none."""
    distances = sorted(result.parts[DISTANCE] for result in results if DISTANCE in result.parts)
    if not distances:
        return {}
    passed = sum(result.reward == 1 for result in results if DISTANCE in result.parts)
    return {
        "rwml_pass_rate": passed / len(distances),
        "embedding_distance_mean": math.fsum(distances) / len(distances),
        "embedding_distance_p95": distances[math.ceil(0.95 * len(distances)) - 1],
    }
