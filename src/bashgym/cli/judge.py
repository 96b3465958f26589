"""`training analyze` and `training classify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bashgym.cli.output import Reply, lines, safe

ModelsDir = Annotated[Path | None, typer.Option(help="Folder of the run directories; data/models by default.")]


def analyze(
    *,
    run_id: Annotated[str | None, typer.Option(help="Id of the run.")] = None,
    models_dir: ModelsDir = None,
    metrics: Annotated[Path | None, typer.Option(help="A metrics.jsonl instead of a run.")] = None,
    replay: Annotated[Path | None, typer.Option(help="A DPPO replay file.")] = None,
    release_evidence: Annotated[Path | None, typer.Option(help="A release evidence file.")] = None,
    smoke_bundle: Annotated[Path | None, typer.Option(help="A smoke bundle.")] = None,
) -> Reply:
    """Read a run's curves and evidence: verdict, findings, next steps. Needs --run-id or --metrics."""
    from bashgym.runs.analysis import analyze as judge

    doc = judge(
        run_id=run_id,
        models_dir=models_dir or _models_dir(),
        metrics=metrics,
        replay=replay,
        release_evidence=release_evidence,
        smoke_bundle=smoke_bundle,
    )

    def show() -> None:
        verdict = doc["verdict"]
        print("\n".join(lines(verdict)) if isinstance(verdict, dict) else safe(verdict))
        for finding in doc["findings"]:
            level = finding.get("level") or finding.get("severity")
            print(f"  {safe(level)} {safe(finding['code'])}: {safe(finding['message'])}")

    return Reply(doc, show)


def classify(
    run_id: Annotated[str, typer.Option(help="Id of the run.")],
    models_dir: ModelsDir = None,
) -> Reply:
    """Which method a run used, by its own record and never by the model's name, and what evidence it has."""
    from bashgym.core.files import confined
    from bashgym.core.ids import check_identifier
    from bashgym.runs.classify import classify as judge

    return Reply(judge(confined(models_dir or _models_dir(), check_identifier(run_id, "run_id"))))


def _models_dir() -> Path:
    from bashgym.core.settings import Settings

    return Settings.from_env().models_dir
