"""`bashgym demo`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bashgym.cli.output import Reply, lines, note, safe

Progress = Callable[[str, float, str], None]


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

    with _shown() as progress:
        doc = run(Workspace.open(), output, model=model, seed=seed, progress=progress)

    def show() -> None:
        if isinstance(doc.get("text"), str):
            print(doc["text"])
            return
        for line in lines(doc):
            print(line)

    return Reply(doc, show)


@contextmanager
def _shown() -> Iterator[Progress]:
    """A progress function for stderr: bars on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _plain()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as view:
        bars: dict[str, object] = {}

        def progress(step: str, share: float, text: str) -> None:
            if step not in bars:
                bars[step] = view.add_task(step, total=1.0, text="")
            view.update(bars[step], completed=share, text=safe(text))  # type: ignore[arg-type]

        yield progress


def _plain() -> Progress:
    last, told = "", 0.0

    def progress(step: str, share: float, text: str) -> None:
        nonlocal last, told
        now = time.monotonic()
        if step != last or share >= 1 or now - told > 5:
            last, told = step, now
            note(f"{step}: {text or ('done' if share >= 1 else '...')}")

    return progress
