"""Options that come from a table: one row gives the flag, its help, and the key under which its value arrives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer


def with_options(table: Mapping[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds an option of text for every {name: help}. The command takes them as its `**` parameter, absent ones as None."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[str | None, typer.Option(help=text)],
            )
            for name, text in table.items()
        ]
        command.__signature__ = signature.replace(parameters=own + more)  # type: ignore[attr-defined]
        return command

    return add
