"""JSON documents that a card binds: plan, source manifest, reward eval, and the kinds that `kinds` has rules for."""

from __future__ import annotations

from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.evals.reward_eval import SCHEMA as REWARD_EVAL
from bashgym.evals.reward_eval import evaluate
from bashgym.evals.smoke import SCHEMA as SMOKE
from bashgym.evidence import manifests
from bashgym.evidence.card import PATH_FIELDS
from bashgym.evidence.checks.kinds import ROW_RULES, check_kind, check_replay
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Gate
from bashgym.evidence.inspection import number, score_path
from bashgym.evidence.recount import is_about, unwrapped
from bashgym.methods import registry

MIN_PAIR_ACCURACY = 0.6
"""Below it a reward model is not to be used."""


def check_documents(ctx: Context) -> None:
    """Every document of the card."""
    _check_plan(ctx)
    _check_sources(ctx)
    _check_reward_eval(ctx)
    _check_smoke_bundle(ctx)
    for kind in sorted(ctx.files.keys() - PATH_FIELDS.keys()):
        _check_other(ctx, kind)


def load(ctx: Context, kind: str, gate: Gate, code: str) -> dict[str, Any] | None:
    """The JSON object of an intact entry; a finding and None if it is not one."""
    path = ctx.files.get(kind)
    if path is None:
        return None
    try:
        return read_object(path)
    except BashGymError as error:
        ctx.book.fail(gate, code, error.message, PATH_FIELDS.get(kind, kind), path=str(path))
        return None


def is_simulated(document: dict[str, Any]) -> bool:
    """Whether a document says that it was not measured."""
    return bool(document.get("simulated") or document.get("is_simulation"))


def _check_plan(ctx: Context) -> None:
    plan = load(ctx, "training_plan", Gate.SOURCES, "invalid_training_plan_json")
    if plan is None:
        return
    try:
        planned = registry.get(str(plan.get("strategy", ""))).name
    except BashGymError:
        planned = ""
    if ctx.method and planned != ctx.method.name:
        message = f"the plan is for {plan.get('strategy')!r}, the card for {ctx.card.training_method}"
        ctx.book.fail(Gate.SOURCES, "training_plan_strategy_mismatch", message, "training_plan_path")
    else:
        ctx.accepted.add("training_plan")


def _check_sources(ctx: Context) -> None:
    manifest = load(ctx, "source_manifest", Gate.SOURCES, "invalid_source_manifest_json")
    if manifest is None:
        return
    code, message = _source_fault(manifest, ctx.run.get("dataset_digest"))
    if code:
        ctx.book.fail(Gate.SOURCES, code, message, "source_manifest_path")
        return
    if manifest["use_verdict"] == "override":
        reason = str(manifest["override_reason"])[:400]
        ctx.book.warn(Gate.SOURCES, "source_manifest_override", reason, "source_manifest_path")
    ctx.accepted.add("source_manifest")


def _source_fault(manifest: dict[str, Any], trained: object) -> tuple[str, str]:
    """(code, message) of what is wrong with a source manifest for a run that trained on the file of that digest."""
    sources, verdict = manifest.get("sources"), manifest.get("use_verdict")
    usable = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    known = manifest.get("schema_version") == "bashgym.source_manifest.v1"
    reason = str(manifest.get("override_reason") or "").strip()
    digests = {source.get("sha256") for source in usable}
    faults = (
        (not known or not usable, "invalid_source_manifest_schema", "not a bashgym.source_manifest.v1 with sources"),
        (not verdict, "missing_source_manifest_use_verdict", "use_verdict is missing"),
        (verdict not in ("allowed", "override"), "source_manifest_use_blocked", f"use_verdict is {verdict!r}"),
        (
            verdict == "override" and not reason,
            "source_manifest_override_reason_missing",
            "an override needs its override_reason",
        ),
        (
            bool(trained) and trained not in digests,
            "evidence_run_mismatch",
            "the file that the run trained on is not among the sources (by digest)",
        ),
    )
    return next(((code, message) for wrong, code, message in faults if wrong), ("", ""))


def _check_reward_eval(ctx: Context) -> None:
    document = load(ctx, "reward_eval", Gate.METHOD, "invalid_reward_eval_json")
    if document is None:
        return
    field, fail, before = "reward_eval_path", ctx.book.fail, len(ctx.book.findings)
    metrics = document.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    accuracy = number(metrics.get("heldout_pair_accuracy"))
    checks = (
        (document.get("schema_version") != REWARD_EVAL, "invalid_reward_eval_schema", f"not a {REWARD_EVAL}"),
        (
            not is_about(document, ctx.card.run_id, _artifacts(ctx)),
            "evidence_run_mismatch",
            "it does not name this run",
        ),
        (
            document.get("ok") is not True or is_simulated(document),
            "reward_eval_not_ok",
            "the evaluation of the reward model is not ok, or is simulated",
        ),
        (bool(document.get("smoke")) and ctx.strict, "evidence_smoke", "it is of the smoke fixture"),
        (not metrics, "reward_eval_missing_metrics", "the evaluation has no metrics"),
        (
            bool(metrics.get("eval_only_leakage_count")),
            "reward_eval_eval_only_leakage",
            f"{metrics.get('eval_only_leakage_count')} held-out record(s) were trained on",
        ),
        (
            accuracy is not None and accuracy < MIN_PAIR_ACCURACY,
            "reward_eval_not_better_than_chance",
            f"it orders {accuracy or 0:.1%} of the held-out pairs; {MIN_PAIR_ACCURACY:.0%} are needed",
        ),
        (
            _recomputed(ctx, document, metrics) is False,
            "evidence_inconsistent",
            "its metrics are not those of its predictions",
        ),
    )
    for wrong, code, message in checks:
        if wrong:
            fail(Gate.METHOD, code, message, field)
    if metrics and accuracy is None:
        ctx.book.warn(Gate.METHOD, "reward_eval_no_heldout_quality_metric", "no heldout_pair_accuracy", field)
    if not any(f.level == "fail" for f in ctx.book.findings[before:]):
        ctx.accepted.add("reward_eval")


def _recomputed(ctx: Context, document: dict[str, Any], metrics: dict[str, Any]) -> bool | None:
    """Whether the predictions give these metrics; None, and a note, where they are not here."""
    path = score_path(document, ctx.files["reward_eval"].parent)
    if path is None or not path.is_file() or digest_file(path) != document.get("sha256"):
        message = "the reward model's predictions are not here: its metrics are taken as stated"
        ctx.book.note(Gate.METHOD, "not_recomputed", message, "reward_eval_path")
        return None
    try:
        again = evaluate(path, split=str(document.get("split")))["metrics"]
    except BashGymError:
        return False
    names = ("heldout_pair_accuracy", "pair_count", "reward_variance", "eval_only_leakage_count")
    return all(metrics.get(name) == again.get(name) for name in names)


def _artifacts(ctx: Context) -> dict[str, str]:
    return ctx.run.get("artifacts") or {}


def _check_smoke_bundle(ctx: Context) -> None:
    document = load(ctx, "smoke_bundle", Gate.METHOD, "invalid_smoke_bundle_json")
    if document is None:
        return
    field, checks = "smoke_bundle_path", document.get("checks")
    failed = [c for c in checks if c.get("level") == "fail"] if isinstance(checks, list) else [None]
    if document.get("schema_version") != SMOKE or is_simulated(document):
        ctx.book.fail(Gate.METHOD, "invalid_smoke_bundle_schema", f"not a {SMOKE}, or simulated", field)
    elif document.get("replay_sha256") != ctx.run.get("dataset_digest"):
        message = "the smoke bundle is of another replay than the run trained on"
        ctx.book.fail(Gate.METHOD, "evidence_run_mismatch", message, field)
    elif failed or document.get("contract_ready") is not True or document.get("optimizer_ready") is not True:
        message = "the smoke bundle is not ready for the optimizer"
        ctx.book.warn(Gate.METHOD, "smoke_bundle_not_ready", message, field)
    else:
        ctx.accepted.add("smoke_bundle")


def _check_other(ctx: Context, kind: str) -> None:
    """Evidence of a kind without a field of its own: real, about this run or its model, and right by the kind's rule."""
    if kind in ROW_RULES:
        return check_replay(ctx, kind, ctx.files[kind])
    if (document := load(ctx, kind, Gate.METHOD, f"invalid_{kind}_json")) is None:
        return None
    document = unwrapped(document)
    code, message = _fault(ctx, kind, document)
    if code:
        return ctx.book.fail(Gate.METHOD, code, f"{kind} evidence {message}", kind)
    ctx.accepted.add(kind)
    return None


def _fault(ctx: Context, kind: str, document: dict[str, Any]) -> tuple[str, str]:
    """(code, message) of the first thing that is wrong; empty if nothing is."""
    if is_simulated(document):
        return "evidence_simulated", "is simulated and satisfies nothing"
    if document.get("smoke") and ctx.strict:
        return "evidence_smoke", "is of a smoke run and proves no quality"
    if not is_about(document, ctx.card.run_id, _artifacts(ctx)):
        return "evidence_run_mismatch", "names neither this run nor its model"
    if kind in manifests.SCHEMAS:
        fault = manifests.fault(kind, document, ctx.card.run_id, ctx.run.get("dataset_digest"))
    else:
        fault = check_kind(ctx, kind, document, ctx.files[kind])
    return (f"{kind}_not_ok", f"does not hold: {fault}") if fault else ("", "")
