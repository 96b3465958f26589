"""From a prepared start to a whole, registered, queued run directory, or none. Launches nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.clock import utc_now
from bashgym.core.files import writable_dir
from bashgym.core.ids import check_identifier, new_run_id
from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger
from bashgym.ledger.tracking import TrackingContext
from bashgym.runs import queue
from bashgym.runs.prepare import Prepared
from bashgym.runs.records import settings_plan, source_manifest, tracking_of
from bashgym.store import budget
from bashgym.store.run_dir import RunDir, RunState, RunStatus, create_run_dir


def begin(
    prepared: Prepared,
    settings: Settings,
    ledger: Ledger,
    *,
    queued: bool = False,
    stop_on_error: bool = False,
    continues: tuple[RunDir, Path] | None = None,
    event: tuple[str, Mapping[str, Any]] | None = None,
) -> tuple[RunDir, dict[str, Any]]:
    """(the run, its tracking ids). `queued` lets only the queue launch it; `continues` is a failed run and its checkpoint.

    `event` (type, payload) is recorded beside `training-queued`.
    """
    tracking = tracking_of(prepared)
    chosen = prepared.request["run_id"]
    models_dir = writable_dir(settings.models_dir)
    run = create_run_dir(models_dir, check_identifier(chosen, "run_id") if chosen else new_run_id())
    try:
        if continues is not None:
            failed, checkpoint = continues
            shutil.copytree(checkpoint, run.file(checkpoint.name))
            budget.carry(failed, run)
        if queued:
            queue.add(run, settings, stop_on_error=stop_on_error)
        return run, _record(run, prepared, tracking, ledger, event)
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        queue.withdraw(run, settings)
        raise


def _record(
    run: RunDir,
    prepared: Prepared,
    tracking: TrackingContext | None,
    ledger: Ledger,
    event: tuple[str, Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Everything durable, in an order such that a crash leaves either no run or a whole one."""
    request = {**prepared.request.as_dict(), "run_id": run.run_id}
    manifest = prepared.manifest(run.run_id)
    run.write_json("manifest.json", manifest)
    run.write_json("preflight.json", msgspec.to_builtins(prepared.report))
    run.write_json("estimate.json", prepared.estimate)
    run.write_json("training_plan.json", settings_plan(prepared))
    run.write_json("source_manifest.json", source_manifest(run.run_id, prepared))
    run.write_json("request.json", request)
    ids = ledger.register_run(
        request=request,
        strategy=prepared.request.strategy,
        run_id=run.run_id,
        run_dir=str(run.path),
        tracking=tracking,
        model=manifest["model"],
        dataset=manifest["dataset"],
        environment=manifest["environment"],
        recipe_digest=manifest["recipe_digest"],
        correlation_id=prepared.request["correlation_id"] or f"training:{run.run_id}",
        origin=prepared.request["origin"] or {},
    )
    run.write_json("tracking.json", ids)
    run.append_event("training-queued", request_digest=manifest["request_digest"], forced=prepared.forced)
    if event is not None:
        run.append_event(event[0], **event[1])
    run.write_state(
        RunState(run_id=run.run_id, strategy=prepared.request.strategy, status=RunStatus.QUEUED, queued_at=utc_now())
    )
    return ids
