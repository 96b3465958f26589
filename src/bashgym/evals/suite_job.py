"""`EvalService.run` as a detached job. The evaluation's own folder is what it always was; the job is who works on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.evals import jobs, suites
from bashgym.evals.service import EvalService
from bashgym.evals.wire import decode


class SuiteRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/evals: the arguments of `EvalService.run`."""

    suite: str = "terminal"
    model: str
    baseline: str | None = None
    split: str = "heldout_values"
    seed: int = 0
    per_family: int = suites.DEFAULT_PER_FAMILY
    limit: int | None = None
    attempts: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 64
    n_resamples: int = 10_000
    eval_id: str | None = None
    """Go on with this unfinished evaluation."""
    run_id: str | None = None


def submit(service: EvalService, settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses what `run` would refuse at the start, then starts a worker. {eval_id, job_id (the same), status, created_at}."""
    request = decode(body, SuiteRequest)
    service.check(**msgspec.structs.asdict(request))
    request.eval_id = request.eval_id or jobs.new_id("eval")
    job = jobs.submit(settings, "suite", msgspec.structs.asdict(request), job_id=request.eval_id)
    return {"eval_id": request.eval_id, **{name: job[name] for name in ("job_id", "status", "created_at")}}


def shown(service: EvalService, settings: Settings, eval_id: str) -> dict[str, Any]:
    """What `EvalService.get` says; until the worker has made the evaluation's folder, what the job says."""
    try:
        return service.get(eval_id)
    except BashGymError as error:
        if error.code != "eval_not_found":
            raise
        try:
            return {"eval_id": eval_id, **jobs.get(settings, eval_id, "suite")}
        except BashGymError:
            raise error from None


def run(_: Path, body: dict[str, Any], secrets: dict[str, str], progress: jobs.Progress) -> dict[str, Any]:
    """The job. Called in the worker."""
    from bashgym.models.catalog import resolve

    settings = Settings.from_env()
    return EvalService(settings, lambda name: resolve(name, settings)).run(**body, progress=progress)
