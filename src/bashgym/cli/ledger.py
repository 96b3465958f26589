"""`bashgym ledger ...`: the read side of the experiment ledger, from the local database or, with --api-base, a server.

No credential is needed here. Exit statuses: 0 ok, 2 usage, 3 and 4 not allowed, 5 not found, 6 conflict, 7 rejected,
8 failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, note, safe, table
from bashgym.core.errors import fail

WorkspaceId = Annotated[str | None, typer.Option("--workspace-id", help="Workspace; BASHGYM_WORKSPACE_ID by default.")]
ProjectId = Annotated[str, typer.Option("--project", help="Project.")]
RunId = Annotated[str | None, typer.Option("--run", help="Only this run.")]
CredentialRef = Annotated[str | None, typer.Option(help="Accepted for old scripts; reading here needs no credential.")]
ApiBase = Annotated[str | None, typer.Option(help="Ask this server instead of the local database.")]
Query = dict[str, Any]


class _Source:
    """The local ledger, or a server's."""

    def __init__(self, workspace_id: str | None, credential_ref: str | None, api_base: str | None) -> None:
        from bashgym.core.settings import Settings

        self.settings = Settings.from_env()
        self.workspace_id = workspace_id or self.settings.workspace_id
        self.api_base = api_base
        if credential_ref is not None:
            note("--credential-ref is not needed: the local ledger is read without a credential")

    def read(self, path: str, query: Query, local: Callable[[Any, str], Any], *, scoped: bool = True) -> Any:
        """`local(ledger, workspace_id)`, or the route `path` of the server."""
        if scoped and not self.workspace_id:
            raise fail(
                "usage", "no workspace is given", "Use --workspace-id or set BASHGYM_WORKSPACE_ID.", ["--workspace-id"]
            )
        if self.api_base is not None:
            from bashgym.cli.client import Client

            pairs = {
                k: [str(v) for v in (value if isinstance(value, list) else [value])]
                for k, value in query.items()
                if value is not None
            }
            pairs |= {"workspace_id": [self.workspace_id]} if scoped else {}
            return Client.of(self.api_base).request("GET", f"/api/ledger{path}", query=pairs).raise_for_refusal()
        from bashgym.ledger.service import Ledger

        return local(Ledger(self.settings), self.workspace_id)


def health(workspace_id: WorkspaceId = None, credential_ref: CredentialRef = None, api_base: ApiBase = None) -> Reply:
    """Is the database whole? Counts, sizes, schema versions."""
    doc = _Source(workspace_id, credential_ref, api_base).read("/health", {}, lambda at, _: at.health(), scoped=False)
    return Reply(doc, exit_code=0 if doc.get("status") == "healthy" else 8)


def projects(workspace_id: WorkspaceId = None, credential_ref: CredentialRef = None, api_base: ApiBase = None) -> Reply:
    """The projects of a workspace."""
    doc = _Source(workspace_id, credential_ref, api_base).read("/projects", {}, lambda at, ws: at.projects(ws))
    return Reply(doc, lambda: table(doc["projects"], ["project_id", "display_name", "status", "updated_at"]))


def project(
    project: ProjectId, workspace_id: WorkspaceId = None, credential_ref: CredentialRef = None, api_base: ApiBase = None
) -> Reply:
    """One project's record."""
    source = _Source(workspace_id, credential_ref, api_base)
    return Reply(source.read(f"/projects/{project}", {}, lambda at, ws: at.project(ws, project)))


def context(
    project: ProjectId,
    limit: Annotated[int, typer.Option(help="Recent records of each kind, 1 to 100.")] = 20,
    workspace_id: WorkspaceId = None,
    credential_ref: CredentialRef = None,
    api_base: ApiBase = None,
) -> Reply:
    """A project in one answer: health, inventory, lineage, recent records."""
    source = _Source(workspace_id, credential_ref, api_base)
    path = f"/projects/{project}/context"
    return Reply(source.read(path, {"recent_limit": limit}, lambda at, ws: at.context(ws, project, limit)))


def runs(
    *,
    project: ProjectId,
    status: Annotated[str | None, typer.Option(help="Only runs in this state.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many, up to 1000.")] = 100,
    workspace_id: WorkspaceId = None,
    credential_ref: CredentialRef = None,
    api_base: ApiBase = None,
) -> Reply:
    """A project's runs, newest first."""
    source = _Source(workspace_id, credential_ref, api_base)
    query = {"status": status, "limit": limit}
    doc = source.read(f"/projects/{project}/runs", query, lambda at, ws: at.runs(ws, project, status, limit))
    columns = ["run_id", "experiment_id", "training_method", "status", "context_status", "started_at", "completed_at"]
    return Reply(doc, lambda: table(doc["runs"], columns))


def run(
    project: ProjectId,
    run: Annotated[str, typer.Option(help="Run.")],
    workspace_id: WorkspaceId = None,
    credential_ref: CredentialRef = None,
    api_base: ApiBase = None,
) -> Reply:
    """One run with its attempts, evaluations and artifacts."""
    source = _Source(workspace_id, credential_ref, api_base)
    return Reply(source.read(f"/projects/{project}/runs/{run}", {}, lambda at, ws: at.run(ws, project, run)))


def trend(
    *,
    project: ProjectId,
    metric: Annotated[str, typer.Option(help="Metric by its ledger name, e.g. train.loss.")],
    run: RunId = None,
    limit: Annotated[int, typer.Option(help="At most this many points, up to 20000.")] = 5000,
    workspace_id: WorkspaceId = None,
    credential_ref: CredentialRef = None,
    api_base: ApiBase = None,
) -> Reply:
    """How a metric moved: first, latest, least, most, slope, points."""
    source = _Source(workspace_id, credential_ref, api_base)
    path, query = f"/projects/{project}/metrics/{metric}/trend", {"run_id": run, "limit": limit}
    doc = source.read(path, query, lambda at, ws: at.trend(ws, project, metric, run, limit))

    def show() -> None:
        for name in ("point_count", "first", "latest", "min", "max", "delta", "slope"):
            print(f"{name}: {safe(doc.get(name))}")

    return Reply(doc, show)


def evaluations(
    *,
    project: ProjectId,
    run: RunId = None,
    limit: Annotated[int, typer.Option(help="At most this many.")] = 200,
    workspace_id: WorkspaceId = None,
    credential_ref: CredentialRef = None,
    api_base: ApiBase = None,
) -> Reply:
    """Evaluation results, newest first."""
    source = _Source(workspace_id, credential_ref, api_base)
    path, query = f"/projects/{project}/evaluations", {"run_id": run, "limit": limit}
    doc = source.read(path, query, lambda at, ws: at.evaluations(ws, project, run, limit))
    return Reply(
        doc,
        lambda: table(
            doc["evaluations"], ["evaluation_result_id", "evaluation_suite_id", "run_id", "status", "metrics"]
        ),
    )


def compare(
    project: ProjectId,
    run: Annotated[list[str] | None, typer.Option(help="A run to compare; 2 to 20 of them.")] = None,
    workspace_id: WorkspaceId = None,
    credential_ref: CredentialRef = None,
    api_base: ApiBase = None,
) -> Reply:
    """Runs side by side, only where they have results of one and the same suite."""
    source, chosen = _Source(workspace_id, credential_ref, api_base), run or []
    path, query = f"/projects/{project}/compare", {"run_id": chosen}
    return Reply(source.read(path, query, lambda at, ws: at.compare(ws, project, chosen)))


def events(
    *,
    project: ProjectId,
    after_cursor: Annotated[int, typer.Option(help="Only events after this one.")] = 0,
    limit: Annotated[int, typer.Option(help="At most this many, up to 1000.")] = 200,
    workspace_id: WorkspaceId = None,
    credential_ref: CredentialRef = None,
    api_base: ApiBase = None,
) -> Reply:
    """The event log after a cursor. Keep `next_cursor` once your own write has succeeded."""
    source = _Source(workspace_id, credential_ref, api_base)
    path, query = f"/projects/{project}/events", {"after_cursor": after_cursor, "limit": limit}
    doc = source.read(path, query, lambda at, ws: at.events(ws, project, after_cursor, limit))
    return Reply(doc, lambda: table(doc["events"], ["cursor", "created_at", "event_type", "run_id"]))
