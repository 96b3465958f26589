"""`training queue list|move|remove|run`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe, table

RunId = Annotated[str, typer.Argument(help="Id of a waiting run.", metavar="RUN_ID")]


def _runs() -> Any:
    from bashgym.workspace import Workspace

    return Workspace.open().runs


def list_queue() -> Reply:
    """Who trains and who waits, in order. Looking also launches what is due.

    BASHGYM_QUEUE_SLOTS runs train at a time, one by default; runs that were started without --queue take a slot too.
    """
    return _shown(_runs().queue_list())


def move(
    run_id: RunId, to: Annotated[int, typer.Option("--to", help="New position; 1 is launched next.", min=1)]
) -> Reply:
    """Give a waiting run another place in the order; a position beyond the end is the end."""
    return _shown(_runs().queue_move(run_id, to))


def remove(run_id: RunId) -> Reply:
    """Take a waiting run out; it becomes cancelled. The same as `training stop` of a run that waits."""
    doc = _runs().queue_remove(run_id)
    return Reply(doc, lambda: print(f"{doc['run_id']}  {doc['status']}  {safe(doc['message'])}"))


def run() -> Reply:
    """Launch what is due, and go on where a failed run with --stop-on-error holds the queue."""
    doc = _runs().queue_run()
    return _shown(doc)


def _shown(doc: dict[str, Any]) -> Reply:
    def show() -> None:
        for run_id in doc.get("launched", []):
            print(f"launched {run_id}")
        if doc["held"]:
            print(f"held since {doc['held']['run_id']} failed; `bashgym training queue run` goes on")
        rows = [{"position": "-", **active} for active in doc["active"]]
        rows += [{"status": "waiting", **waiting} for waiting in doc["waiting"]]
        table(rows, ["position", "run_id", "status", "output_path"], empty="nothing trains and nothing waits")

    return Reply(doc, show)
