"""Rollouts: a model, or given commands, against environments in the sandbox."""

from __future__ import annotations

from fastapi import APIRouter, Response

from bashgym.api.http import Body, Space, reply
from bashgym.evals import jobs, rollout_job
from bashgym.evals.local_rollouts import local_rollouts
from bashgym.evals.model_rollouts import model_rollouts

router = APIRouter(prefix="/api/eval/environments")


@router.post("/model-rollout-passk")
def model_rollout_passk(body: Body, space: Space) -> Response:
    """A model on an endpoint plays environments."""
    return reply(model_rollouts(space.settings, body))


@router.post("/model-rollout-jobs")
def start_model_rollouts(body: Body, space: Space) -> Response:
    """The same as a detached job: answers at once, /api/eval/jobs/{job_id} tells the rest."""
    return reply(jobs.brief(rollout_job.submit(space.settings, body)), 202)


@router.post("/local-rollout-passk")
def local_rollout_passk(body: Body, space: Space) -> Response:
    """Commands that somebody else chose."""
    return reply(local_rollouts(space.settings, body))
