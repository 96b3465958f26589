"""Is the candidate better than the baseline? Paired, from per-example scores; a pure function of them.

`improved` needs all of: a 95 % cluster bootstrap interval above zero; an exact McNemar test that agrees at .05 (one
attempt per item); an effect of at least twice the noise between baseline seeds (several attempts); six clusters.
`regressed` is the mirror image, anything else `inconclusive`; with over 2 % unobserved attempts it is `invalid`.
Why the cluster interval is the gate: families differ in how far training moves them, so 300 items of 15 families are
not 300 independent observations. It holds for new families and, being wider, for new items of these families too. The
stratified item bootstrap, which speaks about the latter only, is reported beside it. Why six: under the null, G
families all move one way with probability 2 / 2^G, which five cannot bring below .05. Why `looks`: who tries candidate
after candidate against one baseline on the same items finds one that is better by luck, so each is judged at the alpha
that `multiplicity.candidate_alpha` leaves for it, in the interval, in McNemar's test and in the least number of clusters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean
from typing import Any

from bashgym.core.errors import fail
from bashgym.evals import stats
from bashgym.evals.multiplicity import ALPHA, candidate_alpha, least_clusters
from bashgym.evals.suites import Score

MAX_MISSING = 0.02
NOISE_FACTOR = 2.0


class Verdict(StrEnum):
    """What a comparison says about the candidate."""

    IMPROVED = "improved"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    """Too much was not observed."""


def compare(
    candidate: Sequence[Score],
    baseline: Sequence[Score],
    *,
    suite_digests: tuple[str, str] = ("", ""),
    n_resamples: int = 10_000,
    seed: int = 0,
    looks: int = 1,
) -> dict[str, Any]:
    """The `comparison` of an eval report, with `by_cluster`, `flips` and `missing` in it.

    `looks` counts the candidates that were held against this baseline on these items, this one included.
    `eval_incomplete` if the sides are not the same (item, attempt) pairs of one suite; `too_few_clusters` below two.
    """
    check_pairing(candidate, baseline, suite_digests)
    rates_c, rates_b = item_rates(candidate), item_rates(baseline)
    clusters = {score.item_id: score.cluster or score.item_id for score in candidate}
    both = [item for item in clusters if item in rates_c and item in rates_b]
    missing = {"candidate": missing_items(candidate), "baseline": missing_items(baseline)}
    share = _missing_share(candidate, baseline)
    result: dict[str, Any] = {
        "n": len(both),
        "n_clusters": len({clusters[item] for item in both}),
        "missing": missing,
        "missing_rate": share,
        "looks": looks,
        "alpha": candidate_alpha(looks),
        "by_cluster": _by_cluster(both, clusters, rates_c, rates_b),
        "flips": _flips(both, rates_c, rates_b),
    }
    measured = (
        _nothing()
        if not both
        else _measure(candidate, baseline, both, clusters, n_resamples=n_resamples, seed=seed, looks=looks)
    )
    verdict, reasons = judge({**result, **measured})
    significant = verdict in (Verdict.IMPROVED, Verdict.REGRESSED)
    result = {**measured, **result, "significant": significant, "verdict": str(verdict), "reasons": reasons}
    return {**result, "summary": summary(result, rates_c, rates_b, both)}


def judge(found: dict[str, Any]) -> tuple[Verdict, list[str]]:
    """The gate's verdict and, where it is neither improved nor regressed, every reason for that.

    Reads n, missing_rate, effect, mcnemar, noise_floor, n_clusters, and `gate` (see `gate_interval`); without one, the
    95 % interval ci_low to ci_high stands for it.
    """
    if found["missing_rate"] > MAX_MISSING or not found["n"]:
        return Verdict.INVALID, [
            f"{found['missing_rate']:.1%} of the attempts were not observed; {MAX_MISSING:.0%} may be"
        ]
    effect, mcnemar, noise = found["effect"], found["mcnemar"], found["noise_floor"]
    gate = found.get("gate") or {**found, "alpha": ALPHA}
    alpha, reasons = gate["alpha"], []
    if not stats.Interval(gate["ci_low"], gate["ci_high"]).excludes_zero():
        reasons.append(f"the {100 * (1 - alpha):.4g} % interval {_interval(gate)} includes zero")
    if mcnemar and mcnemar["p_value"] >= alpha:
        reasons.append(f"McNemar's exact p is {mcnemar['p_value']:.3g}, not below {alpha:.3g}")
    if noise and abs(effect) < NOISE_FACTOR * noise["sigma"]:
        reasons.append(f"the effect is below {NOISE_FACTOR:g} sigma of the baseline's seeds ({noise['sigma']:.3g})")
    if (n := found["n_clusters"]) < (least := least_clusters(alpha)):
        reasons.append(f"{n} clusters would all move one way by chance with p = {2 / 2**n:.3g}; {least} are needed")
    if reasons:
        return Verdict.INCONCLUSIVE, reasons
    return (Verdict.IMPROVED if effect > 0 else Verdict.REGRESSED), []


def gate_interval(
    differences: Sequence[float], clusters: Sequence[str], *, n_resamples: int, seed: int, looks: int = 1
) -> dict[str, Any]:
    """{looks, alpha, confidence, ci_low, ci_high}: the interval that must exclude zero, at what is left of alpha."""
    alpha = candidate_alpha(looks)
    # A tail of alpha / 2 takes draws: at least ten beyond each end.
    draws = max(n_resamples, math.ceil(20 / alpha)) if looks > 1 else n_resamples
    low, high = stats.cluster_bootstrap(differences, clusters, n_resamples=draws, seed=seed, confidence=1 - alpha)
    return {"looks": looks, "alpha": alpha, "confidence": 1 - alpha, "ci_low": low, "ci_high": high}


def check_pairing(candidate: Sequence[Score], baseline: Sequence[Score], suite_digests: tuple[str, str]) -> None:
    """`eval_incomplete` unless both sides hold each (item, attempt) of one suite once, with the same prompts."""
    if all(suite_digests) and suite_digests[0] != suite_digests[1]:
        raise fail("eval_incomplete", f"the suites differ: {suite_digests[0][:12]} and {suite_digests[1][:12]}")
    for side, scores in (("candidate", candidate), ("baseline", baseline)):
        if not scores:
            raise fail("eval_incomplete", f"the {side} has no scores")
        key, times = Counter(score.key for score in scores).most_common(1)[0]
        if times > 1:
            raise fail("eval_incomplete", f"the {side} scores hold {key[0]} attempt {key[1]} {times} times")
    a, b = {s.key: s for s in candidate}, {s.key: s for s in baseline}
    if alone := sorted(a.keys() ^ b.keys()):
        item, attempt = alone[0]
        raise fail(
            "eval_incomplete", f"{len(alone)} scores are on one side only, the first is {item} attempt {attempt}"
        )
    for key, one in a.items():
        if (one.prompt, one.cluster) != (b[key].prompt, b[key].cluster):
            raise fail("eval_incomplete", f"{key[0]} is not the same question on both sides: the suites differ")


def item_rates(scores: Sequence[Score]) -> dict[str, float]:
    """Item -> share of its observed attempts that passed. Items without an observed attempt are left out."""
    tries: dict[str, list[bool]] = {}
    for score in scores:
        if score.passed is not None:
            tries.setdefault(score.item_id, []).append(score.passed)
    return {item: fmean(passed) for item, passed in tries.items()}


def missing_items(scores: Sequence[Score]) -> list[str]:
    """Items with at least one attempt that was not observed."""
    return list(dict.fromkeys(score.item_id for score in scores if score.passed is None))


def pass_rate(scores: Sequence[Score]) -> dict[str, Any]:
    """Mean over items of the mean over attempts, with Wilson's interval for items of these clusters."""
    rates = item_rates(scores)
    low, high = stats.wilson(sum(rates.values()), len(rates))
    return {"value": fmean(rates.values()) if rates else None, "ci_low": low, "ci_high": high, "n": len(rates)}


def seed_rates(scores: Sequence[Score]) -> list[float]:
    """One pass rate for each attempt, that is for each seed."""
    tries: dict[int, list[bool]] = {}
    for score in scores:
        if score.passed is not None:
            tries.setdefault(score.attempt, []).append(score.passed)
    return [fmean(tries[attempt]) for attempt in sorted(tries)]


def pass_at(scores: Sequence[Score]) -> dict[str, float]:
    """Unbiased pass@k, mean over items, for k up to the fewest observed attempts of any item. None is filtered out."""
    tries = Counter(score.item_id for score in scores if score.passed is not None)
    passed = Counter(score.item_id for score in scores if score.passed)
    if not tries:
        return {}
    return {
        str(k): fmean(stats.pass_at_k(n, passed[i], k) for i, n in tries.items())
        for k in range(1, min(tries.values()) + 1)
    }


def compare_counts(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Baseline `a` and candidate `b` as {n, correct} only: unpaired, so Newcombe's interval and Fisher's exact test."""
    (k_a, n_a), (k_b, n_b) = _counts(a), _counts(b)
    if a.get("benchmark") != b.get("benchmark"):
        raise fail("eval_incomplete", f"the benchmarks differ: {a.get('benchmark')!r} and {b.get('benchmark')!r}")
    if not (n_a and n_b):
        raise fail("eval_incomplete", "one of the sides has no items")
    ci, p, effect = stats.newcombe(k_a, n_a, k_b, n_b), stats.fisher_exact(k_a, n_a, k_b, n_b), k_b / n_b - k_a / n_a
    shown = ci.excludes_zero() and p < ALPHA
    verdict = Verdict.INCONCLUSIVE if not shown else Verdict.IMPROVED if effect > 0 else Verdict.REGRESSED
    n = f"n={n_a}" if n_a == n_b else f"n={n_a} and n={n_b}"
    interval = f"95 % interval {100 * ci.low:+.1f} to {100 * ci.high:+.1f}"
    return {
        "effect": effect,
        "ci_low": ci.low,
        "ci_high": ci.high,
        "method": "newcombe_unpaired",
        "n": min(n_a, n_b),
        "n_clusters": None,
        "mcnemar": None,
        "fisher": {"p_value": p},
        "minimum_detectable_effect": stats.minimum_detectable_difference(n_a, n_b, (k_a + k_b + 1) / (n_a + n_b + 2)),
        "looks": 1,
        "significant": shown,
        "verdict": str(verdict),
        "summary": f"{n}: {k_a}/{n_a} -> {k_b}/{n_b}, {100 * effect:+.1f} points, {interval}, p = {p:.3g}: {verdict}. "
        "Counts cannot be paired; per-example scores would show more.",
    }


def summary(found: dict[str, Any], rates_c: dict[str, float], rates_b: dict[str, float], both: list[str]) -> str:
    """One line for people, in points of 100."""
    if not both:
        return f"n=0: nothing was observed on both sides: {found['verdict']}"
    before, after = fmean(rates_b[item] for item in both), fmean(rates_c[item] for item in both)
    text = (
        f"n={found['n']} in {found['n_clusters']} clusters: {before:.1%} -> {after:.1%}, "
        f"{100 * found['effect']:+.1f} points, 95 % interval {_interval(found)}: {found['verdict']}"
    )
    many = found["looks"] > 1 and [f"candidate {found['looks']} on these items, so alpha is {found['alpha']:.2g}"]
    return "; ".join([text, *(many or []), *found["reasons"]])


def _measure(
    candidate: Sequence[Score],
    baseline: Sequence[Score],
    both: list[str],
    clusters: dict[str, str],
    *,
    n_resamples: int,
    seed: int,
    looks: int,
) -> dict[str, Any]:
    rates_c, rates_b = item_rates(candidate), item_rates(baseline)
    differences = [rates_c[item] - rates_b[item] for item in both]
    groups = [clusters[item] for item in both]
    how: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
    gate = gate_interval(differences, groups, looks=looks, **how)
    whole = stats.Interval(gate["ci_low"], gate["ci_high"])
    if looks > 1:
        whole = stats.cluster_bootstrap(differences, groups, **how)
    bca = stats.cluster_bca(differences, groups, **how)
    items = stats.item_bootstrap(differences, groups, **how)
    once = len({score.attempt for score in candidate}) == 1
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    sigma = stats.noise_floor(seed_rates(baseline))
    # Laplace's estimate: no item that changed among n does not mean that none can.
    discordance, effect = (gained + lost + 1) / (len(both) + 2), fmean(differences)
    return {
        "effect": effect,
        "ci_low": whole.low,
        "ci_high": whole.high,
        "gate": gate,
        "method": "cluster_bootstrap",
        "confidence": stats.CONFIDENCE,
        **how,
        "intervals": {
            "cluster_bootstrap": {"ci_low": whole.low, "ci_high": whole.high},
            "cluster_bca": {"ci_low": bca.low, "ci_high": bca.high},
            "item_bootstrap_stratified": {"ci_low": items.low, "ci_high": items.high},
        },
        "mcnemar": {"b": lost, "c": gained, "p_value": stats.mcnemar_exact(lost, gained)} if once else None,
        "minimum_detectable_effect": stats.minimum_detectable_effect(len(both), discordance),
        # How many items would show an effect of this size, if it is one.
        "items_needed": stats.items_needed(effect, discordance) if effect else None,
        "power": stats.POWER,
        "noise_floor": None if sigma is None else {"sigma": sigma, "n_seeds": len(seed_rates(baseline))},
    }


def _nothing() -> dict[str, Any]:
    names = ("effect", "ci_low", "ci_high", "gate", "intervals", "mcnemar", "noise_floor")
    return {"method": "cluster_bootstrap", **dict.fromkeys((*names, "minimum_detectable_effect", "items_needed"))}


def _missing_share(candidate: Sequence[Score], baseline: Sequence[Score]) -> float:
    """Share of (item, attempt) pairs that one side or the other did not observe."""
    unseen = {score.key for side in (candidate, baseline) for score in side if score.passed is None}
    return len(unseen) / len(candidate)


def _by_cluster(
    both: list[str], clusters: dict[str, str], rates_c: dict[str, float], rates_b: dict[str, float]
) -> list[dict[str, Any]]:
    groups: dict[str, list[str]] = {}
    for item in both:
        groups.setdefault(clusters[item], []).append(item)
    return [
        {
            "cluster": name,
            "n": len(items),
            "candidate": fmean(rates_c[item] for item in items),
            "baseline": fmean(rates_b[item] for item in items),
        }
        for name, items in groups.items()
    ]


def _flips(both: list[str], rates_c: dict[str, float], rates_b: dict[str, float]) -> dict[str, list[str]]:
    """Items that most attempts pass on one side and not on the other."""
    return {
        "gained": [item for item in both if rates_c[item] >= 0.5 > rates_b[item]],
        "lost": [item for item in both if rates_b[item] >= 0.5 > rates_c[item]],
    }


def _interval(found: dict[str, Any]) -> str:
    return f"{100 * found['ci_low']:+.1f} to {100 * found['ci_high']:+.1f}"


def _counts(value: dict[str, Any]) -> tuple[int, int]:
    k, n = value.get("correct"), value.get("n")
    if isinstance(k, int) and isinstance(n, int) and 0 <= k <= n:
        return k, n
    raise fail("file_unreadable", f"not counts of correct answers: correct={k!r}, n={n!r}")
