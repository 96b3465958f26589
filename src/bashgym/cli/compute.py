"""`bashgym compute ...`: in this version runs execute on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from bashgym.cli.output import Reply, table


def targets() -> Reply:
    """The compute targets and whether this version runs there."""
    from bashgym.methods.catalog import TARGETS

    rows = [{"target": name, "available": here} for name, here in TARGETS.items()]
    return Reply({"targets": rows}, lambda: table(rows, ["target", "available"]))


def preflight(target: Annotated[str, typer.Option(help="Compute target.")] = "local") -> Reply:
    """Can this target train? Anything but local is refused with the reason."""
    from bashgym.core.settings import Settings
    from bashgym.runs.doctor import examine
    from bashgym.runs.targets import normalise_target

    name = normalise_target({"compute_target": target})
    doc = {"target": name, **examine(Settings.from_env())}
    return Reply(doc, exit_code=0 if doc["ok"] else 1)
