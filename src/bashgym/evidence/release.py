"""Release evidence: an eval report, re-read down to its score files, bound to a run, and judged by the release gate.

The gate never trusts a summary: effect and pass rates are taken again from the score files, the candidate is compared
with the run's own saved model by digest, and the held-out items are looked for in the training rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_json
from bashgym.evidence import sections
from bashgym.evidence.binding import read_or_empty
from bashgym.evidence.bundle import stored
from bashgym.evidence.inspection import Inspection, bring, inspect, part, score_path

SCHEMA = "bashgym.release_evidence.v1"
GATE_SCHEMA = "bashgym.release_gate.v1"
FLOORS: dict[str, float] = {
    "min_effect": 0.0,
    "min_items": 20,
    "min_clusters": 2,
    "max_missing_rate": 0.02,
    "max_tamper_rate": 0.0,
    "max_train_overlap": 0,
}
"""The laxest thresholds with which a gate may ship."""


def build_release_evidence(
    eval_report_path: Path,
    *,
    run_dir: Path,
    min_effect: float = 0.0,
    output: Path | None = None,
    beside: Mapping[str, Path] | None = None,
    min_scores: Mapping[str, float] | None = None,
    required: Collection[str] = (),
) -> dict[str, Any]:
    """The release evidence of a run from one eval report and what stands `beside` it (see `sections`).

    Written to `output` when given; report and scores are then copied below its folder (`evals/<eval_id>/`), so that the
    run directory carries all its evidence.
    Effects are differences of pass rates in [-1, 1]; `min_effect` is the smallest that ships. `min_scores` are the least
    scores of external benchmarks, `required` the parts of the gate that must not be absent. Raises
    `digest_mismatch` when a score file changed or the report is about another model, `eval_incomplete` when items are
    doubled or unreadable.
    """
    if not 0 <= min_effect <= 1:
        raise fail("invalid_field", f"min_effect must lie in [0, 1], got {min_effect}", fields=["min_effect"])
    if unknown := sorted(set(required) - set(sections.PARTS)):
        raise fail(
            "invalid_field", f"no part is called {unknown[0]!r}", f"Known: {', '.join(sections.PARTS)}.", ["required"]
        )
    found = inspect(eval_report_path, run_dir)
    if found.problems:
        code, message = found.problems[0]
        raise fail(
            "eval_incomplete" if code == "eval_incomplete" else "digest_mismatch",
            f"{eval_report_path}: {message}",
            hint="Evaluate this run's final model again: `bashgym eval run --model <run_id> --baseline <base-model>`.",
        )
    run_id = str(read_or_empty(run_dir / "manifest.json").get("run_id") or run_dir.name)
    files, least = dict(beside or {}), dict(min_scores or {})
    judged = sections.judge(files, run_dir, run_id, least)
    report_path = eval_report_path
    if output is not None:
        report_path = bring(eval_report_path, output.parent, str(found.report.get("eval_id")))
        files = {name: bring(path, output.parent, name) for name, path in files.items()}
    files = {"eval_report": report_path, **_scores(found.report, report_path), **files}
    limits = {**FLOORS, "min_effect": min_effect}
    verdict = gate(found.report, found.observed, limits, judged=judged, required=required, min_scores=least)
    document = _document(found, verdict, run_id, files, (output or eval_report_path).parent)
    if output is not None:
        atomic_write_json(output, document)
    return document


def gate(
    report: dict[str, Any],
    observed: dict[str, float | None],
    thresholds: dict[str, float],
    *,
    judged: Mapping[str, Mapping[str, Any]] | None = None,
    required: Collection[str] = (),
    min_scores: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """`bashgym.release_gate.v1`. Pure: the same inputs give the same verdict.

    `trace_ship` is the paired held-out comparison, `environment_ship` the same on a suite that executes its verifiers, with
    the sections that were `judged`. A part is null where nothing speaks for it and nothing asks for it.
    """
    trace = _reasons(report, observed, thresholds)
    asked = sorted({*required, *(["external_benchmark"] if min_scores else [])})
    parts, others = sections.ships(judged or {}, asked, not trace, is_executed(part(report, "suite")))
    reasons = [*trace, *others]
    return {
        "schema_version": GATE_SCHEMA,
        "ship": not reasons,
        **{f"{name}_ship": verdict for name, verdict in parts.items()},
        "sections": {name: dict(one) for name, one in (judged or {}).items()},
        "required": asked,
        "min_scores": dict(min_scores or {}),
        "reasons": reasons,
        "thresholds": thresholds,
        "observed": observed,
    }


def is_executed(suite: dict[str, Any]) -> bool:
    """Whether the suite runs verifiers instead of comparing text."""
    return suite.get("executed") is True


def _reasons(report: dict[str, Any], observed: dict[str, float | None], limits: dict[str, float]) -> list[str]:
    def seen(name: str, otherwise: float) -> float:
        value = observed.get(name)
        return otherwise if value is None else value

    comparison = part(report, "comparison")
    n_items, n_clusters = seen("n_scored", 0), seen("n_clusters", 0)
    effect, low = seen("effect", -1), seen("ci_low", -1)
    rechecked = seen("rechecked_ci_low", -1)
    missing, tampered, overlap = seen("missing_rate", 1), seen("tamper_rate", 0), seen("train_overlap", 0)
    split = str(part(report, "suite").get("split", ""))
    checks = (
        (split.startswith("train"), "the suite is the training split"),
        (report.get("simulated") is not False, "the evaluation is simulated, or does not say that it is not"),
        (comparison.get("verdict") != "improved", f"the verdict is {comparison.get('verdict')!r}, not 'improved'"),
        (not low > 0, f"the interval of the effect begins at {low:.4g} and does not exclude zero"),
        (not rechecked > 0, f"computed again from the scores, the interval begins at {rechecked:.4g}"),
        (
            not (effect > 0 and effect >= limits["min_effect"]),
            f"the effect {effect:.4g} is not above {limits['min_effect']:.4g}",
        ),
        (
            n_items < limits["min_items"],
            f"{n_items:.0f} items were scored on both sides; {limits['min_items']:.0f} are needed",
        ),
        (n_clusters < limits["min_clusters"], f"{n_clusters:.0f} cluster(s); {limits['min_clusters']:.0f} are needed"),
        (not missing <= limits["max_missing_rate"], f"{missing:.1%} of the attempts were not observed on both sides"),
        (tampered > limits["max_tamper_rate"], f"{tampered:.1%} of the attempts touched what they must not"),
        (overlap > limits["max_train_overlap"], f"{overlap:.0f} held-out question(s) are in the training rows"),
    )
    return [reason for failed, reason in checks if failed]


def _scores(report: dict[str, Any], report_path: Path) -> dict[str, Path]:
    """`scores_<side>` -> score file."""
    paths = {s: score_path(part(part(report, "scores"), s), report_path.parent) for s in ("candidate", "baseline")}
    return {f"scores_{side}": path for side, path in paths.items() if path is not None}


def _document(
    found: Inspection, verdict: dict[str, Any], run_id: str, files: Mapping[str, Path], base: Path
) -> dict[str, Any]:
    entries = [
        {"kind": kind, "path": stored(path, base), "sha256": digest_file(path), "run_id": run_id}
        for kind, path in files.items()
    ]
    return {
        "schema_version": SCHEMA,
        "run_id": run_id,
        "created_at": utc_now(),
        "ship": verdict["ship"],
        "release_gate": verdict,
        "evidence": entries,
        "eval_report": {"path": entries[0]["path"], "sha256": entries[0]["sha256"]},
        "suite": part(found.report, "suite"),
        "candidate": {"digest": part(found.report, "candidate").get("digest")},
        "baseline": {"digest": part(found.report, "baseline").get("digest")},
        "verdict": part(found.report, "comparison").get("verdict"),
        "simulated": found.report.get("simulated") is not False,
        "smoke": found.report.get("smoke") is not False,
        **{name: verdict["sections"][name] for name in sections.DIAGNOSTICS if name in verdict["sections"]},
    }
