"""The held-out trace gate: would the model make the tool call that the trace made? Candidate against base, paired by row.

Owns: the request, what is refused before anything is sent, and asking both endpoints, resumably. An endpoint that fails
is a missing observation; too many of them fail the job. Does not own: the verdict (`heldout_report`).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import append_line
from bashgym.core.settings import Settings
from bashgym.evals import jobs, registry
from bashgym.evals.compare import MAX_MISSING
from bashgym.evals.heldout_report import SIDES, leaked_rows, make_report
from bashgym.evals.heldout_rows import HeldOut, Row, read_rows
from bashgym.evals.release_sections import evidence_gate
from bashgym.evals.tool_metrics import METRICS
from bashgym.evals.wire import decode
from bashgym.inference.client import ChatClient, ChatReply, ChatRequest, EndpointSpec, check_endpoint
from bashgym.inference.job import drop_torn_tail
from bashgym.inference.tool_text import read_tool_calls
from bashgym.store.jsonl import read_jsonl

KIND = "heldout"
ANSWERS = "answers.jsonl"
_MAX_NAME, _MAX_ARGUMENTS, _MAX_TEXT = 256, 1 << 20, 2000
"""Characters of an answer that are kept; arguments cut at this length are no JSON and match nothing."""
_ASKING = 0.95
"""Share of the progress bar until all answers are there."""


class HeldoutRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/heldout. Null limits mean the defaults of `heldout_report.LIMITS`."""

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
    """Sections of the release gate (`release_sections.EnvironmentEvidence`)."""
    train_dataset_path: str | None = None
    """Training rows; held-out questions must not be among them."""
    n_resamples: int = 1000
    seed: int = 0
    """Of the bootstrap; answers are greedy."""
    max_tokens: int = 512
    request_timeout: float = 60.0
    max_concurrency: int = 64
    record_to_registry: bool = True


class _Work(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the worker is given: the request, without keys, and which data were meant."""

    request: HeldoutRequest
    digests: dict[str, str]
    """Path -> sha256."""


def submit(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the request, starts the job, returns {job_id, model_id, metric, status, report, error, created_at} at once."""
    request = decode(body, HeldoutRequest)
    request.dataset_path = str(_file(request.dataset_path, "dataset_path"))
    if request.train_dataset_path:
        request.train_dataset_path = str(_file(request.train_dataset_path, "train_dataset_path"))
    held = _check(request)
    digests = {request.dataset_path: held.sha256}
    if train := request.train_dataset_path:
        digests[train] = digest_file(Path(train))
    secrets = {side: key for side in SIDES if (key := getattr(request, side).api_key)}
    plain = msgspec.to_builtins(_Work(request=request, digests=digests))
    for side in SIDES:
        plain["request"][side].pop("api_key", None)
    return shown(jobs.submit(settings, KIND, plain, secrets))


def get(settings: Settings, job_id: str) -> dict[str, Any]:
    """One held-out job with its report; `eval_not_found`."""
    return shown(jobs.get(settings, job_id, KIND))


def newest(settings: Settings, limit: int = 20) -> list[dict[str, Any]]:
    """The newest held-out jobs."""
    return [shown(job) for job in jobs.list_jobs(settings, KIND, limit)]


def shown(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job as the endpoint shows it."""
    names = ("job_id", "status", "report", "error", "created_at", "share", "text")
    request = job["body"]["request"]
    return {**{name: job[name] for name in names}, "model_id": request["model_id"], "metric": request["metric"]}


def _check(request: HeldoutRequest) -> HeldOut:
    """Everything that can be refused before anything is sent."""
    registry.check_model_id(request.model_id)
    if request.metric not in METRICS:
        raise fail("invalid_field", f"metric is {request.metric!r}, not one of {', '.join(METRICS)}", "", ["metric"])
    checks = (
        ("limit", request.limit is None or request.limit >= 1, "must be at least 1"),
        ("n_resamples", 100 <= request.n_resamples <= 10_000, "must lie in 100 to 10000"),
        ("seed", request.seed >= 0, "must be at least 0"),
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
            raise _of(side, error) from error
    evidence_gate(request.environment_evidence or {})
    return read_rows(Path(request.dataset_path), request.limit)


def _of(side: str, error: BashGymError) -> BashGymError:
    return fail(error.code, f"{side}: {error.message}", error.hint, [f"{side}.{name}" for name in error.fields])


def _file(path: str, field: str) -> Path:
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise fail("dataset_missing", f"{found} does not exist", fields=[field])
    return found


def run(folder: Path, body: dict[str, Any], secrets: dict[str, str], progress: jobs.Progress) -> dict[str, Any]:
    """The job: asks both sides what is not answered yet, then judges. Called in the worker.

    `digest_mismatch` if the data are not what was submitted, `endpoint_unreachable`, `too_many_missing`.
    """
    work = decode(body, _Work)
    request = work.request
    for side, key in secrets.items():
        getattr(request, side).api_key = key
    for path, digest in work.digests.items():
        if digest_file(_file(path, "dataset_path")) != digest:
            raise fail("digest_mismatch", f"{path} has changed since the job was submitted", "Submit it anew.")
    held = read_rows(Path(request.dataset_path), request.limit)
    leaked = leaked_rows(request, held.rows)
    answers = asyncio.run(_Asking(folder, request, held.rows, progress).all())
    report = make_report(folder, request, held, leaked, answers)
    if request.record_to_registry:
        _record(request.model_id, folder.name, report)
    return report


def _record(model_id: str, job_id: str, report: dict[str, Any]) -> None:
    """Once for each job, however often its worker was killed."""
    settings = Settings.from_env()
    try:
        latest = registry.verdict(settings, model_id)["latest_heldout_eval"]
    except LookupError:
        latest = None
    if latest is None or latest["document"].get("job_id") != job_id:
        registry.record(settings, model_id, "heldout", {"job_id": job_id, **report})


class _Asking:
    """Both sides at once. Each answer is kept as it comes; what an earlier attempt at this job was answered stands."""

    def __init__(self, folder: Path, request: HeldoutRequest, rows: list[Row], progress: jobs.Progress) -> None:
        self._path, self._request, self._rows, self._progress = folder / ANSWERS, request, rows, progress
        self._missing: set[int] = set()
        drop_torn_tail(self._path)
        kept = read_jsonl(self._path)[0] if self._path.is_file() else []
        self._found = {(a["side"], a["row"]): a for a in kept if a["error"] is None}

    async def all(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(side, row number) -> answer. Nothing is asked before every side that is needed has shown that it is there."""
        left = {side: [row for row in self._rows if (side, row.number) not in self._found] for side in SIDES}
        how: dict[str, Any] = {
            "timeout_s": self._request.request_timeout,
            "max_concurrency": self._request.max_concurrency,
        }
        async with AsyncExitStack() as stack:
            clients = {
                side: await stack.enter_async_context(ChatClient(getattr(self._request, side), **how))
                for side in SIDES
                if left[side]
            }
            await _together([_probe(side, client) for side, client in clients.items()])
            work = []
            for side, client in clients.items():
                rows = iter(left[side])
                width = min(self._request.max_concurrency, len(left[side]))
                work += [self._ask_some(side, client, rows) for _ in range(width)]
            await _together(work)
        return self._found

    async def _ask_some(self, side: str, client: ChatClient, rows: Iterator[Row]) -> None:
        total = len(SIDES) * len(self._rows)
        for row in rows:
            answer = {"side": side, "row": row.number, **await _ask(client, row, self._request.max_tokens)}
            self._found[side, row.number] = answer
            # Not synced: what a power cut takes is asked again.
            append_line(self._path, msgspec.json.encode(answer), sync=False)
            if answer["error"]:
                self._miss(side, row, answer["error"]["message"])
            self._progress(_ASKING * len(self._found) / total, f"answers {len(self._found)}/{total}")

    def _miss(self, side: str, row: Row, said: str) -> None:
        """`too_many_missing` as soon as no verdict can come of it: the rest need not be paid for."""
        self._missing.add(row.number)
        if len(self._missing) > MAX_MISSING * len(self._rows):
            message = (
                f"{len(self._missing)} of {len(self._rows)} rows were not observed, the last on the {side}: {said}"
            )
            raise fail("too_many_missing", message, "Mend the endpoint, then resume the job.")


async def _together(work: list[Any]) -> None:
    """All of `work` at once; the first typed error ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        raise next((e for e in errors.exceptions if isinstance(e, BashGymError)), errors) from None


async def _probe(side: str, client: ChatClient) -> None:
    try:
        await client.probe()
    except BashGymError as error:
        raise _of(side, error) from error


async def _ask(client: ChatClient, row: Row, max_tokens: int) -> dict[str, Any]:
    request = ChatRequest(messages=row.messages, tools=row.tools, temperature=0.0, max_tokens=max_tokens, seed=0)
    try:
        reply = await client.chat(request)
    except BashGymError as error:
        said = {"code": error.code, "message": error.message[:300]}
        return {"call": None, "text": "", "finish_reason": "", "error": said}
    text, finish = reply.text[:_MAX_TEXT], reply.finish_reason[:_MAX_NAME]
    return {"call": _call(reply), "text": text, "finish_reason": finish, "error": None}


def _call(reply: ChatReply) -> list[Any] | None:
    """[name, arguments] of the first tool call: the endpoint's, else one in the model's text."""
    if reply.tool_calls:
        return [reply.tool_calls[0].name[:_MAX_NAME], reply.tool_calls[0].arguments[:_MAX_ARGUMENTS]]
    _, calls = read_tool_calls(reply.text[:_MAX_ARGUMENTS])
    if not calls:
        return None
    # As text: what a model writes may hold half a character, or nest deeper than the reader of the answers goes.
    name = calls[0]["name"][:_MAX_NAME].encode("utf-8", "backslashreplace").decode()
    try:
        return [name, json.dumps(calls[0]["arguments"])]
    except RecursionError:
        return [name, "nested too deeply"]
