"""Cascades and their distillation."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from bashgym.api.http import Body, Space, reply
from bashgym.evals.wire import decode
from bashgym.runs import cascade, cascade_distill

router = APIRouter(prefix="/api/cascade")


class StopRequest(msgspec.Struct, forbid_unknown_fields=True):
    """POST /api/cascade/stop and /distill/stop."""

    cascade_id: str | None = None
    """A cascade's, or a distillation's; the newest where none is named."""


@router.post("/start")
def start(body: Body, space: Space) -> Response:
    """Starts the driver and answers at once."""
    return reply(cascade.submit(space.runs, body), 202)


@router.post("/stop")
def stop(body: Body, space: Space) -> Response:
    """Ends the driver and the run of its stage."""
    return reply(cascade.stop(space.runs, decode(body, StopRequest).cascade_id))


@router.get("/status")
def status(space: Space, cascade_id: str | None = None) -> Response:
    """The record, stage by stage."""
    return reply(cascade.status(space.runs, cascade_id))


@router.post("/distill")
def distill(body: Body, space: Space) -> Response:
    """One student from the stages of a completed cascade."""
    return reply(cascade_distill.submit(space.runs, body), 202)


@router.post("/distill/stop")
def distill_stop(body: Body, space: Space) -> Response:
    """Ends a distillation."""
    return reply(cascade_distill.stop(space.runs, decode(body, StopRequest).cascade_id))


@router.get("/distill/status")
def distill_status(space: Space, distill_id: str | None = None) -> Response:
    """The record of a distillation, run by run."""
    return reply(cascade_distill.status(space.runs, distill_id))
