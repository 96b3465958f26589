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
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    verdict, rates, c = doc["verdict"], doc["pass_rate"], doc["comparison"]
    colour = {"promote": "green", "hold": "yellow", "reject": "red"}[verdict["kind"]]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in (
        ("model", doc["model"]),
        ("pass@1, held-out", f"{rates['baseline']:.1%} before, {rates['candidate']:.1%} after"),
        ("effect", f"{c['effect']:+.1%}, 95 % interval {c['ci_low']:+.1%} to {c['ci_high']:+.1%} (n = {c['n']})"),
        *([("RLVR", doc["second_act"]["sentence"])] if doc["second_act"] else []),
        ("notes", " ".join(doc["notes"])),
        ("time", f"{sum(doc['seconds'].values()):.0f} s in all"),
    ):
        table.add_row(name, Text(safe(value)))
    console = Console()
    console.print(Panel(Text(safe(verdict["sentence"])), title=f"[bold]{verdict['word']}[/]", border_style=colour))
    console.print(table)
    for name in ("report", "run_card", "run_dir"):
        print(f"{name.replace('_', ' '):<18}{doc[name]}")
