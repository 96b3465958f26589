"""The held-out trace gate and evaluation jobs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from bashgym.api.http import Body, Space, reply
from bashgym.evals import heldout, jobs
from bashgym.evals.wire import decode

router = APIRouter(prefix="/api/eval")
Limit = Annotated[int, Query(ge=1, le=1000)]


class ApiKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a held-out job the first two, of rollouts the last."""

    base: str = ""
    candidate: str = ""
    endpoint: str = ""


class ResumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """POST /api/eval/jobs/{job_id}/resume."""

    api_keys: ApiKeys = ApiKeys()
    """Keys are not kept, so they are given again."""


@router.post("/heldout")
def start_heldout(body: Body, space: Space) -> Response:
    """Starts a detached job and answers at once."""
    return reply(heldout.submit(space.settings, body), 202)


@router.get("/heldout")
def list_heldout(space: Space, limit: Limit = 20) -> Response:
    """The newest held-out jobs."""
    return reply({"jobs": heldout.newest(space.settings, limit)})


@router.get("/heldout/{job_id}")
def get_heldout(job_id: str, space: Space) -> Response:
    """One held-out job with its report."""
    return reply(heldout.get(space.settings, job_id))


@router.get("/jobs")
def list_jobs(space: Space, kind: str | None = None, limit: Limit = 20) -> Response:
    """The newest evaluation jobs, without their reports."""
    return reply({"jobs": [jobs.brief(job) for job in jobs.list_jobs(space.settings, kind, limit)]})


@router.get("/jobs/{job_id}")
def get_job(job_id: str, space: Space) -> Response:
    """One evaluation job."""
    return reply(jobs.get(space.settings, job_id))


@router.post("/jobs/{job_id}/stop")
def stop_job(job_id: str, space: Space) -> Response:
    """Ends a job and everything it started."""
    return reply(jobs.brief(jobs.stop(space.settings, job_id)))


@router.post("/jobs/{job_id}/resume")
def resume_job(job_id: str, body: Body, space: Space) -> Response:
    """Goes on with a job that failed, was stopped or lost its worker."""
    keys = msgspec.to_builtins(decode(body, ResumeRequest).api_keys)
    return reply(jobs.brief(jobs.resume(space.settings, job_id, keys)))
