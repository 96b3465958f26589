"""Rules on the shape of curves: values that are no numbers, loss, gradients, evaluation, speed."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

from bashgym.runs.analysis_facts import Facts, Finding
from bashgym.runs.analysis_series import Series

_SPIKE = 10.0
"""Times the median gradient that counts as a spike."""
_CAUSES = (
    "Likely causes: numeric precision (fp16 overflow: use bf16 or fp32), the attention backend with padding (try "
    "attn_implementation=eager), rows whose labels are all masked (`bashgym data preview`), or learning_rate too high. "
    "The model from this run is not worth evaluating."
)


def finite(facts: Facts) -> Iterator[Finding]:
    """NaN and infinity."""
    flags = facts.metrics.flags
    if not flags:
        return
    step, name, value = flags[0]
    firsts: dict[str, int] = {}
    for at, metric, _ in flags:
        firsts.setdefault(metric, at)
    places = ", ".join(f"{metric} from step {at}" for metric, at in firsts.items())
    yield Finding(
        "blocker",
        "non_finite_values",
        f"{name} {value.lower()} at step {step}: the run diverged there ({places}; {facts.metrics.flagged} value(s))",
        _CAUSES,
        {"metric": name, "step": step, "value": value, "first_steps": firsts, "count": facts.metrics.flagged},
    )


def zero_loss(facts: Facts) -> Iterator[Finding]:
    """A loss of exactly zero is a fault, not success."""
    loss = facts.metrics.get("loss")
    if loss is None or not facts.loss_falls:
        return
    zeros = [bucket for bucket in loss.buckets if bucket.low == bucket.high == 0]
    if len(zeros) < 2 or loss.last != 0:
        return
    broken = any(name == "grad_norm" for _, name, _ in facts.metrics.flags)
    gradient = " while grad_norm is nan" if broken else ""
    yield Finding(
        "blocker",
        "loss_zero",
        f"loss is exactly 0 from step {zeros[0].first_step}{gradient}: nothing is learned",
        _CAUSES,
        {"first_step": zeros[0].first_step, "points": sum(bucket.count for bucket in zeros)},
    )


def loss_trend(facts: Facts) -> Iterator[Finding]:
    """Rise, divergence, flatness and plateau, on windows of a fifth of the curve."""
    loss = facts.metrics.get("loss")
    if loss is None or not facts.loss_falls or len(loss.buckets) < 2:
        return
    head, tail, best = loss.head(), loss.tail(), loss.best()
    seen = {"start": head, "end": tail, "best_window": best, "points": loss.count}
    rise, drop, enough = tail - best, head - best, len(loss.buckets) >= 10
    if tail > head + 0.02 * abs(head):
        yield Finding(
            "warning", "loss_increased", f"loss went from {head:.4g} to {tail:.4g}", "Halve learning_rate.", seen
        )
    if enough and rise > 0.2 * drop and rise > 0.2 * abs(best) + 0.01:
        severity = "blocker" if tail > 1.3 * head else "warning"
        message = f"loss ended at {tail:.4g}, well above its best window {best:.4g}: the run diverged"
        yield Finding(severity, "loss_diverged", message, "Halve learning_rate, or take an earlier checkpoint.", seen)
    elif enough and head > 0.05 and drop < 0.02 * head:
        message = f"loss stayed at {head:.4g}: nothing was learned"
        yield Finding(
            "warning", "loss_flat", message, "Check the mask with `bashgym data preview`; double learning_rate.", seen
        )
    else:
        yield from _plateau(loss)


def _plateau(loss: Series) -> Iterator[Finding]:
    curve = loss.means()
    third = len(curve) // 3
    if third < 7:
        return
    start, middle, end = fmean(curve[:third]), fmean(curve[third:-third]), fmean(curve[-third:])
    if start - middle > 0.05 * abs(start) and middle - end < 0.01 * abs(middle):
        yield Finding(
            "info",
            "loss_plateau",
            f"loss stopped falling: {middle:.4g} in the middle third, {end:.4g} in the last",
            "Fewer epochs would do; more varied rows help more than more steps.",
            {"first_third": start, "middle_third": middle, "last_third": end},
        )


def gradients(facts: Facts) -> Iterator[Finding]:
    """Spikes and vanished gradients."""
    series = facts.metrics.get("grad_norm")
    if series is None or len(series.buckets) < 5:
        return
    middle = series.median()
    spikes = [bucket for bucket in series.buckets if bucket.high > _SPIKE * middle > 0]
    if spikes:
        worst = max(spikes, key=lambda bucket: bucket.high)
        yield Finding(
            "warning",
            "gradient_spikes",
            f"grad_norm reached {worst.high:.4g} at step {worst.high_step}; its median is {middle:.4g}",
            "Look at the rows of that step; lower learning_rate or max_grad_norm.",
            {"median": middle, "max": worst.high, "steps": [bucket.high_step for bucket in spikes[:5]]},
        )
    if series.tail() < 1e-8 and facts.loss_falls:
        never = max(bucket.high for bucket in series.buckets) < 1e-8
        yield Finding(
            "blocker" if never else "warning",
            "gradient_vanished",
            "grad_norm is zero" + (" throughout: no weight was trained" if never else " at the end"),
            "Check that labels are not all masked and that the adapter's modules are trainable.",
            {"end": series.tail()},
        )


def evaluation(facts: Facts) -> Iterator[Finding]:
    """Evaluation loss against its own best and against the training loss."""
    held, loss = facts.metrics.get("eval_loss"), facts.metrics.get("loss")
    if held is None:
        if facts.metrics.points and facts.loss_falls:
            message = "no eval_loss was reported: memorising cannot be told from learning"
            yield Finding("info", "no_eval_loss", message, "Set eval_split or eval_dataset_path.")
        return
    best, end = held.best(), held.tail()
    if held.count >= 3 and end > 1.05 * best:
        lowest = min(held.buckets, key=lambda bucket: bucket.low)
        yield Finding(
            "warning",
            "eval_loss_rising",
            f"eval_loss rose from {best:.4g} (lowest at step {lowest.last_step}) to {end:.4g}: it overfits",
            "Stop at the minimum: fewer epochs, or more varied rows.",
            {"best": best, "best_step": lowest.last_step, "last": held.last},
        )
    if loss is not None and facts.loss_falls:
        trained = loss.tail(0.1)
        if held.last - trained > 0.5 * max(trained, 0.1):
            yield Finding(
                "warning",
                "eval_train_gap",
                f"eval_loss {held.last:.4g} is far above the training loss {trained:.4g}",
                "Look for duplicates within the training rows; add varied rows; fewer epochs.",
                {"eval_loss": held.last, "loss": trained},
            )


def throughput(facts: Facts) -> Iterator[Finding]:
    """Speed that broke down."""
    series = facts.metrics.get("tokens_per_second")
    if series is None or len(series.buckets) < 10:
        return
    curve = series.means()
    early, late = median(curve[: len(curve) // 2]), median(curve[-max(1, len(curve) // 5) :])
    if late < 0.5 * early:
        yield Finding(
            "warning",
            "throughput_regression",
            f"{late:.4g} tokens/s at the end, {early:.4g} in the first half",
            "Look for swapping, a shared device or a much longer batch.",
            {"early": early, "late": late},
        )


def against_baseline(facts: Facts) -> Iterator[Finding]:
    """The same quantities of another run."""
    if facts.baseline is None:
        return
    mine, theirs = compare(facts), compare(facts.baseline)
    known, other = facts.manifest.get("dataset"), facts.baseline.manifest.get("dataset")
    if isinstance(known, dict) and isinstance(other, dict) and known.get("digest") != other.get("digest"):
        message = f"{facts.baseline.run_id} trained on other data: losses are not comparable"
        yield Finding("info", "baseline_not_comparable", message, "Change one thing at a time.")
        return
    name = "eval_loss" if mine["eval_loss"] is not None and theirs["eval_loss"] is not None else "loss"
    ours, base = mine[name], theirs[name]
    if ours is not None and base is not None and facts.loss_falls and ours > 1.05 * base:
        message = f"{name} ended at {ours:.4g}, that of {facts.baseline.run_id} at {base:.4g}"
        yield Finding(
            "warning", "worse_than_baseline", message, "Compare the two requests field by field.", {name: ours}
        )
    speed, before = mine["tokens_per_second"], theirs["tokens_per_second"]
    if speed is not None and before is not None and speed < 0.7 * before:
        message = f"{speed:.4g} tokens/s, {before:.4g} in {facts.baseline.run_id}"
        yield Finding("warning", "slower_than_baseline", message, "Compare hardware, batch and sequence length.")


def compare(facts: Facts) -> dict[str, float | None]:
    """{loss, eval_loss, tokens_per_second} at the end of a run."""
    loss, held, speed = (facts.metrics.get(name) for name in ("loss", "eval_loss", "tokens_per_second"))
    return {
        "loss": loss.tail() if loss else None,
        "eval_loss": held.last if held else None,
        "tokens_per_second": speed.median() if speed else None,
    }


RULES = (finite, zero_loss, loss_trend, gradients, evaluation, throughput, against_baseline)
