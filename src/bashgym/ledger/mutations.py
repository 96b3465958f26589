"""Records that come from outside: evaluation suites and results, artifacts, decisions, events.

Strict bodies, safe payloads, one id rule: an id given is kept, an id left out is derived from the content, so that a
retry is a replay. Timestamps are no part of an identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bashgym.core.canonical import canonical_json, digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.ids import stable_id
from bashgym.ledger import entities as e
from bashgym.ledger import events, idempotency, registry
from bashgym.ledger import fields as f
from bashgym.ledger.db import Row, Tx
from bashgym.ledger.fields import Field
from bashgym.ledger.transitions import Status

_ID, _LINK = Field(f.identifier, required=True), Field(f.identifier)
_OBJECT, _TIME = Field(f.payload, default={}), Field(f.timestamp)
FIELDS: dict[str, dict[str, Field]] = {
    "evaluation-suites": {
        "evaluation_suite_id": _LINK,
        "name": Field(f.text(240), required=True),
        "task_type": _ID,
        "dataset_version_id": _LINK,
        "metric_contract": Field(f.payload, required=True),
        "code_digest": Field(f.digest, required=True),
        "metadata": _OBJECT,
        "created_at": _TIME,
    },
    "evaluation-results": {
        "evaluation_result_id": _LINK,
        "evaluation_suite_id": _ID,
        "run_id": _ID,
        "attempt_id": _LINK,
        "model_version_id": _LINK,
        "status": Field(f.one_of(*Status), default="completed"),
        "metrics": Field(f.numbers, required=True),
        "slice_metrics": _OBJECT,
        "artifact_id": _LINK,
        "compared_to_result_id": _LINK,
        "started_at": _TIME,
        "completed_at": _TIME,
    },
    "artifacts": {
        "artifact_id": _LINK,
        "run_id": _ID,
        "attempt_id": _LINK,
        "kind": _ID,
        "uri": Field(f.text(2000), required=True),
        "sha256": Field(f.digest, required=True),
        "size_bytes": Field(f.whole, required=True),
        "media_type": Field(f.text(200), default="application/octet-stream"),
        "metadata": _OBJECT,
        "created_at": _TIME,
    },
    "decisions": {
        "decision_id": _LINK,
        "experiment_id": _ID,
        "run_id": _LINK,
        "decision_type": _ID,
        "outcome": Field(f.text(1000), required=True),
        "rationale": Field(f.text(12_000, empty=True), default=""),
        "evidence_refs": Field(f.strings(1000), default=[]),
        "actor_id": Field(f.identifier, default="bashgym"),
        "created_at": _TIME,
    },
    "events": {
        "event_type": _ID,
        "source_system": _ID,
        "source_event_id": _ID,
        "correlation_id": _LINK,
        "experiment_id": _LINK,
        "run_id": _LINK,
        "attempt_id": _LINK,
        "payload": _OBJECT,
        "created_at": _TIME,
    },
}
_KINDS = {
    "evaluation-suites": e.SUITE,
    "evaluation-results": e.RESULT,
    "artifacts": e.ARTIFACT,
    "decisions": e.DECISION,
}


def create(
    tx: Tx, scope: Row, collection: str, body: Mapping[str, Any], idempotency_key: str | None = None
) -> dict[str, Any]:
    """experiment_ledger_mutation.v1: {record, replayed}. `collection` is a key of `FIELDS`.

    With an idempotency key, the same key and body give the first reply again, and another body is a conflict.
    """
    values = parse(scope, collection, body)
    e.require(tx, e.PROJECT, scope["workspace_id"], scope["project_id"], scope["project_id"])
    key = f"{scope['workspace_id']}/{scope['project_id']}/{collection}/{idempotency_key}" if idempotency_key else ""
    digest = digest_json(values)
    if key and (done := idempotency.stored(tx, key, digest)):
        return {**done, "replayed": True}
    reply = _append_event(tx, scope, values) if collection == "events" else _put(tx, scope, collection, values)
    reply = {"schema_version": "experiment_ledger_mutation.v1", **reply}
    if key:
        idempotency.store(tx, key, digest, reply)
    return reply


def parse(scope: Row, collection: str, body: Mapping[str, Any]) -> Row:
    """The values of a body; `ledger_scope_mismatch`, `unknown_field`, `missing_field`, `invalid_field`, ..."""
    if collection not in FIELDS:
        raise fail("ledger_not_found", f"{collection!r} is not one of {', '.join(FIELDS)}")
    for name in e.SCOPE:
        if body.get(name, scope[name]) != scope[name]:
            raise fail(
                "ledger_scope_mismatch", f"{name} is {scope[name]} in the address, other in the body", fields=[name]
            )
    values, problems = f.parse({k: v for k, v in body.items() if k not in e.SCOPE}, FIELDS[collection])
    if problems:
        raise fail(
            problems[0].code,
            "; ".join(problem.message for problem in problems),
            fields=[problem.field for problem in problems],
        )
    return values


def _put(tx: Tx, scope: Row, collection: str, values: Row) -> Row:
    kind, now = _KINDS[collection], utc_now()
    row = {**scope, **values}
    for name in kind.json:
        row[name] = canonical_json(row[name]).decode()
    if row[kind.key] is None:
        row[kind.key] = stable_id(kind.name, *scope.values(), *(row[name] for name in kind.identity))
    if kind is e.RESULT:
        row["started_at"] = row["started_at"] or now
        if row["status"] in ("completed", "failed", "cancelled"):
            row["completed_at"] = row["completed_at"] or now
    row["created_at"] = row.get("created_at") or now
    stored, replayed = e.put(tx, kind, row)
    if not replayed:
        _mark_run(tx, kind, stored)
    reply: Row = {"record": e.record(kind, stored), "replayed": replayed}
    if kind is e.RESULT:
        reply["autoresearch_ingestion"] = {
            "schema_version": "autoresearch_evaluation_ingestion.v1",
            "status": "not_applicable",
            "code": "run_not_in_campaign",
            "campaign_id": None,
            "outcome": None,
        }
    return reply


def _mark_run(tx: Tx, kind: e.Entity, row: Row) -> None:
    if kind is e.ARTIFACT:
        registry.change_run(tx, registry.find(tx, row["run_id"]), has_artifact=1)
    elif kind is e.RESULT and row["status"] == "completed":
        registry.change_run(tx, registry.find(tx, row["run_id"]), evaluated=1)


def _append_event(tx: Tx, scope: Row, values: Row) -> Row:
    for column, kind in (("experiment_id", e.EXPERIMENT), ("run_id", e.RUN), ("attempt_id", e.ATTEMPT)):
        if values[column] is not None:
            e.require(tx, kind, scope["workspace_id"], scope["project_id"], values[column])
    correlation = values["correlation_id"] or f"{values['source_system']}:{values['source_event_id']}"
    payload = canonical_json(values["payload"]).decode()
    row, replayed = events.append(tx, {**scope, **values, "correlation_id": correlation, "payload": payload})
    return {"record": {**row, "payload": json.loads(row["payload"])}, "replayed": replayed}
