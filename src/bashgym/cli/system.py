"""`bashgym system ...` and `bashgym operator doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from bashgym.cli.output import Reply, safe
from bashgym.core.settings import Settings


def info(refresh: Annotated[bool, typer.Option("--refresh", help="Ask the driver again.")] = False) -> Reply:
    """GPUs, memory, the training interpreter and its packages."""
    from bashgym.runs.sysinfo import info as facts

    return Reply(facts(Settings.from_env(), refresh=refresh))


def recommendations() -> Reply:
    """What this machine can train, estimated from free memory and, after a probe, from measurements."""
    from bashgym.runs.estimate import recommendations as advice

    return Reply(advice(Settings.from_env()))


def probe(
    model: Annotated[str, typer.Option(help="Model to take the steps with.")] = "bashgym/tiny-qwen2",
    rows: Annotated[int, typer.Option(help="Rows in a batch.", min=1, max=64)] = 8,
    length: Annotated[int, typer.Option(help="Tokens in a row.", min=8, max=4096)] = 256,
) -> Reply:
    """Train a few probe steps, so that estimates of memory and time rest on this machine."""
    from bashgym.runs.estimate import probe as measure

    return Reply(measure(model, Settings.from_env(), rows=rows, length=length))


def doctor() -> Reply:
    """Is everything here that is needed? The exit status is 1 if a blocking check fails."""
    from bashgym.runs.doctor import examine

    doc = examine(Settings.from_env())

    def show() -> None:
        for check in doc["checks"]:
            mark = "ok  " if check["ok"] else "FAIL" if check["blocking"] else "warn"
            print(f"{mark} {check['name']}: {safe(check['detail'])}")
            if check["hint"] and not check["ok"]:
                print(f"       {safe(check['hint'])}")
        print("ready" if doc["ok"] else "not ready")

    return Reply(doc, show, 0 if doc["ok"] else 1)
