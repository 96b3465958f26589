"""The kinds of record, what makes each one itself, and idempotent registration.

Identity is what must never change under one id: digests and references, not timestamps, status or wording. Sending
an id again with the same identity is a replay, with another one `ledger_identity_conflict`. Wording of a replay that
differs (a description, tags) replaces the old one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.ledger.db import Row, Tx

SCOPE = ("workspace_id", "project_id")
_HIDDEN = frozenset({"seq", "project_key", "run_key", "evaluated", "has_artifact"})


@dataclass(frozen=True)
class Entity:
    """One kind of record."""

    name: str
    """As messages and `counters` have it."""
    table: str
    key: str
    """The id column."""
    identity: tuple[str, ...]
    wording: tuple[str, ...] = ()
    """Columns that a replay may change."""
    json: frozenset[str] = frozenset()
    references: tuple[tuple[str, str], ...] = ()
    """(column, kind) pairs that must exist in the same project."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PROJECT = Entity(
    "project",
    "projects",
    "project_id",
    identity=(),
    wording=_words("display_name description owner_actor_id tags"),
    json=frozenset({"tags"}),
)
EXPERIMENT = Entity(
    "experiment",
    "experiments",
    "experiment_id",
    identity=_words("objective campaign_id parent_experiment_id"),
    wording=_words("name metadata"),
    json=frozenset({"metadata"}),
)
MODEL = Entity(
    "model",
    "models",
    "model_id",
    identity=("architecture",),
    wording=_words("display_name task_type metadata"),
    json=frozenset({"metadata"}),
)
MODEL_VERSION = Entity(
    "model_version",
    "model_versions",
    "model_version_id",
    identity=_words("model_id source_revision config_digest parent_model_version_id"),
    wording=_words("source_uri metadata"),
    json=frozenset({"metadata"}),
    references=(("model_id", "model"),),
)
DATASET = Entity(
    "dataset",
    "datasets",
    "dataset_id",
    identity=(),
    wording=_words("display_name task_type metadata"),
    json=frozenset({"metadata"}),
)
DATASET_VERSION = Entity(
    "dataset_version",
    "dataset_versions",
    "dataset_version_id",
    identity=_words("dataset_id content_digest split_manifest"),
    wording=_words("source_uri row_counts metadata"),
    json=frozenset({"split_manifest", "row_counts", "metadata"}),
    references=(("dataset_id", "dataset"),),
)
ENVIRONMENT = Entity(
    "environment",
    "environments",
    "environment_id",
    identity=_words("compute_target runtime_digest"),
    wording=_words("hardware metadata"),
    json=frozenset({"hardware", "metadata"}),
)
RUN = Entity(
    "run",
    "runs",
    "run_id",
    identity=_words(
        "experiment_id source_system source_run_id campaign_id study_id action_id run_kind task_type training_method "
        "context_status model_version_id dataset_version_id environment_id recipe_digest is_simulation"
    ),
    wording=("run_dir",),
    json=frozenset({"config", "measured", "origin", "error", "final_metrics"}),
)
ATTEMPT = Entity(
    "attempt",
    "attempts",
    "attempt_id",
    identity=_words("run_id attempt_number source_attempt_id"),
    json=frozenset({"metadata"}),
)
ARTIFACT = Entity(
    "artifact",
    "artifacts",
    "artifact_id",
    identity=_words("run_id attempt_id kind uri sha256 size_bytes media_type metadata"),
    json=frozenset({"metadata"}),
    references=(("run_id", "run"), ("attempt_id", "attempt")),
)
SUITE = Entity(
    "evaluation_suite",
    "evaluation_suites",
    "evaluation_suite_id",
    identity=_words("task_type dataset_version_id metric_contract code_digest metadata"),
    wording=("name",),
    json=frozenset({"metric_contract", "metadata"}),
    references=(("dataset_version_id", "dataset_version"),),
)
RESULT = Entity(
    "evaluation_result",
    "evaluation_results",
    "evaluation_result_id",
    identity=_words(
        "evaluation_suite_id run_id attempt_id model_version_id status metrics slice_metrics artifact_id "
        "compared_to_result_id"
    ),
    json=frozenset({"metrics", "slice_metrics"}),
    references=(
        ("evaluation_suite_id", "evaluation_suite"),
        ("run_id", "run"),
        ("attempt_id", "attempt"),
        ("model_version_id", "model_version"),
        ("artifact_id", "artifact"),
        ("compared_to_result_id", "evaluation_result"),
    ),
)
DECISION = Entity(
    "decision",
    "decisions",
    "decision_id",
    identity=_words("experiment_id run_id decision_type outcome rationale evidence_refs actor_id"),
    json=frozenset({"evidence_refs"}),
    references=(("experiment_id", "experiment"), ("run_id", "run")),
)
ENTITIES = {
    kind.name: kind
    for kind in (
        *(PROJECT, EXPERIMENT, MODEL, MODEL_VERSION, DATASET, DATASET_VERSION, ENVIRONMENT),
        *(RUN, ATTEMPT, ARTIFACT, SUITE, RESULT, DECISION),
    )
}


def put(tx: Tx, kind: Entity, row: Row) -> tuple[Row, bool]:
    """Registers a row whose JSON columns are canonical text; returns (stored row, replayed).

    `ledger_identity_conflict` names the columns that differ, `ledger_not_found` a reference that is not there.
    """
    row = {**row, "identity_digest": digest_json([kind.name, *(row.get(name) for name in kind.identity)])}
    old = get(tx, kind, row)
    if old is not None:
        _check_same(kind, old, row)
        changes = {name: row[name] for name in kind.wording if name in row and row[name] != old[name]}
        if changes:
            tx.update(kind.table, changes, _key(kind, row))
        return {**old, **changes}, True
    for column, target in kind.references:
        if row.get(column) is not None:
            require(tx, ENTITIES[target], str(row["workspace_id"]), str(row["project_id"]), str(row[column]))
    row.setdefault("created_at", utc_now())
    row["seq"] = count(tx, row, kind.name)
    tx.insert(kind.table, row)
    return row, False


def _check_same(kind: Entity, old: Row, new: Row) -> None:
    if old["identity_digest"] == new["identity_digest"]:
        return
    differ = [name for name in kind.identity if old.get(name) != new.get(name)]
    shown = ", ".join(f"{name} was {str(old.get(name))[:80]}, now {str(new.get(name))[:80]}" for name in differ)
    raise fail(
        "ledger_identity_conflict",
        f"{kind.name} {new[kind.key]} exists with another identity: {shown}",
        hint=f"Give the changed {kind.name} an id of its own.",
        fields=differ,
    )


def _key(kind: Entity, row: Row) -> Row:
    return {name: row[name] for name in dict.fromkeys((*SCOPE, kind.key))}


def get(tx: Tx, kind: Entity, key: Row) -> Row | None:
    """The stored row with the scope and id that `key` holds, or None."""
    where = _key(kind, key)
    tests = " AND ".join(f"{name} = :{name}" for name in where)
    return tx.one(f"SELECT * FROM {kind.table} WHERE {tests}", **where)  # noqa: S608


def require(tx: Tx, kind: Entity, workspace_id: str, project_id: str, key: str) -> Row:
    """The stored row, or `ledger_not_found`. For a project, `key` is the project id."""
    row = get(tx, kind, {"workspace_id": workspace_id, "project_id": project_id, kind.key: key})
    if row is None:
        raise fail(
            "ledger_not_found",
            f"no {kind.name} {key} in project {project_id} of workspace {workspace_id}",
            fields=[kind.key],
        )
    return row


def count(tx: Tx, scope: Row, name: str, by: int = 1) -> int:
    """Adds to a counter of a project and returns it. Also where `seq` comes from: writers are serial."""
    row = tx.one(
        "INSERT INTO counters (workspace_id, project_id, name, n) VALUES (:workspace_id, :project_id, :name, :by) "
        "ON CONFLICT (workspace_id, project_id, name) DO UPDATE SET n = counters.n + excluded.n RETURNING n",
        workspace_id=scope["workspace_id"],
        project_id=scope["project_id"],
        name=name,
        by=by,
    )
    return int(row["n"]) if row else 0


def record(kind: Entity, row: Row) -> dict[str, Any]:
    """A stored row as users see it: JSON decoded, internal columns left out."""
    shown = {name: value for name, value in row.items() if name not in _HIDDEN}
    for name in kind.json & shown.keys():
        shown[name] = None if shown[name] is None else json.loads(shown[name])
    if "is_simulation" in shown:
        shown["is_simulation"] = bool(shown["is_simulation"])
    return shown
