"""The reward: 13 components, 4 channels, the total of a step under a profile, and the return of an episode.

Weights stand in `configs/rewards.json`. Nothing is ever earned by length or by the estimates that an agent is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from bashgym.core.errors import fail
from polyguard.env.types import REVIEWS, Action, Candidate, Observation, Problem, Transition, Verdict
from polyguard.knowledge import SEVERITY_WEIGHT

LOW, HIGH = 0.001, 0.999
COMPONENTS = (
    "format_compliance_score",
    "candidate_alignment_score",
    "legality_score",
    "safety_delta_score",
    "burden_improvement_score",
    "disease_stability_score",
    "dosing_quality_score",
    "abstention_quality_score",
    "efficiency_score",
    "process_fidelity_score",
    "explanation_grounding_score",
    "anti_cheat_score",
    "uncertainty_calibration_score",
)
CHANNELS: dict[str, tuple[str, ...]] = {
    "safety_legality": ("legality_score", "safety_delta_score", "anti_cheat_score"),
    "clinical_improvement": ("burden_improvement_score", "disease_stability_score"),
    "dosing_quality": ("dosing_quality_score", "abstention_quality_score", "uncertainty_calibration_score"),
    "process_integrity": (
        "format_compliance_score",
        "candidate_alignment_score",
        "efficiency_score",
        "process_fidelity_score",
        "explanation_grounding_score",
    ),
}
GATE = 0.25
"""What is left of a step that was illegal, unreadable or a hard exploit."""


def q(value: float) -> float:
    """round(clip(x, 0.001, 0.999), 3)."""
    return round(min(HIGH, max(LOW, value)), 3)


@cache
def profiles() -> dict[str, dict[str, float]]:
    """Profile -> component -> weight; each sums to 1."""
    raw = resources.files("polyguard.configs").joinpath("rewards.json").read_bytes()
    found: dict[str, dict[str, float]] = msgspec.json.decode(raw, type=dict[str, dict[str, float]])
    for name, weights in found.items():
        if set(weights) != set(COMPONENTS) or abs(sum(weights.values()) - 1) > 1e-9 or min(weights.values()) < 0:
            raise fail("invalid_field", f"rewards.json: {name} has to weigh the 13 components to 1", fields=[name])
    return found


def weights(profile: str) -> dict[str, float]:
    """The weights of a profile; `invalid_field`."""
    if profile not in profiles():
        raise fail("invalid_field", f"there is no reward profile {profile[:40]!r}", fields=["profile"])
    return profiles()[profile]


def components(
    *,
    observation: Observation,
    action: Action | None,
    candidate: Candidate | None,
    verdict: Verdict,
    transition: Transition,
    parsed_format: float,
    anti_cheat: Sequence[str],
    steps_done: int,
    max_steps: int,
) -> dict[str, float]:
    """The 13, each quantised. `observation` is the one that was answered; `steps_done` counts this step."""
    change = transition.risk_before - transition.risk_after
    idle = candidate is not None and candidate.action_type == "KEEP_REGIMEN" and transition.risk_before > 0.2
    met, required = transition.preconditions
    values = (
        parsed_format,
        float(candidate is not None and _echoes(action, candidate)),
        0.3 if verdict.legal and verdict.dominated else float(verdict.legal),
        0.5 + 0.5 * math.tanh(4 * (change - 0.1 * idle)),
        0.5 + min(0.5, max(-0.5, transition.burden_before - transition.burden_after)),
        1 - transition.severity_after - 0.3 * transition.newly_uncovered,
        _dosing(transition.dose_errors),
        _abstention(candidate, transition),
        1 - steps_done / (max_steps + 1),
        met / required if required else 1.0,
        grounding(action, transition.supporting_facts),
        _honest(anti_cheat),
        _calibration(action, verdict, change),
    )
    return {name: q(value) for name, value in zip(COMPONENTS, values, strict=True)}


def _echoes(action: Action | None, candidate: Candidate) -> bool:
    expected = action.expected_action_type if action else None
    return action is not None and expected in (None, candidate.action_type)


def _dosing(errors: Sequence[float]) -> float:
    if not errors:
        return 0.5
    return sum(min(1.0, max(0.0, 1 - error / math.log(4))) for error in errors) / len(errors)


def _abstention(candidate: Candidate | None, transition: Transition) -> float:
    if candidate is not None and candidate.action_type in REVIEWS:
        return 1.0 if transition.review_justified else 0.1
    return 0.3 if transition.review_warranted else 0.7


def grounding(action: Action | None, supporting: Iterable[str]) -> float:
    """F1 of the cited facts against those that speak for the choice; 0.2 where nothing is said. Words count nothing."""
    cited, right = set(action.cited_facts if action else ()), set(supporting)
    if not cited:
        return 0.0 if action is not None and action.rationale.strip() else 0.2
    return 2 * len(cited & right) / (len(cited) + len(right))


def _honest(flags: Sequence[str]) -> float:
    if any(flag.startswith("hard:") for flag in flags):
        return 0.0
    return 1 - 0.5 * len(flags)


def _calibration(action: Action | None, verdict: Verdict, change: float) -> float:
    confidence = action.confidence if action else 0.5
    return 1 - (confidence - float(verdict.legal and change > 1e-9)) ** 2


def channels(values: Mapping[str, float]) -> dict[str, float]:
    """The plain averages of the four channels."""
    return {name: round(sum(values[c] for c in parts) / len(parts), 3) for name, parts in CHANNELS.items()}


def total(values: Mapping[str, float], profile: str, *, verdict: Verdict, readable: bool, hard: bool) -> float:
    """q(sum of weight x component), a quarter of it if illegal, unreadable or a hard exploit."""
    value = sum(weight * values[name] for name, weight in weights(profile).items())
    return q(value if verdict.legal and readable and not hard else GATE * value)


def outcome(
    start: Sequence[Problem],
    open_ids: Iterable[str],
    *,
    destabilised: bool,
    n_new_major: int,
    open_share: float = 1.0,
) -> float:
    """Severity-weighted share of the problems of the start that are gone, less what went wrong; 0..1.

    `open_share`: how much of an open problem counts as open.
    """
    still = set(open_ids)
    whole = sum(SEVERITY_WEIGHT[item.severity] for item in start)
    gone = sum(SEVERITY_WEIGHT[item.severity] * (1 - open_share * (item.id in still)) for item in start)
    share = gone / whole if whole else 1.0
    return min(1.0, max(0.0, share - 0.5 * destabilised - 0.25 * n_new_major))


def episode_return(reached: float, step_totals: Sequence[float], efficiency: float) -> float:
    """R_ep = 0.6 outcome + 0.3 mean step total + 0.1 efficiency."""
    mean = sum(step_totals) / len(step_totals) if step_totals else 0.0
    return q(0.6 * reached + 0.3 * mean + 0.1 * efficiency)


def as_columns(values: Mapping[str, float]) -> dict[str, Any]:
    """The components in their order."""
    return {name: values[name] for name in COMPONENTS}
