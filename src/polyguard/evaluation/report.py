"""From episode rows to numbers: each metric with its mean, spread and interval, and paired differences between two policies.

Intervals take clusters of scenarios (the same main template) as the sample. Pairs are the same scenarios on both sides, or it is
an error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from bashgym.core.errors import fail
from bashgym.evals.stats import Interval, cluster_bootstrap, sign_flip
from polyguard.env.types import Termination
from polyguard.evaluation.play import EpisodeRow

SCHEMA_VERSION = "polyguard.evaluation.v1"
_RESAMPLES = 2_000
_CURVE_RESAMPLES = 300
"""For calibration and ranking, which are not means."""
_TIMEOUTS = (Termination.STEP_TIMEOUT, Termination.WALL_CLOCK_TIMEOUT)

METRICS: dict[str, Callable[[EpisodeRow], float]] = {
    "avg_reward": lambda row: row.reward,
    "avg_return": lambda row: row.episode_return,
    "legality_rate": lambda row: row.legal_steps / row.steps,
    "success_rate": lambda row: float(row.success),
    "justified_review_rate": lambda row: float(row.termination == Termination.JUSTIFIED_REVIEW),
    "unjustified_review_rate": lambda row: float(row.termination == Termination.UNJUSTIFIED_REVIEW),
    "process_fidelity": lambda row: row.components["process_fidelity_score"],
    "timeout_rate": lambda row: float(row.termination in _TIMEOUTS),
    "budget_exhausted_rate": lambda row: float(row.termination == Termination.STEP_BUDGET_EXHAUSTED),
    "exploit_rate": lambda row: float(bool(row.hard_flags)),
    "invalid_rate": lambda row: 1 - row.legal_steps / row.steps,
    "avg_steps": lambda row: float(row.steps),
    "burden_delta": lambda row: row.burden_delta,
    "risk_delta": lambda row: row.risk_delta,
    "toxicity_avoidance": lambda row: float(not row.adverse_event),
    "failure_visibility": lambda row: float(row.explained),
}
"""Metrics that are a mean over episodes: all that two policies can be compared by. `invalid_rate` is of steps."""


def mean_of(rows: Sequence[EpisodeRow], metric: str) -> float:
    """The mean of a metric."""
    return math.fsum(map(METRICS[metric], rows)) / len(rows)


def interval(values: Sequence[float], clusters: Sequence[str], least: float = -1.0) -> Interval:
    """95 % interval of a mean over clusters; the values may be of any size, `least` is -1, or 0 where none can be negative.

    One cluster says nothing about others: the whole range.
    """
    if len(set(clusters)) < 2:
        return Interval(min(values), max(values))
    scale = max(1.0, *map(abs, values))
    found = cluster_bootstrap([value / scale for value in values], clusters, n_resamples=_RESAMPLES, least=least)
    return Interval(found.low * scale, found.high * scale)


def summary(rows: Sequence[EpisodeRow]) -> dict[str, Any]:
    """Everything about one policy."""
    if not rows:
        raise fail("eval_incomplete", "there are no episodes")
    clusters = [row.cluster for row in rows]
    metrics: dict[str, Any] = {name: _described([of(row) for row in rows], clusters) for name, of in METRICS.items()}
    metrics["dosing_target_attainment"] = _dosing(rows)
    return {
        "policy": rows[0].policy,
        "episodes": len(rows),
        "clusters": len(set(clusters)),
        "metrics": metrics | {"ece": _curve(rows, _ece), "abstention_auc": _curve(rows, _auc)},
        "latency_ms": {"p50": quantile(_latencies(rows), 0.5), "p95": quantile(_latencies(rows), 0.95)},
        "exploits": _shares(rows, lambda row: row.hard_flags),
        "soft_flags": _shares(rows, lambda row: row.soft_flags),
        "terminations": _shares(rows, lambda row: [row.termination]),
        "action_types": _actions(rows),
        "components": _averages([row.components for row in rows]),
        "channels": _averages([row.channels for row in rows]),
        "reward_profiles": _averages([row.rewards for row in rows]),
        "by_difficulty": _split(rows, lambda row: row.difficulty),
        "by_task": _split(rows, lambda row: row.task_id),
    }


def _described(values: Sequence[float], clusters: Sequence[str]) -> dict[str, float]:
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
    low, high = interval(values, clusters, least=0.0 if min(values) >= 0 else -1.0)
    return {"mean": _r(mean), "std": _r(spread), "n": len(values), "ci_low": _r(low), "ci_high": _r(high)}


def _dosing(rows: Sequence[EpisodeRow]) -> dict[str, float | None]:
    """Of the episodes in which a dose mattered, the share of steps with every dose at its target."""
    dosed = [row for row in rows if row.dose_steps]
    if not dosed:
        return {"mean": None, "n": 0}
    return dict(_described([row.dose_hits / row.dose_steps for row in dosed], [row.cluster for row in dosed]))


def paired(
    baseline: Sequence[EpisodeRow], candidate: Sequence[EpisodeRow], metrics: Sequence[str] | None = None
) -> dict[str, dict[str, float]]:
    """candidate - baseline on the same scenarios: mean, interval, two-sided p of a sign flip of whole clusters."""
    first = {row.scenario_id: row for row in baseline}
    second = {row.scenario_id: row for row in candidate}
    if first.keys() != second.keys() or len(first) != len(baseline) or len(second) != len(candidate) or not first:
        raise fail("eval_incomplete", "the two sides did not play the same scenarios, each once: no comparison")
    order = sorted(first)
    return {
        name: _difference(name, [first[key] for key in order], [second[key] for key in order])
        for name in metrics or METRICS
    }


def _difference(metric: str, before: Sequence[EpisodeRow], after: Sequence[EpisodeRow]) -> dict[str, float]:
    of = METRICS[metric]
    values = [of(new) - of(old) for old, new in zip(before, after, strict=True)]
    clusters = [row.cluster for row in before]
    low, high = interval(values, clusters)
    mean = math.fsum(values) / len(values)
    return {
        "baseline": _r(mean_of(before, metric)),
        "candidate": _r(mean_of(after, metric)),
        "delta": _r(mean),
        "ci_low": _r(low),
        "ci_high": _r(high),
        "p": _r(_p(values, clusters)),
        "n": len(values),
    }


def _p(values: Sequence[float], clusters: Sequence[str]) -> float:
    """Two-sided: whole clusters change their sign, as their scenarios are alike."""
    sums: dict[str, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value
    totals = list(sums.values())
    one_sided = min(sign_flip(totals, n_flips=10_000), sign_flip([-value for value in totals], n_flips=10_000))
    return min(1.0, 2 * one_sided)


def _shares(rows: Sequence[EpisodeRow], of: Callable[[EpisodeRow], Sequence[str]]) -> dict[str, float]:
    counts = Counter(name for row in rows for name in of(row))
    return {name: _r(count / len(rows)) for name, count in sorted(counts.items())}


def _actions(rows: Sequence[EpisodeRow]) -> dict[str, Any]:
    """Shares of action types over all steps, and how spread they are (entropy in nats)."""
    counts = Counter(name or "unreadable" for row in rows for name in row.action_types)
    shares = {name: count / counts.total() for name, count in sorted(counts.items())}
    entropy = -math.fsum(share * math.log(share) for share in shares.values())
    return {"shares": {name: _r(share) for name, share in shares.items()}, "entropy": _r(abs(entropy))}


def _averages(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: _r(math.fsum(row[name] for row in rows) / len(rows)) for name in rows[0]}


_SHORT = ("avg_reward", "avg_return", "success_rate", "legality_rate", "exploit_rate")


def _split(rows: Sequence[EpisodeRow], key: Callable[[EpisodeRow], str]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {
        name: {"n": len(part)} | {metric: _r(mean_of(part, metric)) for metric in _SHORT}
        for name, part in sorted(groups.items())
    }


def subgroups(rows: Sequence[EpisodeRow]) -> dict[str, dict[str, dict[str, float]]]:
    """The short metrics by age band, sex, kidney stage and number of drugs."""
    return {name: _split(rows, lambda row, name=name: row.groups[name]) for name in rows[0].groups}  # type: ignore[misc]


def _latencies(rows: Sequence[EpisodeRow]) -> list[float]:
    return sorted(value for row in rows for value in row.latency_ms)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of sorted values."""
    return _r(ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)])


Pairs = Sequence[tuple[float, bool]]


def _ece(rows: Sequence[EpisodeRow]) -> float | None:
    return expected_calibration_error([bet for row in rows for bet in row.bets])


def _auc(rows: Sequence[EpisodeRow]) -> float | None:
    return auc([leaning for row in rows for leaning in row.abstention])


def expected_calibration_error(bets: Pairs, bins: int = 10) -> float | None:
    """Mean gap between stated confidence and outcome over equal bins, weighted by their sizes. None without bets."""
    if not bets:
        return None
    found: dict[int, list[tuple[float, bool]]] = {}
    for confidence, outcome in bets:
        found.setdefault(min(bins - 1, int(confidence * bins)), []).append((confidence, outcome))
    return math.fsum(abs(math.fsum(c - o for c, o in part)) for part in found.values()) / len(bets)


def auc(pairs: Pairs) -> float | None:
    """Chance that a positive is scored above a negative, ties counting half (Mann & Whitney). None if one kind is missing."""
    positives, negatives = [s for s, label in pairs if label], [s for s, label in pairs if not label]
    if not positives or not negatives:
        return None
    below: Counter[float] = Counter(negatives)
    levels = sorted({*positives, *negatives})
    less, worse = {}, 0
    for level in levels:
        less[level] = worse + 0.5 * below[level]
        worse += below[level]
    return math.fsum(less[score] for score in positives) / (len(positives) * len(negatives))


def _curve(rows: Sequence[EpisodeRow], of: Callable[[Sequence[EpisodeRow]], float | None]) -> dict[str, float | None]:
    """A statistic that is no mean, with percentiles over resampled clusters."""
    from numpy.random import default_rng

    value = of(rows)
    if value is None:
        return {"mean": None, "n": len(rows)}
    clusters: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        clusters.setdefault(row.cluster, []).append(row)
    parts, draw, drawn = list(clusters.values()), default_rng([0, 4]), []
    for _ in range(_CURVE_RESAMPLES):
        sample = [row for place in draw.integers(len(parts), size=len(parts)) for row in parts[place]]
        if (again := of(sample)) is not None:
            drawn.append(again)
    drawn.sort()
    ends = (quantile(drawn, 0.025), quantile(drawn, 0.975)) if drawn else (_r(value), _r(value))
    return {"mean": _r(value), "n": len(rows), "ci_low": ends[0], "ci_high": ends[1]}


def _r(value: float) -> float:
    return round(float(value), 6)
