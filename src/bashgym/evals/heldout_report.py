"""The verdict of a held-out trace gate, from rows and answers alone: the same answers give the same report, byte for byte.

Owns: scores, what ships and why not, and what the verdict is bound to. Does not own: how the answers were come by.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from bashgym.core.canonical import digest_bytes, digest_file, digest_json
from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_bytes, read_object
from bashgym.evals import compare, stats
from bashgym.evals.contamination import contaminated
from bashgym.evals.heldout_rows import HeldOut, Row
from bashgym.evals.release_sections import evidence_gate
from bashgym.evals.tool_metrics import BINARY, score
from bashgym.inference.client import endpoint_facts

if TYPE_CHECKING:
    from bashgym.evals.heldout import HeldoutRequest

SCHEMA = "bashgym.heldout_report.v1"
SIDES = ("base", "candidate")
SCORES = "scores.jsonl"
LIMITS: dict[str, Any] = {"min_trace_delta": 0.05, "max_forgetting_drop": 0.05, "require_ci_excludes_zero": True}
"""What a null in the request means."""
_MAX_FLIPS = 200
Answers = Mapping[tuple[str, int], Mapping[str, Any]]
"""(side, row number) -> {call: [name, arguments] or null, text, finish_reason, error}."""


def make_report(
    folder: Path, request: HeldoutRequest, held: HeldOut, leaked: Mapping[str, Any], answers: Answers
) -> dict[str, Any]:
    """The report (`bashgym.heldout_report.v1`); writes the per-row scores beside it. `too_few_clusters` below two sessions."""
    scores = [_scored(row, request.metric, answers) for row in held.rows]
    raw = b"".join(msgspec.json.encode(line) + b"\n" for line in scores)
    atomic_write_bytes(folder / SCORES, raw)
    seen = [line for line in scores if all(line[side] is not None for side in SIDES)]
    limits = {n: default if (given := getattr(request, n)) is None else given for n, default in LIMITS.items()}
    bound = _bound(request, held, answers, limits)
    measured = _measure(seen, request, 1 - len(seen) / len(scores), _look(folder, request.metric, bound))
    evidence = evidence_gate(request.environment_evidence or {})
    reasons = _reasons(request, measured, limits, leaked) + evidence["reasons"]
    base, candidate = ([line[side] for line in seen] for side in SIDES)
    document = {
        "schema_version": SCHEMA,
        "model_id": request.model_id,
        "metric": request.metric,
        **held.facts,
        "n": len(seen),
        "n_missing": {side: sum(line[side] is None for line in scores) for side in SIDES},
        "missing_rate": measured["missing_rate"],
        "n_clusters": measured["n_clusters"],
        "base_pass_rate": fmean(base),
        "candidate_pass_rate": fmean(candidate),
        "trace_delta": measured["effect"],
        "bootstrap": _bootstrap(measured),
        "mcnemar": measured["mcnemar"],
        "answers": {side: _answer_facts(side, held.rows, answers) for side in SIDES},
        "flips": _flips(seen),
        "forgetting_drops": request.forgetting_drops,
        "contaminated_rows": leaked,
        "environment_evidence": evidence,
        "ship": not reasons,
        "reasons": reasons,
        # Who gives the interval up is told what it, and the tests beside it, would have said.
        "waived": [] if limits["require_ci_excludes_zero"] else measured["reasons"],
        "thresholds": limits,
        "scores": {"path": SCORES, "sha256": digest_bytes(raw)},
        "bound": bound,
    }
    return {**document, "report_digest": digest_json(document)}


def _scored(row: Row, metric: str, answers: Answers) -> dict[str, Any]:
    line: dict[str, Any] = {"row": row.number, "cluster": row.cluster, "gold": list(row.gold)}
    for side in SIDES:
        answer = answers[side, row.number]
        call = answer["call"]
        line[side] = None if answer["error"] else score(metric, (call[0], call[1]) if call else None, row.gold)
    return line


def _bound(request: HeldoutRequest, held: HeldOut, answers: Answers, limits: dict[str, Any]) -> dict[str, Any]:
    """What was judged, by what, within which limits: with other ones it is another verdict."""
    train = request.train_dataset_path
    return {
        "model_id": request.model_id,
        "dataset": {"path": request.dataset_path, "sha256": held.sha256, "n_scored": len(held.rows)},
        "train_dataset": {"path": train, "sha256": digest_file(Path(train))} if train else None,
        "endpoints": {side: endpoint_facts(getattr(request, side)) for side in SIDES},
        "answers": {
            side: digest_json([[r.number, answers[side, r.number]["call"]] for r in held.rows]) for side in SIDES
        },
        "thresholds": limits,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "n_resamples": request.n_resamples,
    }


def _look(folder: Path, metric: str, bound: Mapping[str, Any]) -> int:
    """Which look at these rows with this base it is. The same answers under the same metric are the same look.

    A base is the same by its endpoint or by its answers; a candidate by its answers, so that neither a new name nor a
    second try with other luck comes for free.
    """
    seen: list[tuple[str, str]] = []
    others = (path for path in folder.parent.glob("*/report.json") if path.parent != folder)
    for path in sorted(others, key=lambda path: (path.stat().st_mtime_ns, path.parent.name)):
        look = _look_of(path, bound)
        seen += [look] if look and look not in seen else []
    ours = (metric, bound["answers"]["candidate"])
    return seen.index(ours) + 1 if ours in seen else len(seen) + 1


def _look_of(path: Path, bound: Mapping[str, Any]) -> tuple[str, str] | None:
    """(metric, digest of the candidate's answers) of another report, if it is about these rows and this base."""
    try:
        report: dict[str, Any] = read_object(path)
        if report["schema_version"] != SCHEMA:
            return None
        theirs = report["bound"]
        if theirs["dataset"]["sha256"] != bound["dataset"]["sha256"]:
            return None
        same_endpoint = theirs["endpoints"]["base"]["digest"] == bound["endpoints"]["base"]["digest"]
        same = same_endpoint or theirs["answers"]["base"] == bound["answers"]["base"]
        return (report["metric"], theirs["answers"]["candidate"]) if same else None
    except (BashGymError, KeyError, TypeError):
        return None  # no report of ours


def _measure(seen: list[dict[str, Any]], request: HeldoutRequest, missing_rate: float, look: int) -> dict[str, Any]:
    """What `compare.judge` reads and says. `too_few_clusters` below two sessions."""
    differences = [line["candidate"] - line["base"] for line in seen]
    clusters = [line["cluster"] for line in seen]
    how: dict[str, Any] = {"n_resamples": request.n_resamples, "seed": request.seed}
    interval = stats.cluster_bootstrap(differences, clusters, **how)
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    binary = request.metric in BINARY
    found: dict[str, Any] = {
        "n": len(seen),
        "n_clusters": len(set(clusters)),
        "missing_rate": missing_rate,
        "effect": fmean(differences),
        "ci_low": interval.low,
        "ci_high": interval.high,
        "gate": compare.gate_interval(differences, clusters, looks=look, **how),
        "mcnemar": {"b": lost, "c": gained, "p_value": stats.mcnemar_exact(lost, gained)} if binary else None,
        "noise_floor": None,
    }
    verdict, reasons = compare.judge(found)
    return {**found, "verdict": verdict, "reasons": reasons}


def _bootstrap(found: Mapping[str, Any]) -> dict[str, Any]:
    significant = found["verdict"] in (compare.Verdict.IMPROVED, compare.Verdict.REGRESSED)
    return {
        "mean": found["effect"],
        "ci_low": found["ci_low"],
        "ci_high": found["ci_high"],
        "significant": significant,
        "better": found["verdict"] == compare.Verdict.IMPROVED,
        "n_clusters": found["n_clusters"],
        "verdict": str(found["verdict"]),
        "gate": found["gate"],
    }


def _reasons(
    request: HeldoutRequest, found: Mapping[str, Any], limits: Mapping[str, Any], leaked: Mapping[str, Any]
) -> list[str]:
    """Why it does not ship; empty if it does."""
    strict = limits["require_ci_excludes_zero"] and found["verdict"] != compare.Verdict.IMPROVED
    invalid = found["verdict"] == compare.Verdict.INVALID
    forgotten = {t: d for t, d in request.forgetting_drops.items() if not d <= limits["max_forgetting_drop"]}
    gain, least = found["effect"], limits["min_trace_delta"]
    checks = (
        (strict or invalid, f"{found['verdict']}: {'; '.join(found['reasons'])}"),
        (not gain > 0, "the candidate is not better"),
        (gain < least, f"the gain {gain:.4g} is below {least:g}"),
        (bool(forgotten), f"forgotten: {', '.join(f'{task} by {drop:.3g}' for task, drop in forgotten.items())}"),
        (bool(leaked), f"{len(leaked)} held-out rows are in the training data"),
    )
    return [reason for failed, reason in checks if failed]


def leaked_rows(request: HeldoutRequest, rows: list[Row]) -> dict[str, Any]:
    """Line -> {kind, row of the training data} of questions that were trained on."""
    if not request.train_dataset_path:
        return {}
    return contaminated({str(row.number): row.question for row in rows}, Path(request.train_dataset_path))


def _answer_facts(side: str, rows: list[Row], answers: Answers) -> dict[str, int]:
    given = [answers[side, row.number] for row in rows]
    return {
        "without_call": sum(answer["call"] is None and not answer["error"] for answer in given),
        "cut_at_max_tokens": sum(answer["finish_reason"] == "length" for answer in given),
    }


def _flips(seen: list[dict[str, Any]]) -> dict[str, list[int]]:
    gained = [line["row"] for line in seen if line["candidate"] > line["base"]]
    lost = [line["row"] for line in seen if line["candidate"] < line["base"]]
    return {"gained": gained[:_MAX_FLIPS], "lost": lost[:_MAX_FLIPS]}
