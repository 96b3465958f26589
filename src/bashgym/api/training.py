"""Runs: start, watch, control, judge."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response

from bashgym.api.http import Body, Space, reply
from bashgym.core.errors import fail

router = APIRouter(prefix="/api/training")
Limit = Annotated[int, Query(ge=1, le=1000)]
Names = Annotated[list[str] | None, Query()]
HeaderText = Annotated[str | None, Header(max_length=200)]
_ORIGIN = {
    "terminal_id": "x-bashgym-origin-terminal",
    "panel_id": "x-bashgym-origin-panel",
    "agent": "x-bashgym-origin-agent",
}


@router.post("/start")
def start(
    *,
    body: Body,
    space: Space,
    request: Request,
    idempotency_key: HeaderText = None,
    x_bashgym_correlation_id: HeaderText = None,
    force: Names = None,
    dry_run: bool = False,
    queue: bool = False,
    stop_on_error: bool = False,
) -> Response:
    """Starts a run and answers at once. `Idempotency-Key` and `X-BashGym-*` headers fill what the body leaves out.

    With the query `queue=true` the run waits for a free slot; `stop_on_error=true` holds the queue if it fails.
    """
    if stop_on_error and not queue:
        raise fail("usage", "stop_on_error belongs to queue=true", fields=["stop_on_error"])
    defaults = {"idempotency_key": idempotency_key, "correlation_id": x_bashgym_correlation_id}
    whole = {**{name: value for name, value in defaults.items() if value}, **body}
    doc = space.runs.start(
        whole,
        force=force or (),
        dry_run=dry_run,
        origin=_origin(request),
        queued=queue,
        stop_on_error=stop_on_error,
    )
    return reply(doc)


def _origin(request: Request) -> dict[str, Any]:
    told = {name: request.headers[header][:200] for name, header in _ORIGIN.items() if header in request.headers}
    return {"kind": "api", **told}


@router.post("/check")
def check(body: Body, space: Space, force: Names = None) -> Response:
    """The whole preflight of a start, starting nothing; blocking findings are told, not refused."""
    prepared = space.runs.check(body, force or ())
    return reply(
        {
            "ok": not prepared.blocked,
            "preflight": msgspec.to_builtins(prepared.report),
            "estimate": prepared.estimate,
            "blocked": [finding.code for finding in prepared.blocked],
            "warnings": prepared.request.warnings,
        }
    )


@router.get("")
def list_runs(space: Space, status: str | None = None, limit: Limit = 50) -> Response:
    """The newest runs."""
    return reply(space.runs.list_runs(status, limit))


@router.get("/capabilities")
def capabilities() -> Response:
    """Every method, field and bound."""
    from bashgym.methods.catalog import capabilities as all_of_it

    return reply(all_of_it())


@router.get("/methods")
def methods() -> Response:
    """The methods alone."""
    from bashgym.methods.catalog import capabilities as all_of_it

    return reply({"methods": all_of_it()["strategies"]})


@router.get("/docs")
def docs(topic: str | None = None, include_content: bool = False) -> Response:
    """Short texts by topic."""
    from bashgym.methods.catalog import docs as read

    return reply(read(topic, include_content))


@router.get("/plan")
def plan(strategy: str = "sft", hardware: str = "local_12gb", data: str = "gold_traces") -> Response:
    """The recipe of a method."""
    from bashgym.methods.plan import make_plan

    return reply(make_plan(strategy, hardware, data))


@router.get("/runs")
def runs(space: Space) -> Response:
    """The run directories, newest first."""
    return reply(space.runs.runs())


@router.get("/runs/{run_id}/metrics")
def metrics(run_id: str, space: Space) -> Response:
    """Every metric point."""
    return reply(space.runs.metrics(run_id))


@router.get("/runs/{run_id}/analysis")
def analysis(run_id: str, space: Space) -> Response:
    """The same object as `training analyze`."""
    return reply(space.runs.analysis(run_id))


@router.get("/runs/{run_id}/classification")
def classification(run_id: str, space: Space) -> Response:
    """The same object as `training classify`."""
    return reply(space.runs.classification(run_id))


@router.get("/queue")
def queue_list(space: Space) -> Response:
    """Who trains and who waits, in order."""
    return reply(space.runs.queue_list())


@router.post("/queue/run")
def queue_run(space: Space) -> Response:
    """Launches what is due, and goes on where a failed run holds the queue."""
    return reply(space.runs.queue_run())


@router.post("/queue/{run_id}/move")
def queue_move(run_id: str, body: Body, space: Space) -> Response:
    """Another place in the order: {"to": position from 1}."""
    to = body.get("to")
    if not isinstance(to, int) or isinstance(to, bool) or set(body) != {"to"}:
        raise fail("invalid_field", 'the body is {"to": N}, N being a position from 1', fields=["to"])
    return reply(space.runs.queue_move(run_id, to))


@router.delete("/queue/{run_id}")
def queue_remove(run_id: str, space: Space) -> Response:
    """Takes a waiting run out; it becomes cancelled."""
    return reply(space.runs.queue_remove(run_id))


@router.get("/diff")
def diff(a: str, b: str, space: Space) -> Response:
    """What differs between the runs `a` and `b`."""
    return reply(space.runs.diff(a, b))


@router.post("/managed/submit")
def managed_submit(body: Body) -> Response:
    """Refused."""
    raise _managed(str(body.get("platform") or "managed"))


@router.get("/managed/{platform}/{job_id}")
def managed_job(platform: str, job_id: str) -> Response:
    """Refused."""
    raise _managed(f"{platform}/{job_id}")


def _managed(what: str) -> Exception:
    return fail(
        "target_other_surface",
        f"{what[:120]!r}: managed fine-tuning services are not in this version",
        "POST /api/training/start trains on this machine.",
        ["platform"],
    )


@router.get("/{run_id}")
def get(run_id: str, space: Space) -> Response:
    """Where one run stands."""
    return reply(space.runs.get(run_id))


@router.get("/{run_id}/log")
def log(run_id: str, space: Space, tail: Annotated[int, Query(ge=0)] = 500, grep: str | None = None) -> Response:
    """The end of the log; 413 for the whole of one that is too large."""
    return reply(space.runs.log(run_id, tail, grep))


@router.get("/{run_id}/samples")
def samples(
    *,
    run_id: str,
    space: Space,
    grep: str | None = None,
    step: str | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    status: str | None = None,
    limit: Limit = 50,
) -> Response:
    """The last samples that pass every filter."""
    filters = {"grep": grep, "step": step, "min_reward": min_reward, "max_reward": max_reward, "status": status}
    return reply(space.runs.samples(run_id, **filters, limit=limit))


@router.post("/{run_id}/pause")
def pause(run_id: str, space: Space) -> Response:
    """Checkpoint at the next step and free the memory."""
    return reply(space.runs.pause(run_id))


@router.post("/{run_id}/resume")
def resume(run_id: str, space: Space) -> Response:
    """Go on from the last valid checkpoint."""
    return reply(space.runs.resume(run_id))


@router.post("/{run_id}/stop")
def stop(run_id: str, space: Space) -> Response:
    """End the run; it becomes cancelled."""
    return reply(space.runs.stop(run_id))
