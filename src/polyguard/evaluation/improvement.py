"""Whether one policy is better than another: `improvement_report.json`. Same scenarios, same measures, an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyguard import DISCLAIMER
from polyguard.evaluation.play import EpisodeRow, Scenario, seeds_digest
from polyguard.evaluation.report import SCHEMA_VERSION, paired

TOLERANCES = {
    "legality_rate": ("higher", 0.01),
    "success_rate": ("higher", 0.02),
    "avg_return": ("higher", 0.01),
    "process_fidelity": ("higher", 0.03),
    "failure_visibility": ("higher", 0.03),
    "timeout_rate": ("lower", 0.01),
    "exploit_rate": ("lower", 0.01),
}
"""metric -> (which way is better, by how much it may get worse)."""


def improvement(
    baseline: Sequence[EpisodeRow],
    candidate: Sequence[EpisodeRow],
    chosen: Sequence[Scenario],
    *,
    baseline_label: str,
    candidate_label: str,
) -> dict[str, Any]:
    """The report. `improved`: the reward's interval lies above zero, and nothing else got worse beyond its tolerance."""
    metrics: dict[str, Any] = {}
    reasons: list[str] = []
    for name, found in paired(baseline, candidate, ("avg_reward", *TOLERANCES)).items():
        direction, tolerance = TOLERANCES.get(name, ("higher", 0.0))
        worse_by = -found["delta"] if direction == "higher" else found["delta"]
        metrics[name] = {**found, "direction": direction, "tolerance": tolerance, "regressed": worse_by > tolerance}
        if worse_by > tolerance:
            reasons.append(f"{name} got worse by {worse_by:.4f}, more than {tolerance:g}")
    reward = metrics["avg_reward"]
    if reward["ci_low"] <= 0:
        reasons.insert(0, f"the interval of the reward's difference reaches down to {reward['ci_low']:.4f}")
    return {
        "schema_version": SCHEMA_VERSION,
        "disclaimer": DISCLAIMER,
        "baseline_label": baseline_label,
        "candidate_label": candidate_label,
        "n": reward["n"],
        "metrics": metrics,
        "improved": not reasons,
        "reasons": reasons,
        "eval_split": chosen[0].split,
        "seeds_sha256": seeds_digest(chosen),
    }
