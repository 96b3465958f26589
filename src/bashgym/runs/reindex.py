"""Rebuilding the index from the run directories, which are the record. A damaged database file is set aside, not deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger
from bashgym.ledger.tracking import parse_context
from bashgym.store.metrics import read_points
from bashgym.store.run_dir import RunDir


def reindex(settings: Settings, ledger: Ledger) -> dict[str, Any]:
    """Registers every whole run below `models_dir` with its status and points. Doing it again changes nothing.

    Returns {indexed: [run ids], skipped: [{run_id, reason}], set_aside: [paths]}.
    """
    set_aside = _mend_database(settings, ledger)
    indexed: list[str] = []
    skipped: list[dict[str, str]] = []
    for path in sorted(settings.models_dir.glob("*/run_state.json")):
        run = RunDir(path.parent)
        try:
            _index(run, ledger)
            indexed.append(run.run_id)
        except (BashGymError, KeyError) as error:
            skipped.append({"run_id": run.run_id, "reason": str(error)})
    return {"indexed": indexed, "skipped": skipped, "set_aside": [str(path) for path in set_aside]}


def _mend_database(settings: Settings, ledger: Ledger) -> list[Path]:
    from bashgym.ledger.migrate import set_aside

    try:
        ledger.health()
    except BashGymError as error:
        if error.code != "database_unavailable":
            raise
        ledger.close()
        return set_aside(settings)
    return []


def _index(run: RunDir, ledger: Ledger) -> None:
    request, manifest, state = run.request(), run.manifest(), run.state()
    tracking = request.get("tracking")
    ledger.register_run(
        request=request,
        strategy=state.strategy,
        run_id=run.run_id,
        run_dir=run.path,
        tracking=parse_context(tracking) if tracking else None,
        model=manifest["model"],
        dataset=manifest["dataset"],
        environment=manifest["environment"],
        recipe_digest=manifest["recipe_digest"],
        correlation_id=request.get("correlation_id") or f"training:{run.run_id}",
        origin=request.get("origin") or {},
    )
    points, _ = read_points(run.metrics_path)
    ledger.ingest_metrics(run.run_id, state.attempt, points)
    final = {k: v for k, v in state.last_metrics.items() if isinstance(v, int | float)}
    ledger.set_status(
        run.run_id,
        str(state.status),
        attempt=state.attempt,
        message=state.message,
        final_metrics=final,
        error=state.error,
        catch_up=True,
    )
