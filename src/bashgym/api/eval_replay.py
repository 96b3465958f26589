"""DPPO replays: enrichment and the smoke plan."""

from __future__ import annotations

from fastapi import APIRouter, Response

from bashgym.api.http import Body, Space, reply
from bashgym.evals import replay, smoke

router = APIRouter(prefix="/api/eval/environments/dppo-replay")


@router.post("/enrich")
def enrich(body: Body) -> Response:
    """Adds training log probabilities and advantages to a replay file."""
    return reply({"dppo_replay": replay.enrich_file(body)})


@router.post("/smoke-plan")
def smoke_plan(body: Body, space: Space) -> Response:
    """Judges a replay, plans the launch and writes the smoke bundle. The plan's fields stand beside the verdict."""
    report = smoke.smoke_plan(body, space.settings)
    return reply({"plan": {**report.pop("launch_plan"), **report}})
