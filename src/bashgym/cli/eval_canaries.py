"""`bashgym eval canaries`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe, table
from bashgym.cli.progress import shown


def canaries(
    *,
    category: Annotated[list[str] | None, typer.Option(help="Only this category; repeatable.")] = None,
    environments: Annotated[
        Path | None, typer.Option(help="File of environments, one a line: generic attacks are run against each.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Run that the report is filed under, for its RunCard.")] = None,
    keep_workspace: Annotated[bool, typer.Option(help="Keep what the attacks left in the naive harness.")] = False,
    workspace_root: Annotated[Path | None, typer.Option(help="Folder for workspaces.")] = None,
    output: Annotated[Path | None, typer.Option(help="File for the whole report.")] = None,
) -> Reply:
    """Attack the sandbox and the verifiers as a dishonest model would. The exit status is 1 if anything got through.

    Each attack is also run against a naive harness, which it has to beat: a canary that cannot fail is reported as invalid.
    """
    from bashgym.core.files import atomic_write_json
    from bashgym.core.settings import Settings
    from bashgym.envs.adapters.files import read_environments
    from bashgym.evals.canaries import run as run_canaries

    body: dict[str, Any] = {"categories": category, "run_id": run, "keep_workspace": keep_workspace}
    if environments:
        body["environments"] = [spec.to_dict() for spec in read_environments(environments)]
    if workspace_root:
        body["workspace_root"] = str(workspace_root)
    with shown() as progress:
        doc = run_canaries(
            Settings.from_env(), body, lambda done, total: progress("attacks", done / total, f"{done}/{total}")
        )
    if output:
        atomic_write_json(output, json.loads(json.dumps(doc)))
    return Reply(doc, lambda: _show(doc), exit_code=0 if doc["summary"]["ok"] else 1)


def _show(doc: dict[str, Any]) -> None:
    rows = [
        {
            "canary": safe(row["canary_id"]),
            "guarded": "invalid" if row["invalid"] else "yes" if row["guarded"] else "NO",
            "ended": row["verifier_status"] + (safe(f", {row['outside']}") if row["outside"] else ""),
            "beats the naive harness": {True: "yes", False: "no", None: ""}[row["control_beaten"]],
        }
        for row in doc["canaries"]
    ]
    table(rows, ["canary", "guarded", "ended", "beats the naive harness"])
    found = doc["summary"]
    print(f"{found['guarded']} of {found['total']} guarded, {found['failed']} got through, {found['invalid']} invalid")
