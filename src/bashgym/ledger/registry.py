"""Runs and attempts: registration in one transaction before launch, and every later change of their status.

Owns the order of registration, the `unassigned` project and the lifecycle events. Callers hold the transaction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bashgym.core.canonical import canonical_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.ids import stable_id
from bashgym.ledger import entities as e
from bashgym.ledger import events, safe, tracking, transitions
from bashgym.ledger.db import Row, Tx
from bashgym.ledger.transitions import TERMINAL, Status

SOURCE_SYSTEM = "bashgym-direct-training"
UNASSIGNED_WORKSPACE = "desktop-local"
UNASSIGNED = "unassigned"
MAX_FINAL_METRICS = 50
MAX_SUMMARY = 2000
_EVENTS = {
    Status.RUNNING: "started",
    Status.PAUSED: "paused",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


@dataclass(frozen=True)
class NewRun:
    """What is known of a run before it starts."""

    run_id: str
    run_dir: str
    strategy: str
    request: Mapping[str, Any]
    tracking: tracking.TrackingContext | None
    model: Mapping[str, Any]
    """name, path, revision, digest, config_digest, n_parameters, source."""
    dataset: Mapping[str, Any]
    """path, digest, rows, train_rows, eval_rows, format."""
    environment: Mapping[str, Any]
    """Runtime facts, hardware, digest."""
    recipe_digest: str
    correlation_id: str
    origin: Mapping[str, Any]
    is_simulation: bool


def register(tx: Tx, new: NewRun) -> Row:
    """Everything that a run refers to, the run, its first attempt and `training-queued`; returns tracking_ids.

    The same run again is a replay. `ledger_identity_conflict`, `digest_mismatch`.
    """
    links = _unassigned(tx) if new.tracking is None else _tracked(tx, new, new.tracking)
    scope = {name: links[name] for name in e.SCOPE}
    elsewhere = tx.one("SELECT workspace_id, project_id FROM runs WHERE run_id = :run_id", run_id=new.run_id)
    if elsewhere and elsewhere != scope:
        raise fail(
            "ledger_identity_conflict",
            f"run {new.run_id} exists in project {elsewhere['project_id']} of workspace {elsewhere['workspace_id']}",
            hint="Choose another run_id.",
            fields=["run_id"],
        )
    row, replayed = e.put(tx, e.RUN, _run_row(new, links))
    first = start_attempt(tx, row, 1)
    if not replayed:
        e.count(tx, row, bucket(row))
        payload = {"strategy": new.strategy, "recipe_digest": new.recipe_digest, "origin": dict(new.origin)}
        _lifecycle(tx, row, "queued", 1, payload)
    return {
        **scope,
        "experiment_id": row["experiment_id"],
        "run_id": new.run_id,
        "attempt_id": first,
        "context_status": row["context_status"],
    }


def _run_row(new: NewRun, links: Row) -> Row:
    now, context = utc_now(), new.tracking
    measured = {"model": dict(new.model), "dataset": dict(new.dataset), "environment": dict(new.environment)}
    return {
        **links,
        "run_id": new.run_id,
        "run_dir": new.run_dir,
        "source_system": SOURCE_SYSTEM,
        "source_run_id": new.run_id,
        "run_kind": "training",
        "task_type": context.task_type if context else "unknown",
        "training_method": new.strategy,
        "campaign_id": context.campaign_id if context else None,
        "study_id": context.study_id if context else None,
        "action_id": context.action_id if context else None,
        "status": Status.QUEUED,
        "context_status": "verified" if context else UNASSIGNED,
        "recipe_digest": new.recipe_digest,
        "config": safe.encode_redacted(dict(new.request), "config"),
        "measured": safe.encode_redacted(measured, "measured"),
        "origin": safe.encode_redacted(dict(new.origin), "origin"),
        "correlation_id": new.correlation_id or f"training:{new.run_id}",
        "queued_at": now,
        "updated_at": now,
        "message": "",
        "attempt": 1,
        "is_simulation": int(new.is_simulation),
        "evaluated": 0,
        "has_artifact": 0,
    }


def _unassigned(tx: Tx) -> Row:
    scope = {"workspace_id": UNASSIGNED_WORKSPACE, "project_id": UNASSIGNED}
    note = "Runs that were started without a tracking context."
    project = {"display_name": "Unassigned training runs", "description": note, "owner_actor_id": "bashgym"}
    _put_project(tx, {**scope, **project, "tags": ["needs-context"]})
    experiment: Row = {"name": "Unassigned", "objective": note, "campaign_id": None, "metadata": {}}
    _put_experiment(tx, {**scope, "experiment_id": UNASSIGNED, **experiment})
    versions = dict.fromkeys(("model_version_id", "dataset_version_id", "environment_id"))
    return {**scope, "experiment_id": UNASSIGNED, **versions}


def _put_project(tx: Tx, row: Row) -> None:
    following = tx.one("SELECT COALESCE(MAX(project_key), 0) + 1 AS n FROM projects") or {"n": 1}
    fixed = {"status": "active", "updated_at": utc_now(), "project_key": following["n"]}
    e.put(tx, e.PROJECT, {**row, **fixed, "tags": safe.encode(row["tags"], "tags")})


def _put_experiment(tx: Tx, row: Row) -> None:
    fixed = {"status": "active", "updated_at": utc_now()}
    e.put(tx, e.EXPERIMENT, {**row, **fixed, "metadata": safe.encode(row["metadata"], "metadata")})


def _tracked(tx: Tx, new: NewRun, context: tracking.TrackingContext) -> Row:
    """Registers what the context names, in the order that the foreign keys need."""
    origin = tracking.check_measured(
        context,
        dataset_digest=new.dataset.get("digest"),
        model_config_digest=new.model.get("config_digest"),
        environment_digest=new.environment.get("digest"),
    )
    c, scope = context, {"workspace_id": context.workspace_id, "project_id": context.project_id}
    project = {"display_name": c.project_display_name, "description": c.project_description}
    _put_project(tx, {**scope, **project, "tags": c.tags, "owner_actor_id": c.owner_actor_id})
    experiment: Row = {"name": c.experiment_name, "objective": c.objective, "metadata": c.metadata}
    _put_experiment(tx, {**scope, "experiment_id": c.experiment_id, "campaign_id": c.campaign_id, **experiment})
    named = {"task_type": c.task_type, "metadata": "{}"}
    e.put(tx, e.MODEL, {**scope, "model_id": c.model_id, "display_name": c.model_id, "architecture": "", **named})
    version = {
        "model_id": c.model_id,
        "model_version_id": c.model_version_id,
        "source_uri": c.model_source_uri,
        "source_revision": c.model_source_revision,
        "config_digest": c.model_config_digest,
        "metadata": _provenance("config_digest", origin["model_config_digest"]),
    }
    e.put(tx, e.MODEL_VERSION, {**scope, **version})
    e.put(tx, e.DATASET, {**scope, "dataset_id": c.dataset_id, "display_name": c.dataset_id, **named})
    data = {
        "dataset_id": c.dataset_id,
        "dataset_version_id": c.dataset_version_id,
        "source_uri": c.dataset_source_uri,
        "content_digest": c.dataset_content_digest,
        "split_manifest": safe.encode(c.dataset_split_manifest, "dataset_split_manifest"),
        "row_counts": safe.encode(c.dataset_row_counts or _row_counts(new.dataset), "dataset_row_counts"),
        "metadata": _provenance("content_digest", origin["dataset_content_digest"]),
    }
    e.put(tx, e.DATASET_VERSION, {**scope, **data})
    place = {
        "environment_id": c.environment_id,
        "compute_target": str(new.request.get("compute_target") or "local"),
        "runtime_digest": c.environment_runtime_digest,
        "hardware": safe.encode(c.environment_hardware, "environment_hardware"),
        "metadata": _provenance("runtime_digest", origin["environment_runtime_digest"]),
    }
    e.put(tx, e.ENVIRONMENT, {**scope, **place})
    ids = ("experiment_id", "model_version_id", "dataset_version_id", "environment_id")
    return {**scope, **{name: getattr(c, name) for name in ids}}


def _provenance(digest: str, how: str) -> str:
    return canonical_json({"provenance": {digest: how}}).decode()


def _row_counts(dataset: Mapping[str, Any]) -> dict[str, int]:
    names = {"rows": "total", "train_rows": "train", "eval_rows": "eval"}
    return {name: int(dataset[key]) for key, name in names.items() if isinstance(dataset.get(key), int)}


def find(tx: Tx, run_id: str) -> Row:
    """The run's row, or `run_not_found`."""
    row = tx.one("SELECT * FROM runs WHERE run_id = :run_id", run_id=run_id)
    if row is None:
        raise fail("run_not_found", f"no run {run_id} in the ledger", hint="`bashgym training list` shows the runs.")
    return row


def start_attempt(tx: Tx, run: Row, number: int) -> str:
    """Registers attempt `number` as queued and returns its id. Earlier attempts still open, not paused, have failed."""
    if number < 1:
        raise fail("invalid_field", f"attempt is {number}; the first is 1", fields=["attempt"])
    scope, now = {name: run[name] for name in e.SCOPE}, utc_now()
    key = attempt_id(run, number)
    executor = canonical_json({"executor": "simulation" if run["is_simulation"] else "trainer"}).decode()
    row = {
        **scope,
        "attempt_id": key,
        "run_id": run["run_id"],
        "attempt_number": number,
        "status": Status.QUEUED,
        "metadata": executor,
        "updated_at": now,
    }
    _, replayed = e.put(tx, e.ATTEMPT, row)
    if not replayed and number > 1:
        tx.run(
            "UPDATE attempts SET status = 'failed', completed_at = :now, updated_at = :now WHERE workspace_id = "
            ":workspace_id AND project_id = :project_id AND run_id = :run_id AND attempt_number < :number "
            "AND status IN ('queued', 'preparing', 'running', 'unknown')",
            **scope,
            run_id=run["run_id"],
            number=number,
            now=now,
        )
        change_run(tx, run, attempt=max(number, run["attempt"]))
    return key


def attempt_id(run: Row, number: int) -> str:
    """The id of a run's attempt."""
    return stable_id("attempt", run["workspace_id"], run["project_id"], run["run_id"], number)


@dataclass(frozen=True)
class Change:
    """A reported state of a run. `catch_up` lets it skip states that were not reported."""

    state: str
    attempt: int | None = None
    message: str = ""
    final_metrics: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    catch_up: bool = False


def set_status(tx: Tx, run_id: str, change: Change) -> Row:
    """Applies the transition table: {run_id, status, previous, changed}. `ledger_invalid_transition`.

    An attempt newer than the known ones is registered.
    """
    run = find(tx, run_id)
    if (change.attempt or 1) > run["attempt"]:
        start_attempt(tx, run, int(change.attempt or 1))
        run = find(tx, run_id)
    current = Status(run["status"])
    target = transitions.reported(current, change.state)
    if target is not current:
        way = transitions.path(current, target) if change.catch_up else (target,)
        transitions.step(f"run {run_id}", current, way[0])
    else:
        way = ()
    now = utc_now()
    changes: Row = {"status": target, "message": safe.scrub(change.message)[:MAX_SUMMARY]}
    if Status.RUNNING in way and not run["started_at"]:
        changes["started_at"] = now
    if way and target in TERMINAL:
        changes["completed_at"] = now
        changes["final_metrics"] = canonical_json(finite(change.final_metrics)).decode()
    if change.error is not None and way:
        changes["error"] = safe.encode_redacted(_short(change.error), "error")
    change_run(tx, run, **changes)
    number = change.attempt or run["attempt"]
    _set_attempt(tx, run, number, change.state, now)
    if way:
        _touch_parents(tx, run, now)
    for status in way:
        if status in _EVENTS:
            _lifecycle(tx, run, _EVENTS[status], number, _payload(change) if status in TERMINAL else {})
    return {"run_id": run_id, "status": target.value, "previous": current.value, "changed": bool(way)}


def _payload(change: Change) -> Row:
    error = change.error or {}
    summary = str(error.get("message") or change.message or "")
    return {
        "final_metrics": finite(change.final_metrics),
        "error_summary": safe.scrub(summary)[:MAX_SUMMARY],
        **({"error_code": str(error["code"])} if error.get("code") else {}),
    }


def _short(error: Mapping[str, Any]) -> Row:
    return {str(k): v[:MAX_SUMMARY] if isinstance(v, str) else v for k, v in error.items()}


def finite(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """The first 50 finite numbers by name."""
    numbers = {
        str(name): value
        for name, value in (metrics or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    return dict(sorted(numbers.items())[:MAX_FINAL_METRICS])


def _set_attempt(tx: Tx, run: Row, number: int, state: str, now: str) -> None:
    row = tx.one(
        "SELECT * FROM attempts WHERE workspace_id = :workspace_id AND project_id = :project_id "
        "AND run_id = :run_id AND attempt_number = :number",
        **{name: run[name] for name in (*e.SCOPE, "run_id")},
        number=number,
    )
    if row is None:
        raise fail("ledger_not_found", f"run {run['run_id']} has no attempt {number}", fields=["attempt"])
    current = Status(row["status"])
    target = transitions.reported(current, state)
    if target is current:
        return
    way = transitions.path(current, target)
    changes: Row = {"status": target, "updated_at": now}
    if Status.RUNNING in way and not row["started_at"]:
        changes["started_at"] = now
    if target in TERMINAL:
        changes["completed_at"] = now
    tx.update("attempts", changes, {name: row[name] for name in (*e.SCOPE, "attempt_id")})


def _touch_parents(tx: Tx, run: Row, now: str) -> None:
    scope = {name: run[name] for name in e.SCOPE}
    tx.update("projects", {"updated_at": now}, scope)
    tx.update("experiments", {"updated_at": now}, {**scope, "experiment_id": run["experiment_id"]})


def _lifecycle(tx: Tx, run: Row, state: str, attempt: int, payload: Row) -> None:
    event = {
        **{name: run[name] for name in (*e.SCOPE, "experiment_id", "run_id", "correlation_id", "source_system")},
        "event_type": f"training-{state}",
        "source_event_id": f"{run['run_id']}:{state}:{attempt}",
        "attempt_id": attempt_id(run, attempt),
        "payload": safe.encode_redacted({"attempt": attempt, **payload}, "payload"),
    }
    events.append(tx, event, once=True)


def bucket(run: Row) -> str:
    """The counter that a run is counted in: everything that the health of a project asks about."""
    return f"run/{run['status']}/{run['context_status']}/{run['evaluated']}/{run['has_artifact']}"


def change_run(tx: Tx, run: Row, **changes: Any) -> None:
    """The only way to change a run's row: keeps the counters true."""
    before, after = bucket(run), bucket({**run, **changes})
    if before != after:
        e.count(tx, run, before, -1)
        e.count(tx, run, after)
    tx.update("runs", {**changes, "updated_at": utc_now()}, {"run_key": run["run_key"]})
