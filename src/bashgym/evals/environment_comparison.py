"""Two environment gates that need a second set of attempts: candidate against base, and reward against a spurious one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals import compare, stats
from bashgym.evals.holdout import group_key
from bashgym.evals.multiplicity import ALPHA
from bashgym.evals.passk import passk_report
from bashgym.evals.wire import Attempt, check_attempts, environments_of

COMPARISON = "bashgym.environment_holdout_comparison.v1"
CONTROL = "bashgym.environment_spurious_reward_control.v1"


class ComparisonRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/environments/holdout-comparison."""

    environments: list[dict[str, Any]]
    base_attempts: list[Attempt]
    candidate_attempts: list[Attempt]
    model_id: str = ""
    cluster_by: str = "task_family"
    compare_k: int = 1
    k_values: tuple[int, ...] = (1,)
    min_delta: float = 0.0
    min_candidate_pass_at_1: float = 0.0
    require_ci_excludes_zero: bool = True
    max_candidate_timeout_rate: float = 0.25
    max_candidate_tamper_rate: float = 0.0
    n_resamples: int = 10_000
    seed: int = 0
    looks: int = 1
    """Candidates that were held against this base on these environments, this one included: each later one needs more."""
    record_to_registry: bool = False


class ControlRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/environments/spurious-reward-control."""

    environments: list[dict[str, Any]]
    attempts: list[Attempt]
    control_attempts: list[Attempt] | None = None
    """Attempts of a model trained on spurious rewards; without them, random labels."""
    model_id: str = ""
    k_values: tuple[int, ...] = (1,)
    n_trials: int = 200
    random_pass_probability: float = 0.05
    min_observed_pass_at_1: float = 0.0
    max_control_pass_at_1: float = 0.25
    min_lift_over_control: float = 0.0
    seed: int = 0
    record_to_registry: bool = False


def holdout_comparison(request: ComparisonRequest) -> dict[str, Any]:
    """Paired pass@k of candidate and base. `attempts_invalid` unless both hold the same attempts; `too_few_clusters`."""
    _check_comparison(request)
    environments = environments_of(request.environments)
    ks = sorted({request.compare_k, 1, *request.k_values})
    for name, attempts in (
        ("base_attempts", request.base_attempts),
        ("candidate_attempts", request.candidate_attempts),
    ):
        check_attempts(environments, attempts, ks, name)
    if {a.key for a in request.base_attempts} != {a.key for a in request.candidate_attempts}:
        message = "base and candidate attempts are not the same (environment, attempt) pairs"
        raise fail(
            "attempts_invalid", message, "Give both the same number of attempts at each.", ["candidate_attempts"]
        )
    base = passk_report(environments, request.base_attempts, ks)
    candidate = passk_report(environments, request.candidate_attempts, ks)
    found = _paired(environments, base, candidate, request)
    return {
        "schema_version": COMPARISON,
        "model_id": request.model_id,
        "compare_k": request.compare_k,
        "base": base,
        "candidate": candidate,
        "comparison": found,
        "gate": _comparison_gate(request, found, candidate),
    }


def _check_comparison(request: ComparisonRequest) -> None:
    checks = (
        ("compare_k", request.compare_k >= 1, "must be at least 1"),
        ("min_delta", -1 <= request.min_delta <= 1, "must lie in -1 to 1"),
        ("n_resamples", 100 <= request.n_resamples <= 1_000_000, "must lie in 100 to 1000000"),
        ("min_candidate_pass_at_1", 0 <= request.min_candidate_pass_at_1 <= 1, "must lie in 0 to 1"),
        ("max_candidate_timeout_rate", 0 <= request.max_candidate_timeout_rate <= 1, "must lie in 0 to 1"),
        ("max_candidate_tamper_rate", 0 <= request.max_candidate_tamper_rate <= 1, "must lie in 0 to 1"),
        ("looks", request.looks >= 1, "must be at least 1"),
    )
    for name, holds, reason in checks:
        if not holds:
            raise fail("invalid_field", f"{name} {reason}", fields=[name])


def _paired(
    environments: Sequence[EnvironmentSpec], base: dict[str, Any], candidate: dict[str, Any], request: ComparisonRequest
) -> dict[str, Any]:
    """The evidence that `compare.judge` reads, with one row an environment."""
    k, rows = str(request.compare_k), []
    for spec, b, c in zip(environments, base["per_environment"], candidate["per_environment"], strict=True):
        before, after = b["pass_at_k"][k], c["pass_at_k"][k]
        if before is not None and after is not None:
            cluster = group_key(spec, request.cluster_by)
            rows.append({"environment_id": spec.id, "cluster": cluster, "base": before, "candidate": after})
    unseen = {a.key for side in (request.base_attempts, request.candidate_attempts) for a in side if a.passed is None}
    found: dict[str, Any] = {
        "n": len(rows),
        "n_clusters": len({row["cluster"] for row in rows}),
        "missing_rate": len(unseen) / len(request.base_attempts),
        "per_environment": rows,
        **dict.fromkeys(("effect", "ci_low", "ci_high", "gate", "mcnemar", "noise_floor")),
    }
    if rows:
        found |= _measured(rows, request)
    verdict, reasons = compare.judge(found)
    return {**found, "verdict": str(verdict), "reasons": reasons}


def _measured(rows: list[dict[str, Any]], request: ComparisonRequest) -> dict[str, Any]:
    differences = [row["candidate"] - row["base"] for row in rows]
    clusters = [row["cluster"] for row in rows]
    how: dict[str, Any] = {"n_resamples": request.n_resamples, "seed": request.seed}
    gate = compare.gate_interval(differences, clusters, looks=request.looks, **how)
    interval = stats.Interval(gate["ci_low"], gate["ci_high"])
    if request.looks > 1:
        interval = stats.cluster_bootstrap(differences, clusters, **how)
    bca = stats.cluster_bca(differences, clusters, **how)
    once = max(Counter(a.environment_id for a in request.base_attempts).values()) == 1
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    sigma = stats.noise_floor(_by_attempt(request.base_attempts))
    return {
        "effect": fmean(differences),
        "ci_low": interval.low,
        "ci_high": interval.high,
        "gate": gate,
        "intervals": {"cluster_bca": {"ci_low": bca.low, "ci_high": bca.high}},
        "mcnemar": {"b": lost, "c": gained, "p_value": stats.mcnemar_exact(lost, gained)} if once else None,
        "noise_floor": None if sigma is None else {"sigma": sigma},
        "minimum_detectable_effect": stats.minimum_detectable_effect(len(rows), (gained + lost + 1) / (len(rows) + 2)),
    }


def _by_attempt(attempts: Sequence[Attempt]) -> list[float]:
    """One pass rate for each attempt index, that is for each seed."""
    tries: dict[int, list[bool]] = {}
    for attempt in attempts:
        if attempt.passed is not None:
            tries.setdefault(attempt.attempt_index, []).append(attempt.passed)
    return [fmean(tries[index]) for index in sorted(tries)]


def _comparison_gate(request: ComparisonRequest, found: dict[str, Any], candidate: dict[str, Any]) -> dict[str, Any]:
    summary, effect = candidate["attempt_summary"], found["effect"]
    rate = candidate["pass_at_k"]["1"] or 0.0
    observed = {
        "delta": effect,
        "ci_low": found["ci_low"],
        "candidate_pass_at_1": rate,
        "timeout_rate": summary["timeout_rate"],
        "tamper_rate": summary["tamper_rate"],
        "missing_rate": found["missing_rate"],
    }
    # Without the demand on the interval, more than noise is still asked of whoever wants to ship: a positive effect.
    strict = found["verdict"] != compare.Verdict.IMPROVED and request.require_ci_excludes_zero
    checks = (
        (found["verdict"] == compare.Verdict.INVALID, "; ".join(found["reasons"])),
        (strict and found["verdict"] != compare.Verdict.INVALID, f"{found['verdict']}: {'; '.join(found['reasons'])}"),
        (effect is None or effect <= 0, "the candidate is not better"),
        (effect is not None and effect < request.min_delta, f"the gain is below {request.min_delta:g}"),
        (rate < request.min_candidate_pass_at_1, f"pass@1 is {rate:.4g}, below {request.min_candidate_pass_at_1:g}"),
        (summary["timeout_rate"] > request.max_candidate_timeout_rate, f"{summary['timeout_rate']:.1%} timed out"),
        (summary["tamper_rate"] > request.max_candidate_tamper_rate, f"{summary['tamper_rate']:.1%} tampered"),
    )
    reasons = [reason for failed, reason in checks if failed]
    names = ("min_delta", "min_candidate_pass_at_1", "require_ci_excludes_zero")
    limits = ("max_candidate_timeout_rate", "max_candidate_tamper_rate")
    thresholds = {name: getattr(request, name) for name in (*names, *limits)}
    return {"ship": not reasons, "reasons": reasons, "thresholds": thresholds, "observed": observed}


def spurious_reward_control(request: ControlRequest) -> dict[str, Any]:
    """Is the observed pass rate more than a reward without meaning would give? One-sided, exact, at .05."""
    _check_control(request)
    environments = environments_of(request.environments)
    report = passk_report(environments, request.attempts, sorted({1, *request.k_values}))
    seen = [a for a in request.attempts if a.passed is not None]
    n, k = len(seen), sum(bool(a.passed) for a in seen)
    if request.control_attempts is None:
        control = _random_control(n, k, request)
    else:
        check_attempts(environments, request.control_attempts, (1,), "control_attempts")
        control = _given_control(report, passk_report(environments, request.control_attempts, [1]), request.seed)
    return {
        "schema_version": CONTROL,
        "model_id": request.model_id,
        "observed": {"pass_at_k": report["pass_at_k"], "n_attempts": n, "n_passed": k},
        "control": control,
        "gate": _control_gate(request, report, control),
    }


def _check_control(request: ControlRequest) -> None:
    checks = (
        ("n_trials", 1 <= request.n_trials <= 1_000_000, "must lie in 1 to 1000000"),
        ("random_pass_probability", 0 < request.random_pass_probability < 1, "must lie between 0 and 1"),
        ("min_lift_over_control", -1 <= request.min_lift_over_control <= 1, "must lie in -1 to 1"),
        ("min_observed_pass_at_1", 0 <= request.min_observed_pass_at_1 <= 1, "must lie in 0 to 1"),
        ("max_control_pass_at_1", 0 <= request.max_control_pass_at_1 <= 1, "must lie in 0 to 1"),
    )
    for name, holds, reason in checks:
        if not holds:
            raise fail("invalid_field", f"{name} {reason}", fields=[name])


def _random_control(n: int, k: int, request: ControlRequest) -> dict[str, Any]:
    """Labels drawn with probability p. The p-value is the binomial tail; the trials only picture the spread."""
    import numpy as np
    from scipy.special import bdtrc

    p = request.random_pass_probability
    trials = np.random.default_rng(request.seed).binomial(n, p, request.n_trials) / max(1, n)
    return {
        "kind": "random_labels",
        "pass_at_1": p,
        "p95": float(np.quantile(trials, 0.95)),
        "p_value": float(bdtrc(k - 1, n, p)) if k else 1.0,
        "n": n,
        # With fewer, not even passing all of them is below ALPHA under random labels.
        "needed": math.floor(math.log(ALPHA) / math.log(p)) + 1,
        "unit": "attempts",
    }


def _given_control(report: dict[str, Any], other: dict[str, Any], seed: int) -> dict[str, Any]:
    """Sign-flip test over environments: attempts at one environment are alike, so they are not the sample."""
    pairs = zip(report["per_environment"], other["per_environment"], strict=True)
    lifts = [ours["mean_success"] - theirs["mean_success"] for ours, theirs in pairs if ours["n"] and theirs["n"]]
    return {
        "kind": "given",
        "pass_at_1": other["pass_at_k"]["1"],
        "p_value": stats.sign_flip(lifts, seed=seed),
        "n": len(lifts),
        "missing_rate": other["missing"]["rate"],
        # 1 / 2^5 is the first that is below ALPHA.
        "needed": 5,
        "unit": "environments",
    }


def _control_gate(request: ControlRequest, report: dict[str, Any], control: dict[str, Any]) -> dict[str, Any]:
    rate, other = report["pass_at_k"]["1"] or 0.0, control["pass_at_1"]
    missing = max(report["missing"]["rate"], control.get("missing_rate", 0.0))
    few = f"{control['n']} {control['unit']} cannot tell; {control['needed']} are needed"
    checks = (
        (control["n"] < control["needed"], few),
        (missing > compare.MAX_MISSING, f"{missing:.1%} of the attempts were not observed"),
        (not control["p_value"] < ALPHA, f"p = {control['p_value']:.3g}: chance alone explains it"),
        (rate < request.min_observed_pass_at_1, f"pass@1 is {rate:.4g}, below {request.min_observed_pass_at_1:g}"),
        (
            other is None or other > request.max_control_pass_at_1,
            f"the control passes {other if other is not None else 0:.1%}",
        ),
        (
            other is None or rate - other <= 0 or rate - other < request.min_lift_over_control,
            "no lift over the control",
        ),
    )
    reasons = [reason for failed, reason in checks if failed]
    names = ("min_observed_pass_at_1", "max_control_pass_at_1", "min_lift_over_control")
    lift = None if other is None else rate - other
    observed = {"pass_at_1": rate, "control_pass_at_1": other, "lift": lift, "p_value": control["p_value"]}
    return {
        "ship": not reasons,
        "reasons": reasons,
        "thresholds": {**{name: getattr(request, name) for name in names}, "alpha": ALPHA},
        "observed": observed,
    }
