"""`bashgym demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe
from bashgym.cli.progress import shown


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the report.")] = Path("demo-report"),
    model: Annotated[
        str, typer.Option(help="bashgym/tiny-qwen2 or bashgym/smollm2-135m-instruct.")
    ] = "bashgym/tiny-qwen2",
    seed: Annotated[int, typer.Option(help="Seed of tasks and training.")] = 7,
) -> Reply:
    """The whole promise in minutes: train, judge on executed held-out tasks, write the RunCard and a report."""
    from bashgym.demo.pipeline import run
    from bashgym.workspace import Workspace

    with shown() as progress:
        doc = run(Workspace.open(), output, model=model, seed=seed, progress=progress)

    return Reply(doc, lambda: _show(doc))


def _show(doc: dict[str, Any]) -> None:
    rates = doc["pass_rate"]
    before, after = (
        f"{100 * rates[side]:.1f} %" if rates[side] is not None else "-" for side in ("baseline", "candidate")
    )
    print(f"{safe(doc['verdict'])}\n")
    print(f"  {safe(doc['model'])}, held-out pass@1: {before} before, {after} after training")
    if summary := doc["comparison"].get("summary"):
        print(f"  {safe(summary)}")
    for note in doc["notes"]:
        print(f"  {safe(note)}")
    print(f"\n  report    {doc['report']}\n  RunCard   {doc['run_card']}\n  run       {doc['run_dir']}")
    print(f"  {sum(doc['seconds'].values()):.0f} s in all")
