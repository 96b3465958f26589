"""`model_rollouts` as a detached job: it goes on when who asked for it is gone, and resumes where it was.

Its journal is rollouts.jsonl in the job's folder, unless the request names another place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.settings import Settings
from bashgym.evals import jobs
from bashgym.evals.model_rollouts import checked, model_rollouts

KIND = "rollouts"
SECRET = "endpoint"
JOURNAL = "rollouts.jsonl"
_LATER = "http://127.0.0.1:1/v1"
"""Stands for the endpoint of a model that will be served."""


class _Work(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the worker is given."""

    request: dict[str, Any]
    """Without the key of the endpoint."""
    model: str = ""
    """A local model to serve meanwhile; empty: the request names an endpoint."""


def submit(settings: Settings, body: Mapping[str, Any], model: str = "") -> dict[str, Any]:
    """Refuses what `checked` refuses, then starts the job and returns its state. `model` is served meanwhile."""
    whole = dict(body)
    if model:
        from bashgym.models.catalog import resolve

        resolve(model, settings)
        whole = {"model_id": model, **whole, "endpoint": {"provider": "local", "base_url": _LATER, "model": model}}
    request, _, _ = checked(whole)
    plain = msgspec.to_builtins(request)
    key = plain["endpoint"].pop("api_key")
    work = msgspec.to_builtins(_Work(request=plain, model=model))
    return jobs.submit(settings, KIND, work, {SECRET: key} if key else None)


def run(folder: Path, body: dict[str, Any], secrets: dict[str, str], progress: jobs.Progress) -> dict[str, Any]:
    """The job. Called in the worker. `too_many_missing` if the endpoint failed too often: resumed, it is asked again."""
    work = msgspec.convert(body, _Work)
    settings, request = Settings.from_env(), dict(work.request)
    request["rollouts_path"] = request["rollouts_path"] or str(folder / JOURNAL)

    def told(done: int, total: int) -> None:
        progress(done / total, f"{done}/{total} episodes")

    if not work.model:
        request["endpoint"] = {**request["endpoint"], "api_key": secrets.get(SECRET)}
        return model_rollouts(settings, request, told, whole=True)
    from bashgym.evals.served import served
    from bashgym.models.catalog import resolve

    model = resolve(work.model, settings)
    progress(0.0, f"loading {work.model}")
    with served(model, settings) as endpoint:
        request["endpoint"] = msgspec.to_builtins(endpoint)
        who = {name: value for name, value in model.facts().items() if name in ("name", "digest", "revision")}
        return model_rollouts(settings, request, told, model=who, whole=True)
