"""Finished evaluations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from bashgym.api.http import Space, reply

router = APIRouter(prefix="/api/evals")


@router.get("")
def list_evals(space: Space, limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> Response:
    """The evaluations, newest first."""
    return reply({"evals": space.evals.list()[:limit]})


@router.get("/{eval_id}")
def get(eval_id: str, space: Space) -> Response:
    """One report."""
    return reply(space.evals.get(eval_id))
