"""The held-out trace gate and evaluation jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from bashgym.api.http import Body, Space, reply
from bashgym.evals import heldout, jobs

router = APIRouter(prefix="/api/eval")
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.post("/heldout")
def start_heldout(body: Body, space: Space) -> Response:
    """Starts a detached job and answers at once."""
    return reply(heldout.submit(space.settings, body))


@router.get("/heldout")
def list_heldout(space: Space, limit: Limit = 20) -> Response:
    """The newest held-out jobs."""
    return reply({"jobs": jobs.list_jobs(space.settings, "heldout", limit)})


@router.get("/heldout/{job_id}")
def get_heldout(job_id: str, space: Space) -> Response:
    """One held-out job with its report."""
    return reply(heldout.shown(jobs.get(space.settings, job_id)))


@router.get("/jobs")
def list_jobs(space: Space, kind: str | None = None, limit: Limit = 20) -> Response:
    """The newest evaluation jobs."""
    return reply({"jobs": jobs.list_jobs(space.settings, kind, limit)})


@router.get("/jobs/{job_id}")
def get_job(job_id: str, space: Space) -> Response:
    """One evaluation job."""
    return reply(jobs.get(space.settings, job_id))


@router.post("/jobs/{job_id}/stop")
def stop_job(job_id: str, space: Space) -> Response:
    """Ends a job and everything it started."""
    return reply(jobs.stop(space.settings, job_id))
