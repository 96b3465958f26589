"""The experiment ledger over HTTP. Every route has the workspace as a query parameter; bodies may not name another."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from bashgym.api.http import Body, Space, reply
from bashgym.core.errors import fail

router = APIRouter(prefix="/api/ledger")
WorkspaceId = Annotated[str, Query(min_length=1, max_length=160)]
Limit = Annotated[int, Query(ge=1, le=1000)]
COLLECTIONS = ("evaluation-suites", "evaluation-results", "artifacts", "decisions", "events")


@router.get("/health")
def health(space: Space, workspace_id: str | None = None) -> Response:
    """Is the database whole?"""
    return reply(space.ledger.health())


@router.get("/projects")
def projects(space: Space, workspace_id: WorkspaceId) -> Response:
    """experiment_projects.v1"""
    return reply(space.ledger.projects(workspace_id))


@router.get("/projects/{project_id}")
def project(project_id: str, space: Space, workspace_id: WorkspaceId) -> Response:
    """The project's record."""
    return reply(space.ledger.project(workspace_id, project_id))


@router.get("/projects/{project_id}/context")
def context(
    project_id: str, space: Space, workspace_id: WorkspaceId, recent_limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> Response:
    """experiment_project_context.v1"""
    return reply(space.ledger.context(workspace_id, project_id, recent_limit))


@router.get("/projects/{project_id}/runs")
def runs(
    project_id: str, space: Space, workspace_id: WorkspaceId, status: str | None = None, limit: Limit = 100
) -> Response:
    """experiment_runs.v1"""
    return reply(space.ledger.runs(workspace_id, project_id, status, limit))


@router.get("/projects/{project_id}/runs/{run_id}")
def run(project_id: str, run_id: str, space: Space, workspace_id: WorkspaceId) -> Response:
    """experiment_run.v1"""
    return reply(space.ledger.run(workspace_id, project_id, run_id))


@router.get("/projects/{project_id}/compare")
def compare(
    project_id: str, space: Space, workspace_id: WorkspaceId, run_id: Annotated[list[str] | None, Query()] = None
) -> Response:
    """experiment_run_comparison.v1"""
    return reply(space.ledger.compare(workspace_id, project_id, run_id or []))


@router.get("/projects/{project_id}/metrics/{metric}/trend")
def trend(
    *,
    project_id: str,
    metric: str,
    space: Space,
    workspace_id: WorkspaceId,
    run_id: str | None = None,
    limit: Annotated[int, Query(ge=1, le=20000)] = 5000,
) -> Response:
    """experiment_metric_trend.v1"""
    return reply(space.ledger.trend(workspace_id, project_id, metric, run_id, limit))


@router.get("/projects/{project_id}/evaluations")
def evaluations(
    project_id: str, space: Space, workspace_id: WorkspaceId, run_id: str | None = None, limit: Limit = 200
) -> Response:
    """experiment_evaluations.v1"""
    return reply(space.ledger.evaluations(workspace_id, project_id, run_id, limit))


@router.get("/projects/{project_id}/events")
def events(
    project_id: str,
    space: Space,
    workspace_id: WorkspaceId,
    after_cursor: Annotated[int, Query(ge=0)] = 0,
    limit: Limit = 200,
) -> Response:
    """experiment_ledger_sync.v1"""
    return reply(space.ledger.events(workspace_id, project_id, after_cursor, limit))


@router.post("/projects/{project_id}/{collection}")
def create(
    *,
    project_id: str,
    collection: str,
    body: Body,
    space: Space,
    workspace_id: WorkspaceId,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """experiment_ledger_mutation.v1 for evaluation suites and results, artifacts, decisions, events."""
    if collection not in COLLECTIONS:
        raise fail(
            "route_not_found", f"the ledger has no collection {collection[:80]!r}", f"It has {', '.join(COLLECTIONS)}."
        )
    return reply(space.ledger.create(workspace_id, project_id, collection, body, idempotency_key=idempotency_key))
