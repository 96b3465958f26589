"""Environment gates, benchmarks, and what is known of a model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from bashgym.api.http import Body, Space, reply
from bashgym.evals import gates

router = APIRouter(prefix="/api/eval")
Names = Annotated[list[str] | None, Query()]


@router.post("/environments/passk")
def passk(body: Body, space: Space) -> Response:
    """pass@k of attempts that the caller has observed."""
    return reply(gates.passk(space.settings, body))


@router.post("/environments/holdout-gate")
def holdout_gate(body: Body, space: Space) -> Response:
    """Whole groups held out, and judged."""
    return reply(gates.holdout_gate(space.settings, body))


@router.post("/environments/holdout-comparison")
def holdout_comparison(body: Body, space: Space) -> Response:
    """Candidate against base on the same attempts, paired."""
    return reply(gates.comparison(space.settings, body))


@router.post("/environments/spurious-reward-control")
def spurious_reward_control(body: Body, space: Space) -> Response:
    """Is it more than a reward without meaning gives?"""
    return reply(gates.control(space.settings, body))


@router.post("/benchmarks/ingest")
def ingest(body: Body, space: Space) -> Response:
    """What lm-eval results say was forgotten."""
    return reply(gates.ingest(space.settings, body))


@router.post("/benchmarks/external-ingest")
def external_ingest(body: Body, space: Space) -> Response:
    """The result of another harness, filed under the model."""
    return reply(gates.external_ingest(space.settings, body))


@router.get("/benchmark-commands")
def benchmark_commands(base_url: str, model: str, tasks: Names = None, include: Names = None) -> Response:
    """Commands to copy; nothing is run."""
    return reply({"commands": gates.benchmark_commands(base_url, model, tasks, include)})


@router.get("/verdict/{model_id:path}")
def verdict(model_id: str, space: Space) -> Response:
    """The latest evaluations of a model."""
    return reply(gates.verdict(space.settings, model_id))
