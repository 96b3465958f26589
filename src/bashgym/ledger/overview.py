"""One project at a glance, and the health of the database. Counts come from counters, not from table scans."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from bashgym.ledger import entities as e
from bashgym.ledger import events, reads
from bashgym.ledger.db import VERSIONS, Database, Row, Tx
from bashgym.ledger.transitions import ACTIVE, TERMINAL, Status

STALE_AFTER = timedelta(hours=6)
_LINEAGE = (e.MODEL, e.MODEL_VERSION, e.DATASET, e.DATASET_VERSION, e.ENVIRONMENT)
_SHOWN = 20
_BUCKET = ("status", "context_status", "evaluated", "has_artifact")
"""The parts of `registry.bucket`."""


def context(tx: Tx, scope: Row, recent_limit: int) -> dict[str, Any]:
    """experiment_project_context.v1: health, inventory, lineage and the newest records of each kind."""
    limit = reads.limited(recent_limit, 100)
    project = reads.project(tx, scope)
    counts = counters(tx, scope)
    runs = reads.newest(tx, e.RUN, scope, limit)
    evaluations = reads.newest(tx, e.RESULT, scope, limit)
    decisions = reads.newest(tx, e.DECISION, scope, limit)
    artifacts = reads.newest(tx, e.ARTIFACT, scope, limit)
    recent = tx.all(
        "SELECT * FROM events WHERE workspace_id = :workspace_id AND project_id = :project_id "
        "ORDER BY cursor DESC LIMIT :limit",
        **scope,
        limit=limit,
    )
    return {
        "schema_version": "experiment_project_context.v1",
        "project": project,
        "health": _health(tx, scope, counts, runs),
        "inventory": {kind.table: counts[kind.name] for kind in e.ENTITIES.values() if kind is not e.PROJECT}
        | {"events": counts["event"]},
        "experiments": reads.newest(tx, e.EXPERIMENT, scope, 100),
        "lineage": {kind.table: reads.newest(tx, kind, scope, 100) for kind in _LINEAGE},
        "recent_runs": runs,
        "recent_evaluations": evaluations,
        "recent_decisions": decisions,
        "recent_events": [events.record(row) for row in recent],
        "evidence": {
            "run_ids": [row["run_id"] for row in runs],
            "evaluation_result_ids": [row["evaluation_result_id"] for row in evaluations],
            "decision_ids": [row["decision_id"] for row in decisions],
            "artifact_ids": [row["artifact_id"] for row in artifacts],
        },
    }


def counters(tx: Tx, scope: Row) -> Counter[str]:
    """Every counter of a project, or of the whole database with an empty scope."""
    where = "WHERE workspace_id = :workspace_id AND project_id = :project_id" if scope else ""
    found: Counter[str] = Counter()
    for row in tx.all(f"SELECT name, n FROM counters {where}", **scope):  # noqa: S608
        found[row["name"]] += int(row["n"])
    return found


def _runs(counts: Counter[str], **wanted: object) -> int:
    """Runs by status, context_status, evaluated, has_artifact, as the buckets of `registry.bucket` count them."""
    total = 0
    for name, n in counts.items():
        if name.startswith("run/"):
            bucket = dict(zip(_BUCKET, name.split("/")[1:], strict=True))
            total += n if all(bucket[key] == str(value) for key, value in wanted.items()) else 0
    return total


def _health(tx: Tx, scope: Row, counts: Counter[str], recent: list[dict[str, Any]]) -> dict[str, Any]:
    statuses = {status.value: _runs(counts, status=status.value) for status in Status}
    stale = _stale(tx, scope)
    signals = [
        _signal("stale_active_runs", "attention", len(stale), stale[:_SHOWN]),
        _signal("incomplete_lineage", "attention", _runs(counts, context_status="unassigned"), []),
        _signal("completed_without_eval", "attention", _runs(counts, status="completed", evaluated=0), []),
        # An old failure is history; one among the newest runs wants a look.
        _signal("failed_runs_present", _failed_severity(recent), statuses["failed"], _failed(recent)),
        _signal(
            "terminal_without_artifact",
            "info",
            sum(_runs(counts, status=s.value, has_artifact=0) for s in TERMINAL),
            [],
        ),
    ]
    signals = [signal for signal in signals if signal["count"]]
    attention = any(signal["severity"] == "attention" for signal in signals)
    return {"status": "attention" if attention else "healthy", "signals": signals, "counts": {"runs": statuses}}


def _failed(recent: list[dict[str, Any]]) -> list[str]:
    return [run["run_id"] for run in recent if run["status"] == "failed"][:_SHOWN]


def _failed_severity(recent: list[dict[str, Any]]) -> str:
    return "attention" if _failed(recent) else "info"


def _signal(code: str, severity: str, count: int, run_ids: list[str]) -> dict[str, Any]:
    return {"code": code, "severity": severity, "count": count, "run_ids": run_ids}


def _stale(tx: Tx, scope: Row) -> list[str]:
    """Active runs without any update for six hours, at most 1000 of each status."""
    before = (datetime.now(UTC) - STALE_AFTER).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found: list[str] = []
    for status in ACTIVE:
        rows = tx.all(
            "SELECT run_id, updated_at FROM runs WHERE workspace_id = :workspace_id AND project_id = :project_id "
            "AND status = :status ORDER BY run_key DESC LIMIT 1000",
            **scope,
            status=status,
        )
        found += [row["run_id"] for row in rows if row["updated_at"] < before]
    return found


def health(database: Database, *, check: bool = True) -> dict[str, Any]:
    """experiment_ledger_health.v1. `check` runs SQLite's quick_check, which reads the whole file."""
    damages = database.quick_check() if check else []
    found: dict[str, Any] = {
        "schema_version": "experiment_ledger_health.v1",
        "status": "damaged" if damages else "healthy",
        "database": database.backend.dialect,
        "quick_check": damages or (["ok"] if check else ["not run"]),
        **database.sizes(),
    }
    if damages:
        return {**found, "hint": "`bashgym runs reindex` rebuilds the index from the run directories."}
    with database.read() as tx:
        return {**found, **_facts(tx, database.backend.dialect)}


def _facts(tx: Tx, dialect: str) -> dict[str, Any]:
    version = tx.one("SELECT version_num FROM alembic_version") or {"version_num": ""}
    last = tx.one("SELECT COALESCE(MAX(cursor), 0) AS n FROM events") or {"n": 0}
    journal = tx.one("PRAGMA journal_mode") if dialect == "sqlite" else None
    keys = tx.one("PRAGMA foreign_keys") if dialect == "sqlite" else None
    counts = counters(tx, {})
    return {
        "journal_mode": journal["journal_mode"] if journal else "server",
        "foreign_keys": bool(keys["foreign_keys"]) if keys else True,
        "migration_versions": [name for name in VERSIONS if name <= str(version["version_num"])],
        "last_event_cursor": int(last["n"]),
        "counts": {kind.table: counts[kind.name] for kind in e.ENTITIES.values()} | {"events": counts["event"]},
    }
