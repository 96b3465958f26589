"""`training tracking-context init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe


def init(
    *,
    project_id: Annotated[str, typer.Option(help="Project.")],
    experiment_id: Annotated[str, typer.Option(help="Experiment.")],
    objective: Annotated[str, typer.Option(help="What the experiment is to show.")],
    task_type: Annotated[str, typer.Option(help="Kind of task, e.g. qa.")],
    model: Annotated[str, typer.Option(help="Model, as for training start.")],
    dataset_path: Annotated[Path, typer.Option(help="Training rows.")],
    output: Annotated[Path, typer.Option(help="Where the context is written.")],
    workspace_id: Annotated[str | None, typer.Option(help="Workspace; BASHGYM_WORKSPACE_ID by default.")] = None,
    project_name: Annotated[str | None, typer.Option(help="Display name of the project.")] = None,
    experiment_name: Annotated[str | None, typer.Option(help="Display name of the experiment.")] = None,
    dataset_id: Annotated[str | None, typer.Option(help="Id of the dataset; from its file name by default.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag of the run; repeatable.")] = None,
) -> Reply:
    """Measure the digests of model, data and environment, and write a complete tracking context."""
    from bashgym.core.files import writable_dir
    from bashgym.core.runtime import runtime_digest, runtime_facts
    from bashgym.ledger.tracking import init_context
    from bashgym.runs.hardware import gpus
    from bashgym.workspace import Workspace

    workspace = Workspace.open()
    facts = runtime_facts(workspace.settings.training_python)
    given: dict[str, Any] = {
        "project_display_name": project_name,
        "experiment_name": experiment_name,
        "dataset_id": dataset_id,
        "tags": tag,
    }
    writable_dir(output.absolute().parent)
    context = init_context(
        workspace_id=workspace_id or workspace.settings.workspace_id,
        project_id=project_id,
        experiment_id=experiment_id,
        objective=objective,
        task_type=task_type,
        model=workspace.model(model).facts(),
        dataset_path=dataset_path,
        environment={**facts, "digest": runtime_digest(facts), "hardware": {"gpus": gpus()}},
        output=output,
        **{name: value for name, value in given.items() if value},
    )
    return Reply({"ok": True, "path": str(output), "context": context}, lambda: print(f"written: {safe(str(output))}"))
