"""`training list|get|log|metrics|pause|resume|stop` and `runs reindex`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, note, safe, table, write
from bashgym.core.errors import fail

RunId = Annotated[str, typer.Argument(help="Id of the run.", metavar="RUN_ID")]


def _runs() -> Any:
    from bashgym.workspace import Workspace

    return Workspace.open().runs


def list_runs(
    status: Annotated[str | None, typer.Option(help="Only runs in this state.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1, max=1000)] = 50,
) -> Reply:
    """The newest runs, of all folders that this workspace has seen."""
    found = _runs().list_runs(status, limit)
    rows = [{**run, "step": run["progress"].get("step"), "loss": run["metrics"].get("loss")} for run in found]
    columns = ["run_id", "status", "strategy", "base_model", "step", "loss", "started_at"]
    return Reply({"runs": found}, lambda: table(rows, columns, empty="no runs yet: bashgym training start"))


def get(run_id: RunId) -> Reply:
    """Where one run stands: state, progress, last metrics, error."""
    return Reply(_runs().get(run_id))


def log(
    run_id: RunId,
    tail: Annotated[int, typer.Option(help="The last lines, at most 5000; 0 is the whole log.", min=0)] = 500,
    grep: Annotated[str | None, typer.Option(help="Only lines with this text; applied before the cut.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    ctx: typer.Context = None,  # type: ignore[assignment]
) -> Reply:
    """The end of a run's log."""
    runs = _runs()
    if not follow:
        doc = runs.log(run_id, tail, grep)
        return Reply(doc, lambda: write("".join(f"{line}\n" for line in doc["lines"])))
    if ctx.obj.json:
        raise fail("usage", "--follow is a stream, --json is one document", "Leave one of them out.")
    for line in runs.follow_log(run_id):
        if grep is None or grep in line:
            write(line + "\n")
    return Reply({}, lambda: None)


def metrics(
    run_id: RunId,
    name: Annotated[list[str] | None, typer.Option("--name", help="Only this metric; repeatable.")] = None,
    limit: Annotated[int, typer.Option(help="Only the last points; 0 is all.", min=0)] = 0,
) -> Reply:
    """Every metric point of a run, one row a step. NaN and infinity are null and named in `non_finite`."""
    doc = _runs().metrics(run_id)
    points = doc["metrics"]
    if name:
        points = [{k: v for k, v in p.items() if k in ("step", "ts", "non_finite", *name)} for p in points]
        points = [p for p in points if any(n in p for n in name)]
    points = points[-limit:] if limit else points
    shown = {key: None for point in points for key in point if key not in ("ts", "non_finite")}
    rows = [{k: point.get(k, (point.get("non_finite") or {}).get(k)) for k in shown} for point in points]
    return Reply({**doc, "metrics": points}, lambda: table(rows, list(shown), empty="no points yet"))


def pause(run_id: RunId) -> Reply:
    """Checkpoint at the next optimizer step, then end the trainer so that its memory is free."""
    return _said(_runs().pause(run_id))


def resume(run_id: RunId) -> Reply:
    """Go on from the last valid checkpoint: a paused run as itself, a failed one as a new run."""
    return _said(_runs().resume(run_id))


def stop(
    run_id: RunId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    ctx: typer.Context = None,  # type: ignore[assignment]
) -> Reply:
    """End a run and all its processes; it becomes cancelled. Asks first on a terminal."""
    runs = _runs()
    if not yes and not ctx.obj.json and sys.stdin.isatty() and sys.stderr.isatty():
        state = runs.get(run_id)
        at = state["progress"].get("step")
        typer.confirm(f"Stop {run_id} ({state['status']}{f', step {at}' if at else ''})?", abort=True, err=True)
    return _said(runs.stop(run_id))


def _said(doc: dict[str, Any]) -> Reply:
    return Reply(doc, lambda: print(f"{doc.get('run_id', '')}  {doc['status']}  {safe(doc.get('message', ''))}"))


def reindex() -> Reply:
    """Rebuild the index of runs from their directories. The directories are the truth; nothing in them changes."""
    from bashgym.runs.reindex import reindex as rebuild
    from bashgym.workspace import Workspace

    workspace = Workspace.open()
    doc = rebuild(workspace.settings, workspace.ledger)
    note("reindexed")
    return Reply(doc)
