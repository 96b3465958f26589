"""pass@k over environments from attempts: unbiased, with its interval, and never from a filtered set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals import stats
from bashgym.evals.wire import Attempt, check_attempts

SCHEMA = "bashgym.environment_passk.v1"
DEFAULT_K = (1, 4, 8)
ZERO_STD = 1e-8
"""Groups whose rewards differ less than this teach nothing (spec of the zero-std filter)."""


def passk_report(
    environments: Sequence[EnvironmentSpec], attempts: Sequence[Attempt], k_values: Sequence[int] = DEFAULT_K
) -> dict[str, Any]:
    """The report `bashgym.environment_passk.v1`. Errors: `attempts_invalid`, `invalid_field`.

    Attempts that were not observed count nowhere; an environment with fewer than k observed ones is left out of pass@k and
    named in `warnings`. `filtered` shows the value without zero-std groups, which is biased and never recorded.
    """
    check_attempts(environments, attempts, k_values)
    by_id: dict[str, list[Attempt]] = {spec.id: [] for spec in environments}
    for attempt in attempts:
        by_id[attempt.environment_id].append(attempt)
    rows = [_environment(spec, by_id[spec.id], k_values) for spec in environments]
    ks = sorted(k_values)
    missing = [a.key for a in attempts if a.passed is None]
    seen = [row["mean_success"] for row in rows if row["n"]]
    return {
        "schema_version": SCHEMA,
        "k_values": ks,
        "n_environments": len(environments),
        "n_attempts": len(attempts),
        "pass_at_k": {str(k): _mean(row["pass_at_k"][str(k)] for row in rows) for k in ks},
        "intervals": {str(k): _interval(rows, k) for k in ks},
        "mean_success_rate": fmean(seen) if seen else None,
        "per_environment": rows,
        "attempt_summary": summary(attempts),
        "missing": {
            "n": len(missing),
            "rate": len(missing) / len(attempts),
            "attempts": [list(key) for key in missing[:50]],
        },
        "filtered": _filtered(rows, ks),
        "warnings": _warnings(rows, ks, missing),
    }


def summary(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Shares and means over the observed attempts."""
    seen = [a for a in attempts if a.passed is not None]
    n = len(seen) or 1
    status = Counter(a.verifier_status or ("passed" if a.passed else "failed") for a in seen)
    return {
        "n_observed": len(seen),
        "timeout_rate": sum(a.timeout or a.verifier_status == "timeout" for a in seen) / n,
        "tamper_rate": status["tampered"] / n,
        "verifier_error_rate": status["reward_error"] / n,
        **{
            f"mean_{name}": sum(getattr(a, name) for a in seen) / n
            for name in ("tool_calls", "tokens", "action_tokens", "observation_tokens")
        },
        "verifier_status_distribution": dict(sorted(status.items())),
    }


def _environment(spec: EnvironmentSpec, attempts: list[Attempt], k_values: Sequence[int]) -> dict[str, Any]:
    seen = [a for a in attempts if a.passed is not None]
    n, c = len(seen), sum(bool(a.passed) for a in seen)
    rewards = [a.reward for a in seen]
    spread = max(rewards) - min(rewards) if rewards else 0.0
    return {
        "environment_id": spec.id,
        "domain": spec.domain,
        "n": n,
        "c": c,
        "mean_success": c / n if n else None,
        "mean_reward": fmean(rewards) if rewards else None,
        "zero_std": bool(seen) and spread <= ZERO_STD,
        "pass_at_k": {str(k): stats.pass_at_k(n, c, k) if n >= k else None for k in sorted(k_values)},
    }


def _interval(rows: Sequence[dict[str, Any]], k: int) -> dict[str, Any] | None:
    """95 % bootstrap interval of the mean: over domains where there are two, else over environments."""
    used = [row for row in rows if row["pass_at_k"][str(k)] is not None]
    if len(used) < 2:
        return None
    domains = {row["domain"] for row in used}
    groups = [row["domain"] if len(domains) > 1 else row["environment_id"] for row in used]
    found = stats.cluster_bootstrap([row["pass_at_k"][str(k)] for row in used], groups, least=0.0)
    unit = "domain" if len(domains) > 1 else "environment"
    return {"ci_low": found.low, "ci_high": found.high, "n_clusters": len(set(groups)), "unit": unit}


def _filtered(rows: Sequence[dict[str, Any]], ks: Sequence[int]) -> dict[str, Any]:
    kept = [row for row in rows if row["n"] and not row["zero_std"]]
    return {
        "n_environments": len(kept),
        "n_attempts": sum(row["n"] for row in kept),
        "pass_at_k": {str(k): _mean(row["pass_at_k"][str(k)] for row in kept) for k in ks},
        "warning": "without the environments that always or never pass: biased, for choosing training prompts only",
    }


def _warnings(rows: Sequence[dict[str, Any]], ks: Sequence[int], missing: Sequence[tuple[str, int]]) -> list[str]:
    found = [f"{len(missing)} attempts were not observed"] if missing else []
    if short := [row["environment_id"] for row in rows if row["n"] < max(ks)]:
        found.append(f"fewer observed attempts than {max(ks)}: {', '.join(short[:10])}")
    return found


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
