"""Progress of long commands, on stderr: bars on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bashgym.cli.output import note, safe

Show = Callable[[str, float, str], None]
"""Called with (step, share done in 0..1, what to show)."""


@contextmanager
def shown() -> Iterator[Show]:
    """A progress function for stderr: bars on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _plain()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as view:
        bars: dict[str, TaskID] = {}

        def progress(step: str, share: float, text: str) -> None:
            if step not in bars:
                bars[step] = view.add_task(step, total=1.0, text="")
            view.update(bars[step], completed=share, text=safe(text))

        yield progress


def _plain() -> Show:
    last, told = "", 0.0

    def progress(step: str, share: float, text: str) -> None:
        nonlocal last, told
        now = time.monotonic()
        if step != last or share >= 1 or now - told > 5:
            last, told = step, now
            note(f"{step}: {text or ('done' if share >= 1 else '...')}")

    return progress
