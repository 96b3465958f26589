"""Release evidence: taken apart and built again, so that a gate verdict is never believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.evidence import sections
from bashgym.evidence.checks.documents import is_simulated, load
from bashgym.evidence.context import Context
from bashgym.evidence.findings import Gate
from bashgym.evidence.inspection import inspect, number, part
from bashgym.evidence.release import FLOORS, SCHEMA, gate

_FIELD = "release_evidence_path"


def check_release(ctx: Context) -> None:
    """The verdict is there, real, about this run, and the gate comes out the same when computed anew."""
    document = load(ctx, "release_evidence", Gate.RELEASE, "invalid_release_evidence_json")
    if document is None:
        return
    before = len(ctx.book.findings)
    ctx.suite, ctx.smoke = part(document, "suite"), document.get("smoke") is not False
    ctx.gate = dict(part(document, "release_gate"))
    ctx.observed = {name: number(value) for name, value in part(ctx.gate, "observed").items()}
    _check_verdict(ctx, document)
    _check_labels(ctx, document)
    _check_diagnostics(ctx, document)
    _rebuild(ctx, document)
    if not any(f.level == "fail" for f in ctx.book.findings[before:]) and document.get("ship") is True:
        ctx.accepted.add("release_evidence")


def _check_verdict(ctx: Context, document: dict[str, Any]) -> None:
    ship = document.get("ship")
    if not isinstance(ship, bool):
        message = "the release evidence does not say whether to ship"
        ctx.book.fail(Gate.RELEASE, "release_evidence_missing_ship_verdict", message, _FIELD)
    if not ctx.gate:
        ctx.book.warn(Gate.RELEASE, "release_evidence_missing_release_gate", "it holds no release_gate", _FIELD)
    elif ctx.gate.get("ship") != ship:
        message = f"ship is {ship}, the gate inside says {ctx.gate.get('ship')}"
        ctx.book.fail(Gate.RELEASE, "release_gate_ship_mismatch", message, _FIELD)
    if ship is False:
        reasons = "; ".join(str(reason) for reason in ctx.gate.get("reasons") or []) or "no reason is given"
        say = ctx.book.fail if ctx.promotion else ctx.book.warn
        say(Gate.RELEASE, "release_evidence_not_shippable", f"the release gate says no: {reasons}", _FIELD)


def _check_labels(ctx: Context, document: dict[str, Any]) -> None:
    if is_simulated(document):
        message = "simulated evidence satisfies no gate"
        ctx.book.fail(Gate.RELEASE, "release_evidence_simulated", message, _FIELD)
    if ctx.smoke and ctx.strict:
        message = "this is a smoke evaluation: it proves the path, not quality"
        ctx.book.fail(Gate.RELEASE, "release_evidence_smoke", message, _FIELD)
    if document.get("run_id") != ctx.card.run_id:
        message = f"the release evidence is about {document.get('run_id')!r}"
        ctx.book.fail(Gate.RELEASE, "evidence_run_mismatch", message, _FIELD)


def _check_diagnostics(ctx: Context, document: dict[str, Any]) -> None:
    for name in sections.DIAGNOSTICS:
        quality = document.get(name)
        if not isinstance(quality, dict):
            continue
        what = name.replace("_", " ")
        if "needs_attention" in (quality.get("signal"), quality.get("status")):
            ctx.book.warn(Gate.RELEASE, f"{name}_needs_attention", f"{what} needs attention", _FIELD)
        ctx.book.note(Gate.RELEASE, f"{name}_diagnostic_only", f"{what} explains; it promotes nothing", _FIELD)


def _rebuild(ctx: Context, document: dict[str, Any]) -> None:
    """Opens the eval report below, verifies every file, and computes the gate again."""
    say = ctx.book.fail if ctx.strict else ctx.book.warn
    report = part(document, "eval_report")
    if document.get("schema_version") != SCHEMA or not isinstance(report.get("path"), str):
        message = "it is bound to no eval report: give the report of `bashgym eval run` as --release-evidence"
        return say(Gate.RELEASE, "release_evidence_unbound", message, _FIELD)
    folder = ctx.files["release_evidence"].parent
    if not _files_intact(ctx, document, folder) or ctx.run_dir is None:
        return None
    try:
        found = inspect(folder / report["path"], ctx.run_dir)
    except BashGymError as error:
        return ctx.book.fail(Gate.RELEASE, "invalid_eval_report", error.message, _FIELD)
    for code, message in found.problems:
        ctx.book.fail(Gate.RELEASE, code, message, _FIELD)
    ctx.gate = gate(found.report, found.observed, _thresholds(ctx), **_beside(ctx, document, folder))
    ctx.observed, ctx.suite = found.observed, part(found.report, "suite")
    ctx.smoke = found.report.get("smoke") is not False
    _check_labels(ctx, {**document, "simulated": found.report.get("simulated") is not False})
    if ctx.gate["ship"] != document.get("ship"):
        message = f"it says ship={document.get('ship')}; computed anew: {'; '.join(ctx.gate['reasons']) or 'ship'}"
        ctx.book.fail(Gate.RELEASE, "release_gate_ship_mismatch", message, _FIELD)
    if found.observed["train_overlap"] is None:
        message = "the training file is not there as it was: overlap with the held-out items cannot be checked"
        ctx.book.warn(Gate.RELEASE, "heldout_overlap_unchecked", message, _FIELD)
    return None


def _beside(ctx: Context, document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The sections, judged again from their files, and what the evidence itself asked for."""
    stated, run_dir = part(document, "release_gate"), ctx.run_dir
    least = {name: value for name, raw in part(stated, "min_scores").items() if (value := number(raw)) is not None}
    required = [name for name in stated.get("required") or [] if isinstance(name, str)]
    files = {
        str(entry.get("kind")): folder / str(entry.get("path"))
        for entry in document.get("evidence") or []
        if isinstance(entry, dict) and entry.get("kind") in (*sections.SECTIONS, *sections.DIAGNOSTICS)
    }
    judged = sections.judge(files, run_dir, ctx.card.run_id, least) if run_dir else {}
    return {"judged": judged, "required": required, "min_scores": least}


def _files_intact(ctx: Context, document: dict[str, Any], folder: Path) -> bool:
    listed = document.get("evidence")
    entries = [entry for entry in (listed if isinstance(listed, list) else []) if isinstance(entry, dict)]
    intact = True
    for entry in (part(document, "eval_report"), *entries):
        path = folder / str(entry.get("path"))
        if not path.is_file() or digest_file(path) != entry.get("sha256"):
            message = f"{path} is gone or differs from what the release evidence was built from"
            ctx.book.fail(Gate.RELEASE, "evidence_digest_mismatch", message, _FIELD, path=str(path))
            intact = False
    return intact


def _thresholds(ctx: Context) -> dict[str, float]:
    """The evidence's own thresholds, never laxer than the floors."""
    stated = part(ctx.gate, "thresholds")
    used: dict[str, float] = {}
    for name, floor in FLOORS.items():
        value = number(stated.get(name))
        lax = value is None or (value < floor if name.startswith("min_") else value > floor)
        if lax:
            message = f"{name} is {stated.get(name)}; the laxest allowed is {floor:g}"
            ctx.book.fail(Gate.RELEASE, "release_gate_thresholds_lax", message, name)
        used[name] = floor if lax or value is None else value
    return used
