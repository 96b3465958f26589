"""`training analyze` and `training classify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bashgym.cli.output import Reply, safe

ModelsDir = Annotated[Path | None, typer.Option(help="Folder of the run directories; data/models by default.")]


def analyze(
    *,
    run_id: Annotated[str | None, typer.Option(help="Id of the run.")] = None,
    models_dir: ModelsDir = None,
    metrics: Annotated[Path | None, typer.Option(help="A metrics.jsonl instead of a run.")] = None,
    replay: Annotated[Path | None, typer.Option(help="A DPPO replay file.")] = None,
    release_evidence: Annotated[Path | None, typer.Option(help="A release evidence file.")] = None,
    smoke_bundle: Annotated[Path | None, typer.Option(help="A smoke bundle.")] = None,
    baseline_run_id: Annotated[str | None, typer.Option(help="A run to compare with.")] = None,
) -> Reply:
    """Read a run's curves and evidence: verdict, findings, next steps. Needs --run-id or --metrics."""
    from bashgym.runs.analysis import analyze as judge

    doc = judge(
        run_id=run_id,
        run_dir=_run_dir(run_id, models_dir) if run_id else None,
        metrics_path=metrics,
        replay=replay,
        release_evidence=release_evidence,
        smoke_bundle=smoke_bundle,
        baseline_run_dir=_run_dir(baseline_run_id, models_dir) if baseline_run_id else None,
    )

    def show() -> None:
        print(f"{doc['verdict']['level']}: {safe(doc['verdict']['headline'])}")
        for finding in doc["findings"]:
            print(f"  {finding['severity']} {finding['code']}: {safe(finding['message'])}")
        for step in doc["next"]:
            print(f"next: {safe(step)}")

    return Reply(doc, show)


def classify(
    run_id: Annotated[str, typer.Option(help="Id of the run.")],
    models_dir: ModelsDir = None,
) -> Reply:
    """Which method a run used, by its own record and never by the model's name, and what evidence it has."""
    from bashgym.runs.classify import classify as judge

    return Reply(judge(_run_dir(run_id, models_dir)))


def _run_dir(run_id: str, models_dir: Path | None) -> Path:
    """The run below `models_dir`, or without that wherever the workspace knows it."""
    if models_dir is None:
        from bashgym.workspace import Workspace

        return Workspace.open().runs.locate(run_id).path
    from bashgym.core.files import confined
    from bashgym.core.ids import check_identifier

    return confined(models_dir, check_identifier(run_id, "run_id"))
