"""RunCards: create, validate, attach evidence, list. What CLI and API call; the rules are in `rules`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object, writable_dir
from bashgym.evidence.binding import bind, find_run, read_or_empty
from bashgym.evidence.bundle import located, measure, resolve_input, stored
from bashgym.evidence.card import PATH_FIELDS, PROMOTING, SCHEMA, RunCard, read_card, write_card
from bashgym.evidence.explain import artifact_status, promotion_explanation
from bashgym.evidence.findings import Book, Gate, Level
from bashgym.evidence.inspection import REPORT_SCHEMA, bring
from bashgym.evidence.manifests import SCHEMAS
from bashgym.evidence.release import build_release_evidence
from bashgym.evidence.rules import judge
from bashgym.methods.distillation import TEXT_ONLY
from bashgym.methods.spec import EvidenceKind

File = str | Path | None
"""A file that a caller may name."""

RESULT = "bashgym.run_card_result.v1"
VALIDATION = "bashgym.run_card_validation.v1"
LIST = "bashgym.run_card_list.v1"
_BESIDE = {
    "training_plan": "training_plan.json",
    "source_manifest": "source_manifest.json",
    "metrics": "metrics.jsonl",
    "release_evidence": "release_evidence.json",
}
"""Evidence that is taken from the run directory when it is not given."""
KINDS = frozenset({*PATH_FIELDS, *EvidenceKind, *SCHEMAS})
"""Kinds that `evidence` takes."""
OPTIONS = {field.removesuffix("_path"): kind for kind, field in PATH_FIELDS.items()}
"""Name of an option -> the kind of evidence that it names."""


def create(
    *,
    run_id: str,
    training_method: str,
    base_model: str,
    compute_target: str,
    output: str | Path,
    backend: str | None = None,
    reader_model: str = "",
    confidence_threshold: float | None = None,
    hint_policy: str = "",
    mask_policy: str = "",
    target_token_count: int | None = None,
    claim_tier: str = "local_smoke",
    threshold: Sequence[str] = (),
    output_artifact: Sequence[str] = (),
    known_limitation: Sequence[str] = (),
    decision: str = "pending",
    promotion: bool = False,
    no_git: bool = False,
    evidence: Mapping[str, str | Path] | None = None,
    models_dir: Path | None = None,
    **files: File,
) -> dict[str, Any]:
    """Measures the evidence, writes the card whole, and judges it: `bashgym.run_card_result.v1`.

    The card is written also when it is not ok; a decision that promotes is then written as `hold`. `files` are those of
    `OPTIONS`; `evidence` maps further kinds (see `KINDS`) to files. `threshold` entries are `name=number`.
    """
    path = Path(output).expanduser().absolute()
    writable_dir(path.parent)
    run_dir = find_run(run_id, path.parent, models_dir)
    manifest = read_or_empty(run_dir / "manifest.json") if run_dir else {}
    code = manifest.get("code") if isinstance(manifest.get("code"), dict) and not no_git else {}
    card = RunCard(
        run_id=run_id,
        training_method=training_method,
        base_model=base_model,
        compute_target_id=compute_target,
        session_distillation_reader_model=reader_model,
        session_distillation_confidence_threshold=confidence_threshold,
        session_distillation_hint_policy=hint_policy,
        session_distillation_mask_policy=mask_policy,
        session_distillation_target_token_count=target_token_count,
        backend=backend or _backend(manifest),
        git_commit=str((code or {}).get("git_commit") or ""),
        branch=str((code or {}).get("branch") or ""),
        claim_tier=claim_tier,
        thresholds=parse_thresholds(threshold),
        outputs=[stored(resolve_input(item, path.parent), path.parent) for item in output_artifact],
        known_limitations=[*known_limitation, *_own_limits(manifest)],
        decision=decision,
        created_at=utc_now(),
        run=bind(run_dir, path.parent) if run_dir else {},
        code=code or {},
    )
    book = Book()
    _bind_files(card, path.parent, _with_defaults(_given(files, evidence), run_dir), run_dir, book)
    return _finish("RunCard created", card, path, book, promotion=promotion, models_dir=models_dir)


def validate(path: str | Path, promotion: bool = False, models_dir: Path | None = None) -> dict[str, Any]:
    """Re-hashes and re-judges a card, changing nothing: `bashgym.run_card_validation.v1`."""
    place, book = Path(path).expanduser().absolute(), Book()
    card = read_card(place, book)
    ctx = judge(card, place.parent, promotion=promotion, book=book, models_dir=models_dir)
    explanation = promotion_explanation(book.findings, ctx.promotion)
    return {
        "schema_version": VALIDATION,
        "ok": explanation["ok"],
        "path": str(place),
        "run_id": card.run_id,
        "base_model": card.base_model,
        "promotion": ctx.promotion,
        "decision": card.decision,
        "claim_tier": card.claim_tier,
        "findings": msgspec.to_builtins(book.findings),
        "artifact_status": artifact_status(ctx),
        "promotion_explanation": explanation,
    }


def attach_evidence(
    path: str | Path,
    *,
    evidence: Mapping[str, str | Path] | None = None,
    claim_tier: str | None = None,
    output: str | Path | None = None,
    promotion: bool = False,
    models_dir: Path | None = None,
    **files: File,
) -> dict[str, Any]:
    """Binds further files (replacing those of the same kind), writes the card to `output` or in place, and judges it.

    A card that was edited by hand is refused with `run_card_invalid`: attaching would seal the edit.
    """
    place, book = Path(path).expanduser().absolute(), Book()
    card = read_card(place, book)
    if book.findings:
        found = book.findings[0]
        raise fail("run_card_invalid", f"{place}: {found.message}", hint="Create the card again.", fields=[found.field])
    target = Path(output).expanduser().absolute() if output else place
    writable_dir(target.parent)
    if target.parent != place.parent:
        _rebase(card, place.parent, target.parent)
    run_dir = find_run(card.run_id, target.parent, models_dir, card.run.get("path"))
    _bind_files(card, target.parent, _given(files, evidence), run_dir, book)
    card.claim_tier = claim_tier or card.claim_tier
    return _finish("Evidence attached", card, target, book, promotion=promotion, models_dir=models_dir)


def list_cards(roots: Sequence[Path], limit: int = 20) -> dict[str, Any]:
    """The RunCards in `roots` and in the folders directly below them, newest first. Broken files are left out."""
    found: dict[Path, float] = {}
    for root in roots:
        for pattern in ("run_card*.json", "*/run_card*.json"):
            found.update({path.resolve(): path.stat().st_mtime for path in root.glob(pattern) if path.is_file()})
    cards: list[dict[str, Any]] = []
    for path, modified in sorted(found.items(), key=lambda item: (-item[1], str(item[0]))):
        if len(cards) >= limit:
            break
        try:
            raw = read_object(path)
        except BashGymError:
            continue
        if raw.get("schema_version") == SCHEMA:
            fields = ("run_id", "training_method", "base_model", "claim_tier", "decision")
            cards.append({**{name: raw.get(name) for name in fields}, "path": str(path), "modified": modified})
    return {"schema_version": LIST, "run_cards": cards}


def parse_thresholds(items: Sequence[str]) -> dict[str, float]:
    """`name=number` items; `invalid_field` for anything else."""
    found: dict[str, float] = {}
    for item in items:
        name, _, text = item.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not name.strip() or not math.isfinite(value):
            raise fail("invalid_field", f"a threshold is name=number, got {item[:80]!r}", fields=["threshold"])
        found[name.strip()] = value
    return found


def _own_limits(manifest: Mapping[str, Any]) -> list[str]:
    """What the run's own record says against reading more into it."""
    if manifest.get("objective") != TEXT_ONLY:
        return []
    return [f"objective: {TEXT_ONLY}: the student saw a teacher's text and no teacher's logits"]


def _given(files: Mapping[str, File], evidence: Mapping[str, str | Path] | None) -> dict[str, str | Path]:
    """Kind -> file of all that was named."""
    if unknown := files.keys() - OPTIONS.keys():
        raise fail(
            "invalid_field", f"a card has no file {min(unknown)!r}", f"Known: {', '.join(OPTIONS)}.", [min(unknown)]
        )
    return {**{OPTIONS[name]: path for name, path in files.items() if path}, **(evidence or {})}


def _with_defaults(given: Mapping[str, str | Path], run_dir: Path | None) -> dict[str, str | Path]:
    files = dict(given)
    for kind, name in _BESIDE.items():
        if kind not in files and run_dir is not None and (run_dir / name).is_file():
            files[kind] = str(run_dir / name)
    return files


def _bind_files(
    card: RunCard, card_dir: Path, files: Mapping[str, str | Path], run_dir: Path | None, book: Book
) -> None:
    """Measures each file into an entry. One that is not there becomes a finding, its path stays in the card."""
    for kind, given in files.items():
        if kind not in KINDS:
            raise fail(
                "invalid_field",
                f"no evidence kind is called {kind[:60]!r}",
                hint=f"Known: {', '.join(sorted(KINDS))}.",
                fields=["evidence"],
            )
        path, field = resolve_input(given, card_dir), PATH_FIELDS.get(kind)
        if kind == "release_evidence" and run_dir is not None:
            path = _from_report(path, run_dir, card_dir, book)
        elif field is None and path.is_file():
            path = bring(path, card_dir, kind) if path.suffix == ".json" else path
        card.evidence = [entry for entry in card.evidence if entry.kind != kind]
        try:
            entry = measure(kind, path, card_dir=card_dir, run_id=card.run_id, run_dir=run_dir)
        except BashGymError as error:
            name = field or kind
            book.fail(Gate.EVIDENCE, f"missing_{name}_file", error.message, name, path=stored(path, card_dir))
        else:
            card.evidence.append(entry)
        if field:
            setattr(card, field, stored(path, card_dir))


def _from_report(path: Path, run_dir: Path, card_dir: Path, book: Book) -> Path:
    """An eval report given as release evidence is made into it, beside the card. Other files stay as they are."""
    if read_or_empty(path).get("schema_version") != REPORT_SCHEMA:
        return path
    output = card_dir / _BESIDE["release_evidence"]
    try:
        build_release_evidence(path, run_dir=run_dir, output=output)
    except BashGymError as error:
        book.fail(Gate.RELEASE, "invalid_eval_report", error.message, "release_evidence_path", path=str(path))
        return path
    return output


def _rebase(card: RunCard, old: Path, new: Path) -> None:
    """Paths as seen from another folder."""
    card.evidence = [msgspec.structs.replace(e, path=stored(located(e.path, old), new)) for e in card.evidence]
    for field in PATH_FIELDS.values():
        if value := getattr(card, field):
            setattr(card, field, stored(located(value, old), new))
    card.outputs = [stored(located(item, old), new) for item in card.outputs]
    if isinstance(card.run.get("path"), str):
        card.run = {**card.run, "path": stored(located(card.run["path"], old), new)}


def _finish(
    title: str, card: RunCard, path: Path, book: Book, *, promotion: bool, models_dir: Path | None
) -> dict[str, Any]:
    ctx = judge(card, path.parent, promotion=promotion, book=book, models_dir=models_dir)
    if card.decision in PROMOTING and book.blocked():
        card.decision = "hold"
    write_card(path, card)
    explanation = promotion_explanation(book.findings, ctx.promotion)
    return {
        "schema_version": RESULT,
        "title": title,
        "ok": not any(finding.level == Level.FAIL for finding in book.findings),
        "path": str(path),
        "run_card": msgspec.to_builtins(card),
        "findings": msgspec.to_builtins(book.findings),
        "artifact_status": artifact_status(ctx),
        "promotion_explanation": explanation,
    }


def _backend(manifest: Mapping[str, Any]) -> str:
    chosen = manifest.get("backend")
    return str(chosen.get("name") or "") if isinstance(chosen, dict) else ""
