"""`training start`: flags and files into one request, and the waiting afterwards."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.inputs import load_config, merge, parse_sets
from bashgym.cli.output import Reply, lines, note, safe, warn
from bashgym.core.errors import fail

_ENDED = ("completed", "failed", "cancelled", "paused")
Flag = bool | None


def start(
    *,
    strategy: Annotated[str, typer.Option(help="Training method.")] = "sft",
    model: Annotated[str | None, typer.Option(help="Built-in name, Hub id, local folder or run id.")] = None,
    dataset_path: Annotated[str | None, typer.Option(help="Training rows.")] = None,
    compute_target: Annotated[str | None, typer.Option(help="Where to run; local by default.")] = None,
    correlation_id: Annotated[
        str | None, typer.Option(help="Recorded with the run; training:<run id> by default.")
    ] = None,
    tracking_context: Annotated[Path | None, typer.Option(help="File of `training tracking-context init`.")] = None,
    config: Annotated[Path | None, typer.Option(help="JSON object of request fields.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE, the value in JSON; repeatable.")] = None,
    checkpoint_limit: Annotated[int | None, typer.Option(help="Checkpoints kept during the run, 1 to 20.")] = None,
    artifact_retention: Annotated[
        str | None, typer.Option(help="adapter_only, adapter_checkpoint, deployable or full_run.")
    ] = None,
    auto_push_hf: Annotated[Flag, typer.Option("--auto-push-hf/--no-auto-push-hf", help="Push the result.")] = None,
    hf_repo_name: Annotated[str | None, typer.Option(help="Repository to push to.")] = None,
    hf_private: Annotated[Flag, typer.Option("--hf-private/--hf-public", help="Visibility of a push.")] = None,
    hf_upload_artifact: Annotated[str | None, typer.Option(help="auto, adapter or merged.")] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent asks; BASHGYM_AGENT_KIND by default.")] = None,
    api_base: Annotated[str | None, typer.Option(help="Start on this server instead of on this machine.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Id of the new run.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key and request start one run only.")] = None,
    force: Annotated[
        list[str] | None, typer.Option(help="Override this blocking finding, on record; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, start nothing.")] = False,
    queue: Annotated[bool, typer.Option("--queue", help="Let it wait until a training slot is free.")] = False,
    stop_on_error: Annotated[
        bool, typer.Option("--stop-on-error", help="With --queue: if this run fails, launch nothing after it.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", "--follow", help="Show progress until the run has ended.")] = False,
) -> Reply:
    """Check everything, then start a run. Returns at once; --wait stays until it has ended.

    Flags win over --set, --set over --config. Nothing is started if a preflight finding blocks.
    """
    flags = {
        "strategy": strategy,
        "base_model": model,
        "dataset_path": dataset_path,
        "compute_target": compute_target,
        "correlation_id": correlation_id,
        "tracking": _tracking(tracking_context),
        "checkpoint_limit": checkpoint_limit,
        "artifact_retention": artifact_retention,
        "auto_push_hf": auto_push_hf,
        "hf_repo_name": hf_repo_name,
        "hf_private": hf_private,
        "hf_upload_artifact": hf_upload_artifact,
        "run_id": run_id,
        "idempotency_key": idempotency_key,
    }
    body = merge(load_config(config), parse_sets(set_ or []), flags)
    if stop_on_error and not queue:
        raise fail("usage", "--stop-on-error belongs to --queue", "Add --queue, or leave it out.")
    if api_base is not None:
        if wait:
            raise fail("usage", "--wait follows runs of this machine only", "Leave it out with --api-base.")
        flags_set = {"dry_run": dry_run, "queue": queue, "stop_on_error": stop_on_error}
        return _remote(api_base, {**body, "origin": _origin(agent)}, force or [], flags_set)
    from bashgym.workspace import Workspace

    workspace = Workspace.open()
    doc = workspace.runs.start(
        body, force=force or (), dry_run=dry_run, origin=_origin(agent), queued=queue, stop_on_error=stop_on_error
    )
    warn(doc.get("warnings", []))
    if wait and not dry_run:
        return _follow(workspace, str(doc["run_id"]), doc)
    return Reply(doc, lambda: _started(doc, dry_run))


def _tracking(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    from bashgym.ledger.tracking import load_context

    return load_context(path).as_dict()


def _origin(agent: str | None) -> dict[str, Any]:
    from bashgym.core.settings import Settings

    settings = Settings.from_env()
    origin = {
        "kind": "terminal" if settings.terminal_id else "cli",
        "terminal_id": settings.terminal_id or None,
        "agent": agent or settings.agent or None,
    }
    return {key: value for key, value in origin.items() if value}


def _remote(base: str, body: dict[str, Any], force: list[str], flags: dict[str, bool]) -> Reply:
    from bashgym.cli.client import Client

    query = {"force": force, **{name: ["true"] for name, on in flags.items() if on}}
    answer = Client.of(base).request("POST", "/api/training/start", query=query, body=body)
    return Reply(answer.raise_for_refusal())


def _started(doc: dict[str, Any], dry_run: bool) -> None:
    if dry_run:
        need = doc["estimate"]
        print(
            f"nothing stands against it: {need['tokens']} tokens a pass, {need['memory_bytes'] / 2**30:.2f} GiB memory"
            + (f", about {need['cost']:.2f} in money" if need["cost"] is not None else "")
        )
        return
    print(f"{doc['run_id']}  {'waiting' if doc.get('waiting') else doc['status']}  {doc['output_path']}")
    print(f"follow it: bashgym training log {doc['run_id']} --follow")


def _follow(workspace: Any, run_id: str, begun: dict[str, Any]) -> Reply:
    """Shows progress on stderr until the run has ended. Ctrl-C leaves the run going and says so."""
    try:
        state = _watch(workspace, run_id)
    except KeyboardInterrupt:
        note(f"{run_id} goes on without this terminal.")
        note(f"bashgym training log {run_id} --follow shows it again; bashgym training stop {run_id} ends it.")
        raise
    doc = {**begun, **state}
    good = state["status"] in ("completed", "paused")

    def show() -> None:
        print(f"{run_id}  {state['status']}  {state['output_path']}")
        for line in lines(state["error"] or state["metrics"] or {}, "  "):
            print(line)

    return Reply(doc, show, 0 if good else 1)


def watch(run_id: str) -> dict[str, Any]:
    """Shows progress on stderr until the run has ended; its last state."""
    from bashgym.workspace import Workspace

    return _watch(Workspace.open(), run_id)


def _watch(workspace: Any, run_id: str) -> dict[str, Any]:
    return _watch_live(workspace, run_id) if sys.stderr.isatty() else _watch_plain(workspace, run_id)


def _watch_plain(workspace: Any, run_id: str) -> dict[str, Any]:
    """A line at every change of state and every ten seconds."""
    told, shown = 0.0, ""
    while True:
        state: dict[str, Any] = workspace.runs.get(run_id)
        if state["status"] != shown or time.monotonic() - told > 10:
            shown, told = state["status"], time.monotonic()
            note(f"{run_id} {shown} {_progress_text(state)}")
        if state["status"] in _ENDED:
            return state
        time.sleep(0.3)


def _watch_live(workspace: Any, run_id: str) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[status]}"), BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as view:
        bar = view.add_task("", total=None, status="queued", text="")
        while True:
            state: dict[str, Any] = workspace.runs.get(run_id)
            at, total = state["progress"].get("step") or 0, state["progress"].get("total_steps")
            view.update(bar, completed=at, total=total, status=state["status"], text=_progress_text(state))
            if state["status"] in _ENDED:
                return state
            time.sleep(0.3)


def _progress_text(state: dict[str, Any]) -> str:
    progress, metrics = state["progress"], state["metrics"]
    parts = []
    if progress.get("total_steps"):
        parts.append(f"step {progress.get('step') or 0}/{progress['total_steps']}")
    parts += [
        f"{name} {metrics[name]:.4g}" for name in ("loss", "eval_loss") if isinstance(metrics.get(name), int | float)
    ]
    if isinstance(progress.get("eta_s"), int | float):
        parts.append(f"{progress['eta_s']:.0f} s left")
    return safe("  ".join(parts))
