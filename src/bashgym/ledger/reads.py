"""Lists and single records. Every list is one index range, newest first by sequence number, never by clock.

Callers hold the transaction. The scope is always a workspace and a project, except for `find_run` and `recent_runs`.
"""

from __future__ import annotations

from typing import Any

from bashgym.core.errors import fail
from bashgym.ledger import entities as e
from bashgym.ledger import events, metrics
from bashgym.ledger.db import Row, Tx
from bashgym.ledger.transitions import Status

MAX_RUNS = 1000
_RUN_LIST = (
    "run_id, workspace_id, project_id, experiment_id, run_dir, status, context_status, training_method, attempt, "
    "queued_at, started_at, completed_at, updated_at, message, error, final_metrics, is_simulation"
)


def limited(limit: int, most: int) -> int:
    """`limit` if it is from 1 to `most`; `invalid_field` otherwise."""
    if 1 <= limit <= most:
        return limit
    raise fail("invalid_field", f"limit is {limit}; allowed is 1 to {most}", fields=["limit"])


def newest(tx: Tx, kind: e.Entity, scope: Row, limit: int, **where: Any) -> list[dict[str, Any]]:
    """The newest records of a kind in a project, newest first."""
    order = "run_key" if kind is e.RUN else "seq"
    tests = " AND ".join(f"{name} = :{name}" for name in (*scope, *where))
    rows = tx.all(
        f"SELECT * FROM {kind.table} WHERE {tests} ORDER BY {order} DESC LIMIT :limit",  # noqa: S608
        **scope,
        **where,
        limit=limit,
    )
    return [e.record(kind, row) for row in rows]


def projects(tx: Tx, workspace_id: str) -> dict[str, Any]:
    """experiment_projects.v1, in order of registration."""
    rows = tx.all("SELECT * FROM projects WHERE workspace_id = :w ORDER BY workspace_id, project_id", w=workspace_id)
    rows.sort(key=lambda row: int(row["project_key"]))
    return {"schema_version": "experiment_projects.v1", "projects": [e.record(e.PROJECT, row) for row in rows]}


def project(tx: Tx, scope: Row) -> dict[str, Any]:
    """One project's record; `ledger_not_found`."""
    return e.record(
        e.PROJECT, e.require(tx, e.PROJECT, scope["workspace_id"], scope["project_id"], scope["project_id"])
    )


def runs(tx: Tx, scope: Row, status: str | None, limit: int) -> dict[str, Any]:
    """experiment_runs.v1, newest first."""
    project(tx, scope)
    where = {"status": _status(status)} if status else {}
    found = newest(tx, e.RUN, scope, limited(limit, MAX_RUNS), **where)
    return {"schema_version": "experiment_runs.v1", "runs": found}


def _status(status: str) -> Status:
    try:
        return Status(status)
    except ValueError as error:
        known = ", ".join(Status)
        raise fail("invalid_field", f"status {status[:80]!r} is not one of {known}", fields=["status"]) from error


def run(tx: Tx, scope: Row, run_id: str) -> dict[str, Any]:
    """experiment_run.v1: {run, attempts, evaluations, artifacts, latest_metrics}; `ledger_not_found`."""
    row = e.require(tx, e.RUN, scope["workspace_id"], scope["project_id"], run_id)
    attempts = tx.all(
        "SELECT * FROM attempts WHERE workspace_id = :workspace_id AND project_id = :project_id AND run_id = :run_id "
        "ORDER BY attempt_number",
        **scope,
        run_id=run_id,
    )
    return {
        "schema_version": "experiment_run.v1",
        "run": e.record(e.RUN, row),
        "attempts": [e.record(e.ATTEMPT, attempt) for attempt in attempts],
        "evaluations": newest(tx, e.RESULT, scope, MAX_RUNS, run_id=run_id),
        "artifacts": newest(tx, e.ARTIFACT, scope, MAX_RUNS, run_id=run_id),
        "latest_metrics": {name: shown(point) for name, point in metrics.latest(tx, row["run_key"]).items()},
    }


def evaluations(tx: Tx, scope: Row, run_id: str | None, limit: int) -> dict[str, Any]:
    """experiment_evaluations.v1, newest first."""
    project(tx, scope)
    where = {"run_id": run_id} if run_id else {}
    found = newest(tx, e.RESULT, scope, limited(limit, MAX_RUNS), **where)
    return {"schema_version": "experiment_evaluations.v1", "evaluations": found}


def event_page(tx: Tx, scope: Row, after_cursor: int, limit: int) -> dict[str, Any]:
    """experiment_ledger_sync.v1 of one project, or of the whole log with an empty scope."""
    if after_cursor < 0:
        raise fail("invalid_field", f"after_cursor is {after_cursor}; it begins at 0", fields=["after_cursor"])
    if scope:
        project(tx, scope)
    return events.page(tx, after_cursor, limited(limit, MAX_RUNS), scope)


def find_run(tx: Tx, run_id: str) -> dict[str, Any] | None:
    """One run's index entry in whatever project, or None."""
    row = tx.one(f"SELECT {_RUN_LIST} FROM runs WHERE run_id = :run_id", run_id=run_id)  # noqa: S608
    return e.record(e.RUN, row) if row else None


def recent_runs(tx: Tx, status: str | None, limit: int) -> list[dict[str, Any]]:
    """Index entries of the newest runs of all projects."""
    where, values = ("WHERE status = :status ", {"status": _status(status)}) if status else ("", {})
    rows = tx.all(
        f"SELECT {_RUN_LIST} FROM runs {where}ORDER BY run_key DESC LIMIT :limit",  # noqa: S608
        **values,
        limit=limited(limit, 100_000),
    )
    return [e.record(e.RUN, row) for row in rows]


def shown(point: Row) -> Row:
    """A point without its empty flag."""
    return {name: value for name, value in point.items() if name != "flag" or value is not None}
