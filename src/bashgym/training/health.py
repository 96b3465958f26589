"""Rules that tell a reward that cannot teach, or a policy that drifts, from the logged points of a run. Pure, torch-free.

Each rule speaks once. All of it follows from metrics.jsonl, so a resumed run that reads it back judges as an
undisturbed one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

WINDOW = 5
"""Logged points that a rule looks at."""
FIRST = 10
"""Logged points that count as the beginning of a run."""

Point = Mapping[str, object]


@dataclass(frozen=True)
class Alarm:
    """A broken rule."""

    code: str
    message: str


@dataclass
class RewardHealth:
    """Feeds points, one a logged step, to every rule that has not spoken yet."""

    points: list[Point] = field(default_factory=list)
    """The first and the last ones; no rule needs those between."""
    spoken: set[str] = field(default_factory=set)

    def add(self, point: Point) -> list[Alarm]:
        """The rules that this point breaks for the first time. Points that are no training step are passed over."""
        if "frac_reward_zero_std" not in point:
            return []
        self.points.append(point)
        del self.points[FIRST:-FIRST]
        found = [Alarm(code, message) for code, rule in RULES.items() if (message := rule(self.points))]
        new = [alarm for alarm in found if alarm.code not in self.spoken]
        self.spoken.update(alarm.code for alarm in new)
        return new


def _series(points: Sequence[Point], name: str) -> list[float]:
    return [float(value) for point in points if isinstance(value := point.get(name), int | float)]


def _no_contrast(points: Sequence[Point]) -> str:
    shares = _series(points, "frac_reward_zero_std")[-WINDOW:]
    if len(shares) < WINDOW or min(shares) < 0.95:
        return ""
    return (
        f"at least 95 % of the groups had equal rewards in the last {WINDOW} logged steps: nothing is learned; "
        "mix easier and harder prompts, raise grpo_temperature or grpo_group_size, or do SFT first"
    )


def _verifier_errors(points: Sequence[Point]) -> str:
    rates = _series(points, "verifier_error_rate")[-WINDOW:]
    if len(rates) < WINDOW or fmean(rates) <= 0.2:
        return ""
    return f"the verifier itself failed for {fmean(rates):.0%} of the answers; mend it: samples.jsonl has each one's detail"


def _kl_drift(points: Sequence[Point]) -> str:
    first, last = _ends(points, "kl")
    if last <= max(10 * first, 1.0):
        return ""
    return (
        f"KL to the reference went from {first:.3g} to {last:.3g}; lower learning_rate or raise grpo_beta, and check "
        "held-out results before you trust the reward"
    )


def _entropy_collapse(points: Sequence[Point]) -> str:
    first, last = _ends(points, "entropy")
    if not first or last >= 0.1 * first:
        return ""
    return (
        f"entropy fell from {first:.3g} to {last:.3g} nats: the policy has nearly one answer left; raise "
        "grpo_temperature or grpo_ratio_clip_max, or stop earlier"
    )


def _length_blow_up(points: Sequence[Point]) -> str:
    first, last = _ends(points, "completions/mean_length")
    if not first or last <= 3 * first:
        return ""
    return (
        f"answers grew from {first:.0f} to {last:.0f} tokens on average; set overlong_buffer, or use grpo_loss_type "
        "dr_grpo, which does not favour length"
    )


def _cut_without_reward(points: Sequence[Point]) -> str:
    early = points[:FIRST]
    pairs = [(p.get("completions/clipped_ratio"), p.get("reward")) for p in early]
    cut = [isinstance(c, int | float) and c >= 0.9 and isinstance(r, int | float) and r <= 0 for c, r in pairs]
    if len(cut) < 3 or not all(cut):
        return ""
    return (
        f"nine answers in ten were cut at max_completion_length and none was rewarded in the first {len(cut)} logged "
        "steps; raise max_completion_length, or train on SFT rows that end with the stop token first"
    )


def _ends(points: Sequence[Point], name: str) -> tuple[float, float]:
    """Medians of the first and of the last `WINDOW` values; zeros while the two overlap."""
    values = _series(points, name)
    return (median(values[:WINDOW]), median(values[-WINDOW:])) if len(values) >= 2 * WINDOW else (0.0, 0.0)


RULES: dict[str, Callable[[Sequence[Point]], str]] = {
    "no_reward_contrast": _no_contrast,
    "verifier_errors": _verifier_errors,
    "kl_drift": _kl_drift,
    "entropy_collapse": _entropy_collapse,
    "length_blow_up": _length_blow_up,
    "answers_cut": _cut_without_reward,
}
"""Code -> rule: the message, or empty while it holds."""
