"""An eval report looked at again, down to its score files, as evidence for one run.

Pass rates, effect, clusters and missing items are measured anew; models are compared by digest; held-out questions are
looked for in the training rows. Judges nothing: see `release.gate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_bytes, read_object
from bashgym.core.ids import check_identifier
from bashgym.evidence.binding import artifact_digests, read_or_empty
from bashgym.evidence.overlap import questions, training_file
from bashgym.evidence.scores import Scores, paired, read_scores

REPORT_SCHEMA = "bashgym.eval_report.v1"
_TOLERANCE = 1e-6


@dataclass
class Inspection:
    """An eval report as found, with what is wrong with it as evidence for this run."""

    report: dict[str, Any]
    observed: dict[str, float | None]
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(finding code, message)."""


def inspect(report_path: Path, run_dir: Path, *, against: str = "") -> Inspection:
    """Re-reads an eval report and its score files against a run directory.

    The baseline must be the model of digest `against`; by default the one that the run started from.
    """
    report = read_object(report_path)
    if report.get("schema_version") != REPORT_SCHEMA:
        raise fail("file_unreadable", f"{report_path} is not a {REPORT_SCHEMA}", fields=["eval_report"])
    problems: list[tuple[str, str]] = []
    _check_identity(report, run_dir, against, problems)
    sides = {side: _checked_scores(report, side, report_path.parent, problems) for side in ("candidate", "baseline")}
    _check_consistency(report, sides, problems)
    return Inspection(report, _observe(report, sides["candidate"], sides["baseline"], run_dir), problems)


def _checked_scores(report: dict[str, Any], side: str, folder: Path, problems: list[tuple[str, str]]) -> Scores:
    entry = part(part(report, "scores"), side)
    path = score_path(entry, folder)
    if path is None or not path.is_file():
        problems.append(("evidence_digest_mismatch", f"the {side} score file is not there: {entry.get('path')!r}"))
        return Scores()
    if digest_file(path) != entry.get("sha256"):
        problems.append(("evidence_digest_mismatch", f"the {side} score file {path} differs from its digest"))
    found = read_scores(path)
    if found.doubled:
        problems.append(("eval_incomplete", f"the {side} scores hold {found.doubled[0]} twice"))
    if found.unreadable:
        problems.append(("eval_incomplete", f"{found.unreadable} line(s) of the {side} scores are unreadable"))
    return found


def score_path(entry: dict[str, Any], folder: Path) -> Path | None:
    """A file that a report in `folder` names: the one beside the report, else where the name points."""
    name = entry.get("path")
    if not isinstance(name, str) or not name:
        return None
    beside = folder / Path(name).name
    return beside if beside.is_file() else folder / name


def bring(path: Path, folder: Path, home: str) -> Path:
    """Copies a report, and the files that it names with their digest, to `folder`/evals/`home`, unless it lies below `folder`.

    Returns the report's new place. A file is copied only if it has the digest that the report states: a report cannot
    make us pick up anything else.
    """
    if path.resolve().is_relative_to(folder.resolve()):
        return path
    report, place = read_or_empty(path), folder / "evals" / check_identifier(home, "eval_id")
    place.mkdir(parents=True, exist_ok=True)
    scores = part(report, "scores")
    for entry in (report, scores, part(scores, "candidate"), part(scores, "baseline")):
        source = score_path(entry, path.parent)
        if source is not None and source.is_file() and digest_file(source) == entry.get("sha256"):
            atomic_write_bytes(place / source.name, source.read_bytes())
    atomic_write_bytes(place / path.name, path.read_bytes())
    return place / path.name


def _check_identity(report: dict[str, Any], run_dir: Path, against: str, problems: list[tuple[str, str]]) -> None:
    manifest = read_or_empty(run_dir / "manifest.json")
    candidate, baseline = part(report, "candidate").get("digest"), part(report, "baseline").get("digest")
    base = against or part(manifest, "model").get("digest")
    if not candidate or candidate not in artifact_digests(run_dir).values():
        problems.append(
            ("evidence_run_mismatch", f"the candidate is not a model that {run_dir.name} saved (by digest)")
        )
    if not baseline:
        problems.append(("release_evidence_missing_baseline", "the report names no baseline"))
    elif baseline != base:
        problems.append(
            ("evidence_run_mismatch", "the baseline is not the model that it has to be compared with (by digest)")
        )
    if not part(report, "suite").get("digest"):
        problems.append(("release_evidence_missing_suite", "the report has no suite digest"))


def _check_consistency(report: dict[str, Any], sides: dict[str, Scores], problems: list[tuple[str, str]]) -> None:
    """Both sides answered the same items, and the summary is that of the score files."""
    alone = sides["candidate"].keys ^ sides["baseline"].keys
    if alone:
        message = f"{len(alone)} attempt(s) are on one side only, e.g. {min(alone)}"
        problems.append(("eval_incomplete", message))
    for side, scores in sides.items():
        stated = number(part(part(report, "pass_rate"), side).get("value"))
        measured = scores.rate()
        if stated is None or measured is None or abs(stated - measured) > _TOLERANCE:
            problems.append(
                ("evidence_inconsistent", f"the {side} pass rate is stated as {stated}, its scores give {measured}")
            )
    effect = paired(sides["candidate"], sides["baseline"]).effect
    stated = number(part(report, "comparison").get("effect"))
    if stated is None or effect is None or abs(stated - effect) > _TOLERANCE:
        problems.append(("evidence_inconsistent", f"the effect is stated as {stated}, the scores give {effect}"))


def _observe(report: dict[str, Any], candidate: Scores, baseline: Scores, run_dir: Path) -> dict[str, float | None]:
    comparison = part(report, "comparison")
    pairs = paired(candidate, baseline)
    n_both = len(pairs.differences)
    n_items = max(
        int(number(report.get("n_items")) or 0), int(number(part(report, "suite").get("n_items")) or 0), n_both
    )
    attempts = max(n_items * int(number(report.get("attempts")) or 1), len(candidate.keys | baseline.keys))
    return {
        "n_items": n_items,
        "n_scored": n_both,
        "n_clusters": len(set(pairs.clusters)),
        "missing_rate": 1 - len(candidate.observed & baseline.observed) / attempts if attempts else 1.0,
        "pass_at_1": candidate.rate(),
        "baseline_pass_at_1": baseline.rate(),
        "effect": pairs.effect,
        "ci_low": number(comparison.get("ci_low")),
        "ci_high": number(comparison.get("ci_high")),
        "rechecked_ci_low": pairs.lower_bound(),
        "p_value": number(part(comparison, "mcnemar").get("p_value")),
        "minimum_detectable_effect": number(comparison.get("minimum_detectable_effect")),
        "looks": number(comparison.get("looks")),
        "format_validity": candidate.format_validity(),
        "baseline_format_validity": baseline.format_validity(),
        "timeout_rate": candidate.share("timeout"),
        "tamper_rate": candidate.share("tampered"),
        "train_overlap": _train_overlap(candidate, run_dir),
    }


def _train_overlap(candidate: Scores, run_dir: Path) -> int | None:
    """Held-out questions among the training rows; None when the training file is not there as it was, or unreadable."""
    path = training_file(read_or_empty(run_dir / "manifest.json"))
    found = questions(candidate.prompts, path) if path else None
    return None if found is None else len(found)


def part(parent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object inside an object; empty where there is none."""
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
