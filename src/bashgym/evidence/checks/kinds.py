"""What a document must hold to satisfy a kind of evidence: its schema, its run, and its content, computed again.

A kind without a rule here is satisfied by nothing but what other evidence derives. No document is believed for saying `ok`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.data.replay_records import ReplayRecord, iter_records, logprobs_ready
from bashgym.envs.canaries import SCHEMA as CANARIES
from bashgym.envs.canaries import categories, summarise
from bashgym.evals.environment_comparison import COMPARISON
from bashgym.evals.heldout_report import SCHEMA as HELDOUT
from bashgym.evals.holdout import SCHEMA as HOLDOUT
from bashgym.evidence import overlap, recount, retrieval
from bashgym.evidence.binding import read_or_empty
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Gate
from bashgym.evidence.inspection import REPORT_SCHEMA, inspect, part
from bashgym.evidence.release import FLOORS, gate
from bashgym.methods.spec import EvidenceKind

Document = dict[str, Any]
CASCADE = "bashgym.cascade.v1"
_NOT_HERE = "the run is not here: nothing of it can be computed again"


def _canaries(document: Document, _: Path, ctx: Context) -> str:
    message = "the attacks of the canaries: judged by what was observed of them"
    ctx.book.note(Gate.METHOD, "not_recomputed", message, str(EvidenceKind.CANARIES))
    rows = document.get("canaries")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return "it lists no canaries"
    try:
        found = summarise(rows)
        open_ = [row["canary_id"] for row in rows if not _guarded(row)]
    except (KeyError, TypeError):
        return "its canaries are not as `bashgym eval canaries` writes them"
    proven = {row["category"] for row in rows if "environment_id" not in row}
    absent = [name for name in categories() if name not in proven]
    checks = (
        (bool(absent), f"no canary of {', '.join(absent)}"),
        (found["failed"] > 0, f"{found['failed']} attacks got through"),
        (found["invalid"] > 0, f"{found['invalid']} canaries could not fail, or fail everybody"),
        (bool(open_), f"not guarded by what it observed: {', '.join(map(str, open_[:3]))}"),
        (part(document, "summary") != found, "its summary is not that of its canaries"),
    )
    return next((reason for wrong, reason in checks if wrong), "")


def _guarded(row: Document) -> bool:
    """By what was observed of the attack, its control and the honest solution; an own environment has no control."""
    proven = "environment_id" in row or (row["control_beaten"] is True and row["honest_passes"] is True)
    return proven and row["passed"] is False and row["verifier_status"] in row["expected_status"] and not row["outside"]


def _holdout(document: Document, _: Path, ctx: Context) -> str:
    return recount.holdout(document) or _trained_on(document, ctx)


def _trained_on(document: Document, ctx: Context) -> str:
    """Held-out environments in the run's own training file."""
    split = part(document, "split")
    hashes = {str(name): str(part(split, "hashes").get(name)) for name in split.get("holdout_ids") or []}
    path = overlap.training_file(read_or_empty(ctx.run_dir / "manifest.json")) if ctx.run_dir else None
    found = overlap.environments(hashes, path) if path else None
    if found is None:
        message = "the training file is not there as it was: overlap with held-out environments cannot be checked"
        ctx.book.warn(Gate.METHOD, "heldout_overlap_unchecked", message, str(EvidenceKind.HOLDOUT_GATE))
    return f"held-out environments were trained on: {', '.join(found[:5])}" if found else ""


def _comparison(document: Document, _: Path, __: Context) -> str:
    return recount.comparison(document)


def _safety(document: Document, _: Path, __: Context) -> str:
    return recount.safety(document)


def _heldout(document: Document, path: Path, _: Context) -> str:
    return recount.heldout(document, path)


def _improved(_: Document, path: Path, ctx: Context) -> str:
    """An eval report that stands for a kind by itself passes the release gate."""
    if ctx.run_dir is None:
        return _NOT_HERE
    found = inspect(path, ctx.run_dir)
    return next(
        iter([message for _, message in found.problems] + gate(found.report, found.observed, FLOORS)["reasons"]), ""
    )


def _teacher(document: Document, path: Path, ctx: Context) -> str:
    """A paired evaluation against the teacher, whatever came out; the one against the base is the release evidence."""
    if ctx.run_dir is None:
        return _NOT_HERE
    teacher = part(read_or_empty(ctx.run_dir / "manifest.json"), "teacher").get("digest")
    other = str(part(document, "baseline").get("digest") or "")
    found = inspect(path, ctx.run_dir, against=str(teacher or other))
    seen = {name: value or 0.0 for name, value in found.observed.items()}
    checks = (
        *((True, message) for _, message in found.problems),
        (other == ctx.run.get("model_digest"), "its baseline is the base student, not the teacher"),
        (found.report.get("simulated") is not False, "it is simulated, or does not say that it is not"),
        (seen["n_scored"] < FLOORS["min_items"], f"{seen['n_scored']:.0f} items; {FLOORS['min_items']:.0f} are needed"),
        (seen["missing_rate"] > FLOORS["max_missing_rate"], "too many attempts were not observed"),
        (seen["train_overlap"] > 0, "held-out questions are in the training rows"),
    )
    return next((reason for wrong, reason in checks if wrong), "")


def _stages(document: Document, path: Path, ctx: Context) -> str:
    """Every stage is a completed run whose own card holds as a promotion, judged here."""
    from bashgym.evidence.runcard import validate

    stages = document.get("stages")
    if not isinstance(stages, list) or not stages or not all(isinstance(stage, dict) for stage in stages):
        return "it lists no stages"
    for stage in stages:
        name, card = str(stage.get("domain")), part(stage, "card")
        place = path.parent / str(card.get("path"))
        if stage.get("status") != "completed" or not place.is_file() or digest_file(place) != card.get("sha256"):
            return f"stage {name} has no completed run with a card as it was"
        if read_or_empty(place).get("training_method") == ctx.card.training_method:
            return f"stage {name} is the cascade itself"
        try:
            judged = validate(place, promotion=True, models_dir=ctx.run_dir.parent if ctx.run_dir else None)
        except BashGymError as error:
            return f"stage {name}: {error.message}"
        if not judged["ok"] or judged["run_id"] != stage.get("run_id"):
            return f"stage {name}: {judged['promotion_explanation']['headline']}"
    return ""


def _retrieval(section: str) -> Callable[[Document, Path, Context], str]:
    return lambda document, _, __: retrieval.RULES[section](document)


Rule = Callable[[Document, Path, Context], str]
_GATES: dict[str, Rule] = {HOLDOUT: _holdout, COMPARISON: _comparison}
_BETTER: dict[str, Rule] = {HELDOUT: _heldout, REPORT_SCHEMA: _improved}
RULES: dict[str, dict[str, Rule]] = {
    EvidenceKind.CANARIES: {CANARIES: _canaries},
    EvidenceKind.HOLDOUT_GATE: _GATES,
    EvidenceKind.ENVIRONMENT_PASSK: _GATES,
    EvidenceKind.PASSK_BEFORE_AFTER: {COMPARISON: _comparison},
    EvidenceKind.CORRELATED_PASSK: {COMPARISON: _comparison},
    EvidenceKind.SAFETY_COMPARISON: {COMPARISON: _safety},
    EvidenceKind.HELDOUT_BEHAVIOUR: _BETTER,
    EvidenceKind.NO_REGRESSION: _BETTER,
    EvidenceKind.HELDOUT_RECOVERY: _BETTER,
    EvidenceKind.HELDOUT_PREFERENCE: _BETTER,
    EvidenceKind.SELECTED_VS_RANDOM: {**_BETTER, COMPARISON: _comparison},
    EvidenceKind.BASE_AND_TEACHER_COMPARISON: {REPORT_SCHEMA: _teacher},
    EvidenceKind.STAGE_RUN_CARDS: {CASCADE: _stages},
    EvidenceKind.STAGE_GATES: {CASCADE: _stages},
    **{kind: {retrieval.SCHEMA: _retrieval(kind)} for kind in retrieval.RULES},
}
"""Kind -> schema -> rule: what is wrong, or nothing."""
ROW_RULES: dict[str, tuple[Callable[[ReplayRecord], bool], str]] = {
    EvidenceKind.REPLAY: (logprobs_ready, "behaviour log probabilities for every sampled token"),
    EvidenceKind.REPLAY_ENRICHMENT: (
        lambda record: record.train_policy is not None and record.optimizer.advantage is not None,
        "training log probabilities and an advantage",
    ),
}
"""Kinds whose evidence is the replay file itself, which is what the run trained on."""


def check_kind(ctx: Context, kind: str, document: Document, path: Path) -> str:
    """What is wrong with a JSON document as evidence of `kind`; empty if nothing is."""
    rules = RULES.get(kind)
    if rules is None:
        return f"nothing that can be attached satisfies {kind}"
    rule = rules.get(str(document.get("schema_version")))
    if rule is None:
        return f"its schema_version is {document.get('schema_version')!r}, not one of {', '.join(rules)}"
    try:
        return rule(document, path, ctx)
    except BashGymError as error:
        return error.message


def check_replay(ctx: Context, kind: str, path: Path) -> None:
    """A replay that was trained on: readable whole, not empty, and ready for what the kind says."""
    ready, what = ROW_RULES[kind]
    rows, short = 0, 0
    try:
        for record in iter_records(path):
            rows, short = rows + 1, short + (not ready(record))
    except BashGymError as error:
        return ctx.book.fail(Gate.METHOD, f"invalid_{kind}_artifact", error.message, kind)
    entry = next(entry for entry in ctx.card.evidence if entry.kind == kind)
    if not rows or short:
        message = f"{short or 'all'} of {rows} records lack {what}"
        return ctx.book.fail(Gate.METHOD, f"{kind}_not_ok", message, kind)
    if ctx.run.get("dataset_digest") not in (None, entry.sha256):
        return ctx.book.fail(Gate.METHOD, "evidence_run_mismatch", "it is not the file that the run trained on", kind)
    ctx.accepted.add(kind)
    return None
