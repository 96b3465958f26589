"""The held-out trace gate: would the model make the tool call that the trace made? Candidate against base, paired by row.

An endpoint that fails is a missing observation; too many of them fail the job. The verdict is bound to data, endpoints, limits.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from bashgym.core.canonical import digest_file, digest_json
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import append_line, atomic_write_bytes
from bashgym.core.settings import Settings
from bashgym.evals import compare, jobs, registry, stats
from bashgym.evals.heldout_rows import Row, read_rows
from bashgym.evals.release_sections import evidence_gate
from bashgym.evals.tool_metrics import BINARY, METRICS, score
from bashgym.evals.wire import decode
from bashgym.evidence.overlap import trained_on
from bashgym.inference.client import ChatClient, ChatReply, ChatRequest, EndpointSpec, check_endpoint, endpoint_facts
from bashgym.inference.job import drop_torn_tail
from bashgym.inference.tool_text import read_tool_calls
from bashgym.store.jsonl import read_jsonl

SCHEMA = "bashgym.heldout_report.v1"
SIDES = ("base", "candidate")
ANSWERS = "answers.jsonl"
_MAX_FLIPS = 200


class HeldoutRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/heldout. Null limits mean the defaults of `_LIMITS`."""

    model_id: str
    dataset_path: str
    candidate: EndpointSpec
    base: EndpointSpec
    metric: str = "exact_match"
    limit: int | None = None
    min_trace_delta: float | None = None
    max_forgetting_drop: float | None = None
    require_ci_excludes_zero: bool | None = None
    forgetting_drops: dict[str, float] = {}
    environment_evidence: dict[str, Any] | None = None
    train_dataset_path: str | None = None
    """Training rows; held-out questions must not be among them."""
    n_resamples: int = 1000
    seed: int = 0
    max_tokens: int = 512
    request_timeout: float = 60.0
    max_concurrency: int = 64
    record_to_registry: bool = True


_LIMITS: dict[str, Any] = {"min_trace_delta": 0.05, "max_forgetting_drop": 0.05, "require_ci_excludes_zero": True}


def submit(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the request, starts the job, returns {job_id, model_id, metric, status, report, error, created_at} at once."""
    request = decode(body, HeldoutRequest)
    _check(request)
    secrets = {side: key for side in SIDES if (key := getattr(request, side).api_key)}
    plain = msgspec.to_builtins(request)
    for side in SIDES:
        plain[side].pop("api_key", None)
    plain["dataset_path"] = str(_file(request.dataset_path, "dataset_path"))
    if request.train_dataset_path:
        plain["train_dataset_path"] = str(_file(request.train_dataset_path, "train_dataset_path"))
    return shown(jobs.submit(settings, "heldout", plain, secrets))


def shown(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job as the endpoint shows it."""
    body = job.get("body") or {}
    names = ("job_id", "status", "report", "error", "created_at", "share", "text")
    return {**{name: job.get(name) for name in names}, "model_id": body.get("model_id"), "metric": body.get("metric")}


def _check(request: HeldoutRequest) -> None:
    registry.check_model_id(request.model_id)
    if request.metric not in METRICS:
        raise fail("invalid_field", f"metric is {request.metric!r}, not one of {', '.join(METRICS)}", "", ["metric"])
    checks = (
        ("limit", request.limit is None or request.limit >= 1, "must be at least 1"),
        ("n_resamples", 100 <= request.n_resamples <= 10_000, "must lie in 100 to 10000"),
        ("max_tokens", 1 <= request.max_tokens <= 65_536, "must lie in 1 to 65536"),
        ("request_timeout", 1 <= request.request_timeout <= 600, "must lie in 1 to 600"),
        ("max_concurrency", 1 <= request.max_concurrency <= 1024, "must lie in 1 to 1024"),
        ("min_trace_delta", -1 <= (request.min_trace_delta or 0) <= 1, "must lie in -1 to 1"),
        ("forgetting_drops", all(map(math.isfinite, request.forgetting_drops.values())), "must be finite"),
        ("max_forgetting_drop", 0 <= (request.max_forgetting_drop or 0) <= 1, "must lie in 0 to 1"),
    )
    for name, holds, reason in checks:
        if not holds:
            raise fail("invalid_field", f"{name} {reason}", fields=[name])
    for side in SIDES:
        try:
            check_endpoint(getattr(request, side))
        except BashGymError as error:
            raise fail(
                error.code, f"{side}: {error.message}", error.hint, [f"{side}.{f}" for f in error.fields]
            ) from error
    read_rows(_file(request.dataset_path, "dataset_path"), request.limit)


def _file(path: str, field: str) -> Path:
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise fail("dataset_missing", f"{found} does not exist", fields=[field])
    return found


def run(folder: Path, body: dict[str, Any], secrets: dict[str, str], progress: jobs.Progress) -> dict[str, Any]:
    """The job: asks both sides what is not answered yet, then judges. Called in the worker."""
    request = decode(body, HeldoutRequest)
    for side, key in secrets.items():
        getattr(request, side).api_key = key
    path = Path(request.dataset_path)
    rows, facts = read_rows(path, request.limit)
    answers = asyncio.run(_ask_all(folder, request, rows, progress))
    report = _report(folder, request, rows, facts, answers)
    if request.record_to_registry:
        registry.record(Settings.from_env(), request.model_id, "heldout", report)
    return report


async def _ask_all(
    folder: Path, request: HeldoutRequest, rows: list[Row], progress: jobs.Progress
) -> dict[tuple[str, int], dict[str, Any]]:
    """(side, row number) -> answer. What another attempt at this job was answered is not asked again."""
    path = folder / ANSWERS
    drop_torn_tail(path)
    found = {(a["side"], a["row"]): a for a in (read_jsonl(path)[0] if path.is_file() else []) if a["error"] is None}
    total = len(SIDES) * len(rows)
    for side in SIDES:
        left = [row for row in rows if (side, row.number) not in found]
        if not left:
            continue
        client = ChatClient(
            getattr(request, side), timeout_s=request.request_timeout, max_concurrency=request.max_concurrency
        )
        gate = asyncio.Semaphore(request.max_concurrency)

        async def one(row: Row, side: str = side, client: ChatClient = client, gate: asyncio.Semaphore = gate) -> None:
            async with gate:
                answer = await _ask(client, row, request.max_tokens)
            found[side, row.number] = answer = {"side": side, "row": row.number, **answer}
            append_line(path, msgspec.json.encode(answer))
            progress(0.95 * len(found) / total, f"{side} answers {len(found)}/{total}")

        async with client:
            await client.probe()
            await asyncio.gather(*(one(row) for row in left))
    return found


async def _ask(client: ChatClient, row: Row, max_tokens: int) -> dict[str, Any]:
    request = ChatRequest(messages=row.messages, tools=row.tools, temperature=0.0, max_tokens=max_tokens, seed=0)
    try:
        reply = await client.chat(request)
    except BashGymError as error:
        return {"call": None, "text": "", "error": {"code": error.code, "message": error.message[:300]}}
    return {"call": _call(reply), "text": reply.text[:2000], "error": None}


def _call(reply: ChatReply) -> list[Any] | None:
    """[name, arguments] of the first tool call: the endpoint's, else one in the model's text."""
    if reply.tool_calls:
        return [reply.tool_calls[0].name, reply.tool_calls[0].arguments]
    _, calls = read_tool_calls(reply.text)
    return [calls[0]["name"], calls[0]["arguments"]] if calls else None


def _report(
    folder: Path,
    request: HeldoutRequest,
    rows: list[Row],
    facts: dict[str, Any],
    answers: dict[tuple[str, int], dict[str, Any]],
) -> dict[str, Any]:
    scores = [_scored(row, request.metric, answers) for row in rows]
    path = folder / "scores.jsonl"
    atomic_write_bytes(path, b"".join(msgspec.json.encode(line) + b"\n" for line in scores))
    seen = [line for line in scores if line["base"] is not None and line["candidate"] is not None]
    missing = {side: sum(line[side] is None for line in scores) for side in SIDES}
    rate = 1 - len(seen) / len(scores)
    if rate > compare.MAX_MISSING:
        said = next(a["error"]["message"] for a in answers.values() if a["error"])
        each = f"base {missing['base']}, candidate {missing['candidate']}"
        message = f"{rate:.1%} of the rows were not observed on both sides ({each})"
        raise fail("too_many_missing", f"{message}: {said}", "Mend the endpoint, then resume the job.")
    measured = _measure(seen, request)
    limits = {
        name: default if getattr(request, name) is None else getattr(request, name) for name, default in _LIMITS.items()
    }
    contaminated = _contaminated(request, rows)
    evidence = evidence_gate(request.environment_evidence or {})
    reasons = _reasons(request, measured, limits, contaminated) + evidence["reasons"]
    base, candidate = ([line[side] for line in seen] for side in SIDES)
    document = {
        "schema_version": SCHEMA,
        "model_id": request.model_id,
        "metric": request.metric,
        **facts,
        "n": len(seen),
        "n_missing": missing,
        "missing_rate": rate,
        "n_clusters": measured["n_clusters"],
        "base_pass_rate": fmean(base),
        "candidate_pass_rate": fmean(candidate),
        "trace_delta": measured["effect"],
        "bootstrap": _bootstrap(measured),
        "mcnemar": measured["mcnemar"],
        "flips": _flips(seen),
        "forgetting_drops": request.forgetting_drops,
        "contaminated_rows": contaminated,
        "environment_evidence": evidence,
        "ship": not reasons,
        "reasons": reasons,
        "thresholds": limits,
        "scores": {"path": str(path), "sha256": digest_file(path)},
        "bound": {
            "dataset": {"path": request.dataset_path, "sha256": digest_file(Path(request.dataset_path))},
            "endpoints": {side: endpoint_facts(getattr(request, side)) for side in SIDES},
            "seed": request.seed,
            "n_resamples": request.n_resamples,
        },
    }
    return {**document, "report_digest": digest_json(document)}


def _scored(row: Row, metric: str, answers: Mapping[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    line: dict[str, Any] = {"row": row.number, "cluster": row.cluster, "gold": list(row.gold)}
    for side in SIDES:
        answer = answers[side, row.number]
        call = answer["call"]
        line[side] = None if answer["error"] else score(metric, (call[0], call[1]) if call else None, row.gold)
    return line


def _measure(seen: list[dict[str, Any]], request: HeldoutRequest) -> dict[str, Any]:
    """What `compare.judge` reads. `too_few_clusters` below two sessions."""
    differences = [line["candidate"] - line["base"] for line in seen]
    clusters = [line["cluster"] for line in seen]
    interval = stats.cluster_bootstrap(differences, clusters, n_resamples=request.n_resamples, seed=request.seed)
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    binary = request.metric in BINARY
    found: dict[str, Any] = {
        "n": len(seen),
        "n_clusters": len(set(clusters)),
        "missing_rate": 0.0,
        "effect": fmean(differences),
        "ci_low": interval.low,
        "ci_high": interval.high,
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
    }


def _reasons(
    request: HeldoutRequest, found: Mapping[str, Any], limits: Mapping[str, Any], contaminated: list[int]
) -> list[str]:
    """Why it does not ship; empty if it does."""
    strict = limits["require_ci_excludes_zero"] and found["verdict"] != compare.Verdict.IMPROVED
    forgotten = {t: d for t, d in request.forgetting_drops.items() if not d <= limits["max_forgetting_drop"]}
    checks = (
        (strict, f"{found['verdict']}: {'; '.join(found['reasons'])}"),
        (not found["effect"] > 0, "the candidate is not better"),
        (
            found["effect"] < limits["min_trace_delta"],
            f"the gain {found['effect']:.4g} is below {limits['min_trace_delta']:g}",
        ),
        (bool(forgotten), f"forgotten: {', '.join(f'{task} by {drop:.3g}' for task, drop in forgotten.items())}"),
        (bool(contaminated), f"{len(contaminated)} held-out rows are in the training data"),
    )
    return [reason for failed, reason in checks if failed]


def _contaminated(request: HeldoutRequest, rows: list[Row]) -> list[int]:
    if not request.train_dataset_path:
        return []
    questions = {str(row.number): row.messages for row in rows}
    return sorted(int(row) for row in trained_on(questions, Path(request.train_dataset_path)))


def _flips(seen: list[dict[str, Any]]) -> dict[str, list[int]]:
    gained = [line["row"] for line in seen if line["candidate"] > line["base"]]
    lost = [line["row"] for line in seen if line["candidate"] < line["base"]]
    return {"gained": gained[:_MAX_FLIPS], "lost": lost[:_MAX_FLIPS]}
