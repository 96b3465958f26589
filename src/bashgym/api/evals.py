"""Evaluations on executed held-out tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from bashgym.api.http import Body, Space, reply
from bashgym.evals import suite_job

router = APIRouter(prefix="/api/evals")


@router.get("")
def list_evals(space: Space, limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> Response:
    """The evaluations, newest first."""
    return reply({"evals": space.evals.list()[:limit]})


@router.post("")
def start(body: Body, space: Space) -> Response:
    """Starts a detached evaluation, or goes on with the one of `eval_id`, and answers at once."""
    return reply(suite_job.submit(space.evals, space.settings, body), 202)


@router.get("/{eval_id}")
def get(eval_id: str, space: Space) -> Response:
    """One report, or how far it is."""
    return reply(suite_job.shown(space.evals, space.settings, eval_id))
