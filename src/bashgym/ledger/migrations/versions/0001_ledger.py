"""The ledger's entities, its event log, idempotency keys and counters.

Every entity is keyed by workspace, project and its own id. `seq` orders the records of one kind in one project,
whatever the clock says. Deletes are restricted: the ledger is append-only. JSON is stored as text on both databases.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

SCOPE = ("workspace_id", "project_id")
INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
metadata = sa.MetaData()


def text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def maybe(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text) for name in names]


def refers(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    """The scoped foreign key (workspace, project, column) -> table."""
    return sa.ForeignKeyConstraint(
        [*SCOPE, column], [f"{table}.{name}" for name in (*SCOPE, target)], ondelete="RESTRICT", name=None
    )


def entity(name: str, key: str, *items: Any) -> sa.Table:
    """A table of one kind of record, listable by `seq`, below its project."""
    table = sa.Table(
        name,
        metadata,
        *text(*SCOPE, key),
        sa.Column("seq", INTEGER, nullable=False),
        *text("identity_digest", "created_at"),
        *items,
        sa.PrimaryKeyConstraint(*SCOPE, key),
        sa.ForeignKeyConstraint(SCOPE, ["projects.workspace_id", "projects.project_id"], ondelete="RESTRICT"),
    )
    sa.Index(f"ix_{name}_seq", table.c.workspace_id, table.c.project_id, table.c.seq, unique=True)
    return table


projects = sa.Table(
    "projects",
    metadata,
    *text(*SCOPE),
    sa.Column("project_key", INTEGER, nullable=False, unique=True),
    sa.Column("seq", INTEGER, nullable=False),
    *text("identity_digest", "created_at", "updated_at", "display_name", "description", "status", "owner_actor_id"),
    *text("tags"),
    sa.PrimaryKeyConstraint(*SCOPE),
)
entity(
    "experiments",
    "experiment_id",
    *text("updated_at", "name", "objective", "status", "metadata"),
    *maybe("campaign_id", "parent_experiment_id"),
)
entity("models", "model_id", *text("display_name", "task_type", "architecture", "metadata"))
entity(
    "model_versions",
    "model_version_id",
    *text("model_id", "source_uri", "source_revision", "config_digest", "metadata"),
    *maybe("parent_model_version_id"),
    refers("models", "model_id", "model_id"),
)
entity("datasets", "dataset_id", *text("display_name", "task_type", "metadata"))
entity(
    "dataset_versions",
    "dataset_version_id",
    *text("dataset_id", "source_uri", "content_digest", "split_manifest", "row_counts", "metadata"),
    refers("datasets", "dataset_id", "dataset_id"),
)
entity("environments", "environment_id", *text("compute_target", "runtime_digest", "hardware", "metadata"))

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_key", INTEGER, primary_key=True),
    *text(*SCOPE),
    sa.Column("run_id", sa.Text, nullable=False, unique=True),
    sa.Column("seq", INTEGER, nullable=False),
    *text("identity_digest", "created_at", "experiment_id", "source_system", "source_run_id", "run_kind", "task_type"),
    *text("training_method", "status", "context_status", "recipe_digest", "config", "measured", "origin", "run_dir"),
    *text("correlation_id", "queued_at", "updated_at", "message"),
    *maybe("campaign_id", "study_id", "action_id", "model_version_id", "dataset_version_id", "environment_id"),
    *maybe("started_at", "completed_at", "error", "final_metrics"),
    sa.Column("attempt", INTEGER, nullable=False),
    sa.Column("is_simulation", INTEGER, nullable=False),
    sa.Column("evaluated", INTEGER, nullable=False),
    sa.Column("has_artifact", INTEGER, nullable=False),
    sa.UniqueConstraint(*SCOPE, "run_id"),
    sa.UniqueConstraint("workspace_id", "source_system", "source_run_id"),
    refers("experiments", "experiment_id", "experiment_id"),
    refers("model_versions", "model_version_id", "model_version_id"),
    refers("dataset_versions", "dataset_version_id", "dataset_version_id"),
    refers("environments", "environment_id", "environment_id"),
)
sa.Index("ix_runs_project", runs.c.workspace_id, runs.c.project_id, runs.c.run_key)
sa.Index("ix_runs_project_status", runs.c.workspace_id, runs.c.project_id, runs.c.status, runs.c.run_key)
sa.Index("ix_runs_project_context", runs.c.workspace_id, runs.c.project_id, runs.c.context_status, runs.c.run_key)
sa.Index("ix_runs_status", runs.c.status, runs.c.run_key)

attempts = entity(
    "attempts",
    "attempt_id",
    *text("run_id", "status", "metadata", "updated_at"),
    sa.Column("attempt_number", INTEGER, nullable=False),
    *maybe("source_attempt_id", "started_at", "completed_at"),
    refers("runs", "run_id", "run_id"),
    sa.UniqueConstraint(*SCOPE, "run_id", "attempt_number"),
)
artifacts = entity(
    "artifacts",
    "artifact_id",
    *text("run_id", "kind", "uri", "sha256", "media_type", "metadata"),
    *maybe("attempt_id"),
    sa.Column("size_bytes", INTEGER, nullable=False),
    refers("runs", "run_id", "run_id"),
    refers("attempts", "attempt_id", "attempt_id"),
)
sa.Index("ix_artifacts_run", artifacts.c.workspace_id, artifacts.c.project_id, artifacts.c.run_id, artifacts.c.seq)
entity(
    "evaluation_suites",
    "evaluation_suite_id",
    *text("name", "task_type", "metric_contract", "code_digest", "metadata"),
    *maybe("dataset_version_id"),
    refers("dataset_versions", "dataset_version_id", "dataset_version_id"),
)
results = entity(
    "evaluation_results",
    "evaluation_result_id",
    *text("evaluation_suite_id", "run_id", "status", "metrics", "slice_metrics", "started_at"),
    *maybe("attempt_id", "model_version_id", "artifact_id", "compared_to_result_id", "completed_at"),
    refers("evaluation_suites", "evaluation_suite_id", "evaluation_suite_id"),
    refers("runs", "run_id", "run_id"),
    refers("attempts", "attempt_id", "attempt_id"),
    refers("model_versions", "model_version_id", "model_version_id"),
    refers("artifacts", "artifact_id", "artifact_id"),
    refers("evaluation_results", "compared_to_result_id", "evaluation_result_id"),
)
sa.Index("ix_results_run", results.c.workspace_id, results.c.project_id, results.c.run_id, results.c.seq)
entity(
    "decisions",
    "decision_id",
    *text("experiment_id", "decision_type", "outcome", "rationale", "evidence_refs", "actor_id"),
    *maybe("run_id"),
    refers("experiments", "experiment_id", "experiment_id"),
    refers("runs", "run_id", "run_id"),
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("cursor", INTEGER, primary_key=True, autoincrement=False),
    sa.Column("event_id", sa.Text, nullable=False, unique=True),
    *text(*SCOPE, "event_type", "source_system", "source_event_id", "correlation_id", "payload", "created_at"),
    *maybe("experiment_id", "run_id", "attempt_id"),
    *text("identity_digest", "prev_hash", "hash"),
    sa.UniqueConstraint("workspace_id", "source_system", "source_event_id"),
    sa.ForeignKeyConstraint(SCOPE, ["projects.workspace_id", "projects.project_id"], ondelete="RESTRICT"),
)
sa.Index("ix_events_project", events.c.workspace_id, events.c.project_id, events.c.cursor)
sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    *text("request_digest"),
    *maybe("response_json"),
    sa.Column("claimed_at", sa.Double, nullable=False),
    sqlite_with_rowid=False,
)
sa.Table(
    "counters",
    metadata,
    *text(*SCOPE, "name"),
    sa.Column("n", INTEGER, nullable=False),
    sa.PrimaryKeyConstraint(*SCOPE, "name"),
    sqlite_with_rowid=False,
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
