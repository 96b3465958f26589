"""`Ledger`: the ledger's one public face. Opens its database on first use and holds each transaction.

Every result is JSON-able. Rules live in the modules that the methods name; those of the write side are imported on
first use, so that a read command stays fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.settings import Settings
from bashgym.ledger import analysis, entities, events, idempotency, overview, reads
from bashgym.ledger.db import Database, Row
from bashgym.ledger.metrics import MetricStore

if TYPE_CHECKING:
    from bashgym.ledger.tracking import TrackingContext


class Ledger:
    """Thread-safe. With `read_only`, an existing SQLite file is opened read-only (an older one is migrated first)."""

    def __init__(self, settings: Settings, *, read_only: bool = False) -> None:
        self._settings, self._read_only = settings, read_only

    @cached_property
    def database(self) -> Database:
        """Opened on first use; see `Database.open` for what can go wrong."""
        return Database.open(self._settings, read_only=self._read_only)

    @cached_property
    def _metrics(self) -> MetricStore:
        return MetricStore(self.database)

    def close(self) -> None:
        """Closes the connections of all threads; the next use opens anew."""
        if "database" in self.__dict__:
            self.database.close()
            self.__dict__.pop("_metrics", None)
            del self.__dict__["database"]

    # --- runs, from inside ---

    def register_run(
        self,
        *,
        request: Mapping[str, Any],
        strategy: str,
        run_id: str,
        run_dir: Path | str,
        tracking: TrackingContext | None,
        model: Mapping[str, Any],
        dataset: Mapping[str, Any],
        environment: Mapping[str, Any],
        recipe_digest: str,
        correlation_id: str = "",
        origin: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        is_simulation: bool = False,
    ) -> dict[str, Any]:
        """Registers a run before its launch, in one transaction, and returns its tracking_ids.

        A second request with the same idempotency key and recipe gets the ids of the first one's run, so compare
        `run_id`. Errors: `ledger_identity_conflict`, `digest_mismatch`, `ledger_payload_unsafe`.
        """
        from bashgym.ledger import registry

        new = registry.NewRun(
            run_id=run_id,
            run_dir=str(Path(run_dir).absolute()),
            strategy=strategy,
            request=request,
            tracking=tracking,
            model=model,
            dataset=dataset,
            environment=environment,
            recipe_digest=recipe_digest,
            correlation_id=correlation_id,
            origin=origin or {},
            is_simulation=is_simulation,
        )
        key = f"run/{idempotency_key}"
        with self.database.write() as tx:
            if idempotency_key and (done := idempotency.stored(tx, key, recipe_digest)):
                return done
            ids = registry.register(tx, new)
            if idempotency_key:
                idempotency.store(tx, key, recipe_digest, ids)
            return ids

    def start_attempt(self, run_id: str, number: int) -> str:
        """Registers a further attempt of a run and returns its id."""
        from bashgym.ledger import registry

        with self.database.write() as tx:
            return registry.start_attempt(tx, registry.find(tx, run_id), number)

    def set_status(
        self,
        run_id: str,
        status: str,
        *,
        attempt: int | None = None,
        message: str = "",
        final_metrics: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
        catch_up: bool = False,
    ) -> dict[str, Any]:
        """Moves a run (see `transitions`) and writes its lifecycle event: {run_id, status, previous, changed}.

        `catch_up` passes through states that were never reported, for reconciling and for `runs reindex`.
        """
        from bashgym.ledger import registry

        change = registry.Change(status, attempt, message, final_metrics, error, catch_up)
        with self.database.write() as tx:
            return registry.set_status(tx, run_id, change)

    def ingest_metrics(self, run_id: str, attempt: int, points: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """Stores lines of metrics.jsonl in one transaction: {points, steps, skipped}. Again is harmless."""
        return self._metrics.ingest(run_id, attempt, points)

    def register_artifact(
        self,
        run_id: str,
        *,
        kind: str,
        uri: str,
        sha256: str,
        size_bytes: int,
        media_type: str = "application/octet-stream",
        attempt: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Records a file of a run by its digest: {record, replayed}."""
        from bashgym.ledger import mutations, registry

        with self.database.write() as tx:
            run = registry.find(tx, run_id)
            scope = {name: run[name] for name in entities.SCOPE}
            body: Row = {"run_id": run_id, "kind": kind, "uri": uri, "sha256": sha256, "size_bytes": size_bytes}
            body |= {"media_type": media_type, "metadata": dict(metadata or {})}
            if attempt is not None:
                body["attempt_id"] = registry.attempt_id(run, attempt)
            return mutations.create(tx, scope, "artifacts", body)

    def append_event(self, workspace_id: str, project_id: str, **body: Any) -> dict[str, Any]:
        """`create(..., "events", body)`: event_type, source_system, source_event_id, payload, ..."""
        return self.create(workspace_id, project_id, "events", body)

    def claim_idempotency(self, key: str, digest: str) -> dict[str, Any] | None:
        """The stored reply, or None: then the caller owns the key. `request_in_progress`."""
        with self.database.write() as tx:
            return idempotency.claim(tx, key, digest)

    def store_idempotency(self, key: str, digest: str, reply: Mapping[str, Any]) -> None:
        """Binds the reply to the key."""
        with self.database.write() as tx:
            idempotency.store(tx, key, digest, dict(reply))

    def release_idempotency(self, key: str) -> None:
        """Gives a claim without a reply back."""
        with self.database.write() as tx:
            idempotency.release(tx, key)

    def find_run(self, run_id: str) -> dict[str, Any] | None:
        """{run_id, run_dir, status, workspace_id, project_id, training_method, attempt, ...} in any project."""
        with self.database.read() as tx:
            return reads.find_run(tx, run_id)

    def recent_runs(self, status: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        """Entries as of `find_run`, newest first, of all projects."""
        with self.database.read() as tx:
            return reads.recent_runs(tx, status, limit)

    # --- records from outside ---

    def create(
        self,
        workspace_id: str,
        project_id: str,
        collection: str,
        body: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """experiment_ledger_mutation.v1 for evaluation-suites, evaluation-results, artifacts, decisions, events."""
        from bashgym.ledger import mutations

        with self.database.write() as tx:
            return mutations.create(tx, _scope(workspace_id, project_id), collection, body, idempotency_key)

    # --- reading ---

    def projects(self, workspace_id: str) -> dict[str, Any]:
        """experiment_projects.v1"""
        with self.database.read() as tx:
            return reads.projects(tx, workspace_id)

    def project(self, workspace_id: str, project_id: str) -> dict[str, Any]:
        """The project's record."""
        with self.database.read() as tx:
            return reads.project(tx, _scope(workspace_id, project_id))

    def context(self, workspace_id: str, project_id: str, recent_limit: int = 20) -> dict[str, Any]:
        """experiment_project_context.v1"""
        with self.database.read() as tx:
            return overview.context(tx, _scope(workspace_id, project_id), recent_limit)

    def runs(self, workspace_id: str, project_id: str, status: str | None = None, limit: int = 100) -> dict[str, Any]:
        """experiment_runs.v1, newest first."""
        with self.database.read() as tx:
            return reads.runs(tx, _scope(workspace_id, project_id), status, limit)

    def run(self, workspace_id: str, project_id: str, run_id: str) -> dict[str, Any]:
        """experiment_run.v1: {run, attempts, evaluations, artifacts, latest_metrics}."""
        with self.database.read() as tx:
            return reads.run(tx, _scope(workspace_id, project_id), run_id)

    def compare(
        self, workspace_id: str, project_id: str, run_ids: Sequence[str], result_ids: Sequence[str] = ()
    ) -> dict[str, Any]:
        """experiment_run_comparison.v1"""
        with self.database.read() as tx:
            return analysis.compare(tx, _scope(workspace_id, project_id), run_ids, result_ids)

    def trend(
        self, workspace_id: str, project_id: str, metric: str, run_id: str | None = None, limit: int = 5000
    ) -> dict[str, Any]:
        """experiment_metric_trend.v1"""
        with self.database.read() as tx:
            return analysis.trend(tx, _scope(workspace_id, project_id), metric, run_id, limit)

    def evaluations(
        self, workspace_id: str, project_id: str, run_id: str | None = None, limit: int = 200
    ) -> dict[str, Any]:
        """experiment_evaluations.v1, newest first."""
        with self.database.read() as tx:
            return reads.evaluations(tx, _scope(workspace_id, project_id), run_id, limit)

    def events(
        self, workspace_id: str | None = None, project_id: str | None = None, after_cursor: int = 0, limit: int = 200
    ) -> dict[str, Any]:
        """experiment_ledger_sync.v1 of a project, or of the whole log if no scope is given."""
        scope = _scope(workspace_id, project_id) if workspace_id and project_id else {}
        with self.database.read() as tx:
            return reads.event_page(tx, scope, after_cursor, limit)

    def verify_chain(self) -> dict[str, Any]:
        """{ok, events, head, first_bad_cursor, problem}"""
        return events.verify_chain(self.database)

    def health(self, *, check: bool = True) -> dict[str, Any]:
        """experiment_ledger_health.v1; without `check`, SQLite's quick_check of the whole file is left out."""
        return overview.health(self.database, check=check)


def _scope(workspace_id: str, project_id: str) -> Row:
    return {"workspace_id": workspace_id, "project_id": project_id}
