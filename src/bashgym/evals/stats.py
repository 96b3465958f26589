"""Intervals, tests, power and noise floors for pass rates. Pure functions of numbers; knows no files and no models.

Rates, effects and differences are shares in [0, 1] or [-1, 1], never per cent. Every interval is two-sided. numpy and
scipy are imported inside, so that the command line stays fast. Each formula names its source.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bashgym.core.errors import fail

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CONFIDENCE = 0.95
POWER = 0.8
_BLOCK = 4_000_000
"""Resampled numbers held at once."""


class Interval(NamedTuple):
    """A two-sided confidence interval."""

    low: float
    high: float

    def excludes_zero(self) -> bool:
        """True if zero lies strictly outside."""
        return self.low > 0 or self.high < 0


def wilson(k: float, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Score interval of a proportion (Wilson 1927, JASA 22:209). `k` may be a sum of item means. (0, 1) for n = 0."""
    _check_counts(k, n)
    if n == 0:
        return Interval(0.0, 1.0)
    z, p = _z(confidence), k / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(0.0 if k == 0 else max(0.0, centre - half), 1.0 if k == n else min(1.0, centre + half))


def clopper_pearson(k: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Exact interval of a proportion (Clopper & Pearson 1934, Biometrika 26:404). (0, 1) for n = 0."""
    from scipy.special import betaincinv

    _check_counts(k, n)
    tail = (1 - confidence) / 2
    low = float(betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return Interval(low, high)


def mcnemar_exact(b: int, c: int) -> float:
    """Two-sided p of the exact McNemar test (McNemar 1947, Psychometrika 12:153): binomial(b + c, 1/2), doubled tail.

    `b` items changed one way, `c` the other. 1.0 if none changed.
    """
    from scipy.special import bdtr

    _check_counts(min(b, c), b + c)
    return min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5))) if b + c else 1.0


def fisher_exact(k_a: int, n_a: int, k_b: int, n_b: int) -> float:
    """Two-sided p of Fisher's exact test that two independent groups have the same rate (Fisher 1935)."""
    from scipy.stats import fisher_exact as test

    _check_counts(k_a, n_a)
    _check_counts(k_b, n_b)
    return float(test([[k_a, n_a - k_a], [k_b, n_b - k_b]]).pvalue)


def newcombe(k_a: int, n_a: int, k_b: int, n_b: int, confidence: float = CONFIDENCE) -> Interval:
    """Interval of rate b - rate a of two independent groups (Newcombe 1998, Stat. Med. 17:873, method 10)."""
    a, b = wilson(k_a, n_a, confidence), wilson(k_b, n_b, confidence)
    p_a, p_b = (k_a / n_a if n_a else 0.5), (k_b / n_b if n_b else 0.5)
    delta = p_b - p_a
    return Interval(delta - math.hypot(p_b - b.low, a.high - p_a), delta + math.hypot(b.high - p_b, p_a - a.low))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that at least one of k attempts passes, from c passes in n: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, arXiv:2107.03374, eq. 1. `invalid_field` unless 1 <= k <= n and 0 <= c <= n: fewer attempts than
    k say nothing about k.
    """
    _check_counts(c, n)
    if not 1 <= k <= n:
        raise fail("invalid_field", f"pass@{k} needs at least {k} attempts, there are {n}", fields=["k"])
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def cluster_bootstrap(
    differences: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    least: float = -1.0,
) -> Interval:
    """Interval of the mean of paired per-item differences when whole clusters are the sample.

    Clusters are drawn with replacement, each with all its items (Davison & Hinkley 1997, 3.8). Percentiles are taken at
    levels widened for few clusters, Phi(-sqrt(G/(G-1)) t[G-1]), and reach at least to the bootstrap t interval with the
    same correction of its standard error (Hesterberg 2015, Am. Stat. 69:371). Plain percentiles of 15 clusters cover
    some 92 %; the widened ones alone still err 6 times in 100 with seven. Values lie in [least, 1]: 0 for the mean of
    rates. `too_few_clusters` below two.
    """
    import numpy as np

    values = _finite(differences)
    codes, n_clusters = _codes(clusters, len(values))
    _need_two(n_clusters)
    if np.ptp(values) == 0:
        return _all_equal(values, confidence, least)
    means = _cluster_means(values, codes, n_clusters, n_resamples, seed)
    ends = _percentiles(means, n_clusters, confidence)
    reach = _t(n_clusters - 1, confidence) * float(means.std()) * math.sqrt(n_clusters / (n_clusters - 1))
    effect = float(values.mean())
    return Interval(max(least, min(ends.low, effect - reach)), min(1.0, max(ends.high, effect + reach)))


def cluster_bca(
    differences: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The same mean by bias-corrected and accelerated percentiles over clusters (Efron 1987, JASA 82:171, 3 and 6.6).

    Second-order exact for skewed differences of many clusters; of seven clusters it covers below 90 %, so it is shown
    beside `cluster_bootstrap` and decides nothing. The acceleration is that of the jackknife over clusters.
    """
    import numpy as np
    from scipy.special import ndtr, ndtri

    values = _finite(differences)
    codes, n_clusters = _codes(clusters, len(values))
    _need_two(n_clusters)
    if np.ptp(values) == 0:
        return _all_equal(values, confidence)
    means, effect = _cluster_means(values, codes, n_clusters, n_resamples, seed), float(values.mean())
    below = float((means < effect).mean() + (means <= effect).mean()) / 2
    half = 1 / (2 * n_resamples)
    bias = float(ndtri(min(1 - half, max(half, below))))
    sums, sizes = np.bincount(codes, weights=values), np.bincount(codes)
    left_out = (sums.sum() - sums) / (sizes.sum() - sizes)
    pull = left_out.mean() - left_out
    spread = float((pull**2).sum()) ** 1.5
    acceleration = float((pull**3).sum()) / (6 * spread) if spread else 0.0
    ends = bias + np.array([-1.0, 1.0]) * _z(confidence)
    low, high = np.quantile(means, ndtr(bias + ends / (1 - acceleration * ends)))
    return Interval(float(low), float(high))


def item_bootstrap(
    differences: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Interval of the mean of paired per-item differences when items are the sample and clusters are given.

    Stratified: items are drawn with replacement inside their cluster, because a suite fixes how many items each family
    gives; an unstratified draw would add a variance that the design does not have (Davison & Hinkley 1997, 3.2).
    It speaks about new items of the same families, not about new families.
    """
    import numpy as np

    values = _finite(differences)
    codes, n_clusters = _codes(clusters, len(values))
    if np.ptp(values) == 0:
        return _all_equal(values, confidence)
    draw = np.random.default_rng([seed, 2])
    totals = np.zeros(n_resamples)
    for cluster in range(n_clusters):
        # Differences take few values, so a resample is one multinomial draw over them: exact, and small in memory.
        levels, counts = np.unique(values[codes == cluster], return_counts=True)
        for block in _blocks(n_resamples, len(levels)):
            drawn = draw.multinomial(counts.sum(), counts / counts.sum(), size=block.stop - block.start)
            totals[block] += drawn @ levels
    return _percentiles(totals / len(values), len(values), confidence)


def sign_flip(differences: Sequence[float], *, seed: int = 0, n_flips: int = 100_000) -> float:
    """One-sided p that paired differences are not above zero: their signs are flipped (Fisher 1935; Ernst 2004, 3.2).

    Exact up to 16 of them, so never below 1 / 2^n; beyond, by random flips with the observed one counted (Phipson &
    Smyth 2010, Stat. Appl. Genet. 9:39). 1.0 for none.
    """
    import numpy as np

    if not differences:
        return 1.0
    values = _finite(differences)
    n, exact = len(values), len(values) <= 16
    if exact:
        flips = 1 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        sums = flips @ values
    else:
        draw = np.random.default_rng([seed, 3])
        blocks = _blocks(n_flips, n)
        sums = np.concatenate([(1 - 2.0 * draw.integers(0, 2, (b.stop - b.start, n))) @ values for b in blocks])
    # Sums of the same differences in another order differ in the last bit.
    reached = int((sums >= values.sum() - 1e-9).sum())
    return reached / len(sums) if exact else (reached + 1) / (n_flips + 1)


def minimum_detectable_effect(n: int, discordance: float, *, alpha: float = 0.05, power: float = POWER) -> float:
    """Smallest true effect that a paired binary comparison of n items shows with `power`.

    Inverts n = (z[alpha/2] sqrt(psi) + z[beta] sqrt(psi - d^2))^2 / d^2 for d (Connor 1987, Biometrics 43:207), psi the
    share of items that change. An effect cannot exceed psi: where d would, psi = d (all changes in one direction).
    """
    if n < 1 or not 0 <= discordance <= 1:
        raise fail("invalid_field", f"n must be at least 1 and discordance in [0, 1]: {n}, {discordance}")
    za, zb, psi = _z(1 - alpha), _z(2 * power - 1), discordance
    under = n * za * za - (n + zb * zb) * (za * za - zb * zb)
    effect = math.sqrt(psi) * (za * math.sqrt(n) + math.sqrt(max(0.0, under))) / (n + zb * zb)
    if 0 < effect <= psi:
        return effect
    return _one_directional(n, za, zb)


def _one_directional(n: int, za: float, zb: float) -> float:
    """d with sqrt(n d) = za + zb sqrt(1 - d), by bisection; 1.0 if even that is not enough."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = math.sqrt(n * middle) >= za + zb * math.sqrt(1 - middle)
        low, high = (low, middle) if reached else (middle, high)
    return high


def items_needed(effect: float, discordance: float, *, alpha: float = 0.05, power: float = POWER) -> int:
    """Items with which a paired binary comparison shows a true `effect` with `power` (Connor 1987, as above).

    `discordance` is the share of items that change, at least |effect|. `invalid_field` for an effect of zero.
    """
    size, psi = abs(effect), max(abs(effect), discordance)
    if not 0 < size <= 1 or not psi <= 1 or not 0 < alpha < 1 or not 0 < power < 1:
        raise fail("invalid_field", f"effect, discordance, alpha and power are shares: {effect}, {discordance}")
    za, zb = _z(1 - alpha), _z(2 * power - 1)
    return math.ceil(((za * math.sqrt(psi) + zb * math.sqrt(psi - size * size)) / size) ** 2)


def minimum_detectable_difference(n_a: int, n_b: int, rate: float, *, power: float = POWER) -> float:
    """The same for two independent groups with a common `rate`, by the normal approximation (Fleiss 1981, 3.2)."""
    if min(n_a, n_b) < 1 or not 0 <= rate <= 1:
        raise fail("invalid_field", f"group sizes must be at least 1 and the rate in [0, 1]: {n_a}, {n_b}, {rate}")
    return min(1.0, (_z(0.95) + _z(2 * power - 1)) * math.sqrt(rate * (1 - rate) * (1 / n_a + 1 / n_b)))


def noise_floor(values: Sequence[float]) -> float | None:
    """sigma over seeds: the sample standard deviation of one pass rate per seed; None from fewer than two seeds."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def normal_quantile(share: float) -> float:
    """z below which a standard normal variable lies with probability `share`."""
    from scipy.special import ndtri

    return float(ndtri(share))


def _z(confidence: float) -> float:
    return normal_quantile((1 + confidence) / 2)


def _t(freedom: int, confidence: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _check_counts(k: float, n: int) -> None:
    if not 0 <= k <= n:
        raise fail("invalid_field", f"{k:g} of {n} is not a count of successes")


def _finite(differences: Sequence[float]) -> Floats:
    import numpy as np

    values = np.asarray(differences, dtype=float)
    if values.size == 0 or not np.isfinite(values).all():
        raise fail("eval_incomplete", "there are no paired scores, or some are not finite numbers")
    return values


def _codes(clusters: Sequence[Hashable], n: int) -> tuple[NDArray[np.int64], int]:
    import numpy as np

    if len(clusters) != n:
        raise fail("invalid_field", f"{n} differences, but {len(clusters)} clusters", fields=["clusters"])
    number: dict[Hashable, int] = {}
    codes = np.array([number.setdefault(cluster, len(number)) for cluster in clusters], dtype=np.int64)
    return codes, len(number)


def _need_two(n_clusters: int) -> None:
    if n_clusters < 2:
        raise fail(
            "too_few_clusters",
            f"the paired items come from {n_clusters} cluster; nothing can be said about others",
            hint="Evaluate at least two task families.",
        )


def _cluster_means(values: Floats, codes: NDArray[np.int64], n_clusters: int, n_resamples: int, seed: int) -> Floats:
    """Means of `n_resamples` draws of whole clusters with replacement."""
    import numpy as np

    sums = np.bincount(codes, weights=values, minlength=n_clusters)
    sizes = np.bincount(codes, minlength=n_clusters)
    draw = np.random.default_rng([seed, 1])
    even = np.full(n_clusters, 1 / n_clusters)
    means = np.empty(n_resamples)
    for block in _blocks(n_resamples, n_clusters):
        counts = draw.multinomial(n_clusters, even, size=block.stop - block.start)
        means[block] = (counts @ sums) / (counts @ sizes)
    return means


def _blocks(n_resamples: int, width: int) -> list[slice]:
    if n_resamples < 100:
        raise fail("invalid_field", f"{n_resamples} resamples are too few for an interval", fields=["n_resamples"])
    size = max(1, _BLOCK // max(1, width))
    return [slice(start, min(start + size, n_resamples)) for start in range(0, n_resamples, size)]


def _percentiles(means: Floats, n_units: int, confidence: float) -> Interval:
    """Hesterberg's expanded percentile interval over `n_units` resampled units."""
    import numpy as np
    from scipy.special import ndtr

    tail = float(ndtr(-math.sqrt(n_units / (n_units - 1)) * _t(n_units - 1, confidence)))
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _all_equal(values: Floats, confidence: float, least: float = -1.0) -> Interval:
    """Where all differences are the same a resample cannot vary, but that is no certainty: a share of items up to the
    Clopper-Pearson bound of 0 in n may differ, each by as much as a difference can."""
    value, n = float(values[0]), len(values)
    unseen = clopper_pearson(0, n, confidence).high
    return Interval(value - unseen * (value - least), value + unseen * (1 - value))
