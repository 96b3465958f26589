"""`training diff` and `training reproduce`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, note, safe, table
from bashgym.core.errors import fail

RunId = Annotated[str, typer.Argument(help="Id of a run.", metavar="RUN_ID")]


def _runs() -> Any:
    from bashgym.workspace import Workspace

    return Workspace.open().runs


def diff(run_a: RunId, run_b: RunId) -> Reply:
    """What differs between two runs: settings, code, data rows, model, packages, hardware; and their metrics."""
    doc = _runs().diff(run_a, run_b)
    return Reply(doc, lambda: _show(doc))


def _show(doc: dict[str, Any]) -> None:
    first, second = doc["a"]["run_id"], doc["b"]["run_id"]
    columns = ["field", first, second]
    print(f"{first} ({doc['a']['status']})  and  {second} ({doc['b']['status']})")
    if doc["same"]:
        print("the same settings, code, data, model, packages and hardware")
    for name, differences in doc["sections"].items():
        if differences:
            print(f"\n{name}")
            table([{"field": d["field"], first: d["a"], second: d["b"]} for d in differences], columns)
    _show_rows(doc["dataset_rows"])
    print("\nmetrics, last values")
    rows = [{"metric": m["metric"], first: m["a"], second: m["b"], "change": m["change"]} for m in doc["metrics"]]
    table(rows, ["metric", first, second, "change"], empty="none yet")


def _show_rows(rows: dict[str, Any]) -> None:
    if not rows["compared"]:
        print(f"\nrows were not compared: {safe(rows['reason'])}")
        return
    counts = ", ".join(f"{rows[kind]} {kind}" for kind in ("added", "removed", "changed", "same"))
    print(f"\nrows: {counts}")
    if rows["examples"]:
        table(rows["examples"], ["kind", "row", "was_row", "sha256", "text"])


def reproduce(
    *,
    run_id: RunId,
    start: Annotated[
        bool, typer.Option("--start/--dry-run", help="Start the new run, or only say what has changed since.")
    ] = True,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it has ended, then compare.")] = False,
    compare: Annotated[str | None, typer.Option(help="Start nothing: compare this finished run.")] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Let it wait for a free slot.")] = False,
    allow_deviations: Annotated[
        bool, typer.Option("--allow-deviations", help="Start even if model or data are not those of the run.")
    ] = False,
) -> Reply:
    """Start the request of a run again and see whether the same weights come out.

    Lists everything that has changed since: model, data, packages, code, backend, device. After --wait or with
    --compare the exit status is 2 if the final weights are not the same bit by bit.
    """
    runs = _runs()
    if compare is not None:
        return _compared(runs.compare_reproduction(run_id, compare))
    if wait and not start:
        raise fail("usage", "--wait waits for a run, --dry-run starts none", "Leave one of them out.")
    doc = runs.reproduce(run_id, dry_run=not start, allow=allow_deviations, queued=queue)
    for deviation in doc["deviations"]:
        note(f"changed since: {deviation['what']} was {deviation['was']}, is {deviation['now']}")
    if not wait:
        return Reply(doc, lambda: _show_start(doc))
    from bashgym.cli.start import watch

    state = watch(str(doc["run_id"]))
    if state["status"] != "completed":
        return Reply({**doc, **state}, None, 1)
    return _compared(runs.compare_reproduction(run_id, str(doc["run_id"])), doc)


def _show_start(doc: dict[str, Any]) -> None:
    said = "nothing has changed since" if doc["exact_possible"] else f"{len(doc['deviations'])} deviations"
    if doc["dry_run"]:
        print(f"{doc['reproduces']}: {said}")
        return
    print(f"{doc['run_id']}  {doc['status']}  reproduces {doc['reproduces']}: {said}")
    print(f"when it has ended: bashgym training reproduce {doc['reproduces']} --compare {doc['run_id']}")


def _compared(found: dict[str, Any], begun: dict[str, Any] | None = None) -> Reply:
    def show() -> None:
        print(f"{found['new_run_id']} against {found['run_id']}: {safe(found['verdict'])}")
        if not found["identical"]:
            rows = [
                {"metric": m["metric"], "was": m["a"], "is": m["b"], "change": m["change"]} for m in found["metrics"]
            ]
            table(rows, ["metric", "was", "is", "change"])

    return Reply({**(begun or {}), "comparison": found}, show, 0 if found["identical"] else 2)
