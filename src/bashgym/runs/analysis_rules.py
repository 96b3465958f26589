"""Rules on what a run reported and has: its state, its method's metrics, thresholds, gates, bundles."""

from __future__ import annotations

from collections.abc import Iterator

from bashgym.evidence.inspection import number, part
from bashgym.methods import distillation
from bashgym.methods.registry import METHODS, metric_aliases, must_emit
from bashgym.methods.spec import Metric
from bashgym.runs.analysis_facts import Facts, Finding

_EVALUATE = "Compare the final model with its base on a held-out suite: `bashgym eval run`."
_CODES = {
    "timeout_rate": "high_timeout_rate",
    "tamper_rate": "tamper_detected",
    "verifier_error_rate": "verifier_errors_elevated",
    "oom_count": "oom_seen",
    "frac_reward_zero_std": "many_zero_std_groups",
    "entropy": "entropy_collapsed",
    "session_distillation_masked_tokens": "session_distillation_zero_masked_tokens",
}
"""Metric -> code of its threshold finding; `<metric>_out_of_range` for the rest."""
_WORLD = ("echo_loss", "rwml_pass_rate", "embedding_distance_mean", "exit_code_accuracy", "test_result_accuracy")


def run_state(facts: Facts) -> Iterator[Finding]:
    """How the run stands."""
    status = facts.state.get("status")
    if status == "failed":
        error = part(facts.state, "error")
        message = f"the run failed: {error.get('message') or facts.state.get('message') or 'no reason recorded'}"
        hint = str(error.get("hint") or "training.log has its last words.")
        yield Finding("blocker", "run_failed", message, hint, {"code": error.get("code")})
    elif status == "cancelled":
        yield Finding("warning", "run_cancelled", "the run was stopped before its end", "Train it to the end.")
    elif status not in (None, "completed"):
        yield Finding(
            "info", "run_in_progress", f"the run is {status}; what follows is preliminary", "Look again later."
        )


def reporting(facts: Facts) -> Iterator[Finding]:
    """Whether there are metrics at all, whole, and those that the method must report."""
    metrics = facts.metrics
    if not metrics.points:
        yield Finding("missing", "no_metrics", "there is no metric point", "Read training.log: did the trainer start?")
    if metrics.skipped:
        message = f"{metrics.skipped} line(s) of the metrics are torn or no points; they were left out"
        yield Finding("info", "metrics_lines_skipped", message, "Harmless after a kill; otherwise look at the file.")
    if facts.method is None or not metrics.points:
        return
    aliases = metric_aliases()
    seen = {*metrics.series, *(aliases.get(name, name) for _, name, _ in metrics.flags)}
    absent = [name for name in must_emit(facts.method, facts.request) if aliases.get(name, name) not in seen]
    if absent:
        message = f"a {facts.method.name} run reports {', '.join(absent)}; this one did not"
        hint = "Without them the method cannot be judged: look at the trainer's logging and at training.log."
        yield Finding("missing", "missing_method_metrics", message, hint, {"absent": absent})


def objective(facts: Facts) -> Iterator[Finding]:
    """What the run must not be taken for."""
    if distillation.objective(facts.request) == distillation.TEXT_ONLY:
        message = f"objective: {distillation.TEXT_ONLY}; no teacher's logits were matched"
        hint = "Judge it as SFT; name a teacher_model with the student's vocabulary to distil."
        yield Finding("info", distillation.TEXT_ONLY, message, hint)


def thresholds(facts: Facts) -> Iterator[Finding]:
    """The registry's starter thresholds on the last value of every metric."""
    known: dict[str, Metric] = {}
    for method in [facts.method] if facts.method else METHODS.values():
        for metric in method.metrics:
            known.setdefault(metric.name, metric)
    for name, metric in known.items():
        value = facts.metrics.last(name)
        if value is None:
            continue
        for severity, above, below in (
            ("blocker", metric.block_above, metric.block_below),
            ("warning", metric.warn_above, metric.warn_below),
        ):
            if (above is not None and value > above) or (below is not None and value < below):
                limit = above if above is not None and value > above else below
                code = _CODES.get(name, f"{name}_out_of_range")
                message = (
                    f"{name} is {value:.4g} ({'above' if limit == above else 'below'} {limit:.3g}): {metric.means}"
                )
                yield Finding(severity, code, message, metric.action, {"last": value, "limit": limit})
                break


def rewards(facts: Facts) -> Iterator[Finding]:
    """Reward without spread, and reward that does not carry over to held-out tasks."""
    spread = facts.metrics.last("reward_std")
    if spread is not None and spread <= 0:
        message = "reward_std is 0: every advantage is zero and nothing is learned"
        yield Finding("warning", "zero_reward_variance", message, "Mix easier and harder prompts.", {"last": spread})
    masked = facts.metrics.last("session_distillation_masked_tokens")
    if masked is not None and masked <= 0:
        message = "no token was trained: the mask covers nothing"
        code = "session_distillation_zero_masked_tokens"
        yield Finding("blocker", code, message, "Check target_span and max_seq_length.", {"last": masked})
    reward = facts.metrics.get("reward")
    if reward is None or len(reward.buckets) < 2 or reward.tail() <= reward.head():
        return
    effect = number(part(part(facts.release or {}, "release_gate"), "observed").get("effect"))
    held = facts.metrics.get("pass_at_1")
    fell = held is not None and len(held.buckets) > 1 and held.tail() < held.head()
    if fell or (effect is not None and effect < 0):
        yield Finding(
            "blocker",
            "reward_up_heldout_down",
            f"reward rose from {reward.head():.4g} to {reward.tail():.4g} while held-out results fell: it is gamed",
            "Run the canaries and read samples.jsonl; do not promote.",
            {"effect": effect},
        )


def truncation(facts: Facts) -> Iterator[Finding]:
    """Rows and completions that were cut."""
    tokens, rows = part(facts.preflight, "tokens"), number(facts.preflight.get("valid_rows"))
    cut, empty = number(tokens.get("truncated_rows")), number(tokens.get("zero_supervised_rows"))
    if rows and cut and cut / rows > 0.05:
        message = f"{cut:.0f} of {rows:.0f} rows were truncated"
        yield Finding("warning", "rows_truncated", message, "Raise max_seq_length or shorten the rows.", {"rows": cut})
    if empty:
        message = f"{empty:.0f} row(s) have no trained token left"
        yield Finding(
            "warning", "rows_without_target", message, "Raise max_seq_length or drop the rows.", {"rows": empty}
        )
    clipped = facts.metrics.last("truncated_ratio")
    if clipped is not None and clipped > 0.25:
        message = f"{clipped:.0%} of the completions ran into the length limit"
        yield Finding("warning", "completions_truncated", message, "Raise the limit; check the stop token is learned.")


def release(facts: Facts) -> Iterator[Finding]:
    """Held-out evidence and its gate."""
    if not facts.heldout:
        yield Finding("missing", "missing_heldout_evidence", "no held-out task was measured", _EVALUATE)
    document = facts.release
    if document is None:
        return
    if document.get("simulated"):
        message = "the release evidence is simulated and satisfies nothing"
        yield Finding("blocker", "release_evidence_simulated", message, _EVALUATE)
    if facts.run_id and document.get("run_id") not in (None, facts.run_id):
        message = f"the release evidence is about {document.get('run_id')}"
        yield Finding("blocker", "release_evidence_other_run", message, _EVALUATE)
    if document.get("ship") is not True:
        reasons = part(document, "release_gate").get("reasons")
        why = "; ".join(map(str, reasons)) if isinstance(reasons, list) and reasons else "it does not say ship"
        yield Finding("blocker", "release_gate_blocked", f"the release gate says no: {why}", _EVALUATE)
    if part(document, "world_model_quality").get("signal") == "needs_attention":
        message = "world-model metrics need attention"
        code = "world_model_quality_needs_attention"
        yield Finding("warning", code, message, "Inspect distances and observations; it promotes nothing by itself.")


def bundles(facts: Facts) -> Iterator[Finding]:
    """Smoke bundle and replay."""
    smoke, replay = facts.smoke, facts.replay
    build = "`bashgym training smoke-bundle` names the failed check."
    if smoke and not smoke["contract_ready"]:
        yield Finding("blocker", "smoke_bundle_contract_blocked", "the smoke bundle's contract is not met", build)
    elif smoke and not smoke["optimizer_ready"]:
        message = "the replay has no training log probabilities"
        yield Finding("warning", "smoke_bundle_needs_train_logprob_replay", message, "Enrich the replay.")
    elif smoke and not smoke["backend_launch_ready"]:
        yield Finding("warning", "smoke_bundle_needs_backend", "no training backend can take the bundle", build)
    if replay is None:
        return
    if not replay["records"]:
        yield Finding("missing", "empty_replay", "the replay has no record", "Record rollouts first.")
    elif not replay["world_model"]:
        message = "the replay has no world-model payload"
        hint = "Only needed for world-model diagnostics: record with include_world_model_replay."
        yield Finding("missing", "missing_world_model_replay", message, hint)
    elif not has_world_quality(facts):
        message = "world-model data is there, its metrics are not"
        yield Finding("missing", "world_model_quality_missing", message, "Report echo_loss or rwml_pass_rate.")


def has_world_quality(facts: Facts) -> bool:
    """Whether any world-model metric was reported."""
    return bool(part(facts.release or {}, "world_model_quality")) or any(facts.metrics.get(name) for name in _WORLD)


RULES = (run_state, reporting, objective, thresholds, rewards, truncation, release, bundles)
