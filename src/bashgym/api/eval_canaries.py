"""Reward-hacking canaries."""

from __future__ import annotations

from fastapi import APIRouter, Response

from bashgym.api.http import Body, Space, reply
from bashgym.evals.canaries import run

router = APIRouter(prefix="/api/eval/environments")


@router.post("/reward-hacking-canaries")
def reward_hacking_canaries(body: Body, space: Space) -> Response:
    """Attacks that must earn nothing here, each shown to earn something from a naive harness."""
    return reply(run(space.settings, body))
