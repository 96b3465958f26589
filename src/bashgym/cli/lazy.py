"""Turns the registry into Typer commands, importing only the one that is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from bashgym.cli.output import Reply
from bashgym.cli.registry import ROOT, Command, Group
from bashgym.core.errors import fail


@dataclass
class Session:
    """What the error boundary has to know about the call. It is the context's `obj`."""

    json: bool = False
    ledger: bool = False
    """The ledger group has exit statuses of its own."""


def _set_json(ctx: typer.Context, value: bool) -> None:
    if value and isinstance(ctx.obj, Session):
        ctx.obj.json = True


def _show_version(value: bool) -> None:
    if value:
        from bashgym import __version__

        print(__version__)
        raise typer.Exit


_Json = Annotated[
    bool,
    typer.Option(
        "--json",
        expose_value=False,
        callback=_set_json,
        help="Print one JSON document on stdout and nothing else.",
    ),
]
_Version = Annotated[
    bool,
    typer.Option("--version", expose_value=False, is_eager=True, callback=_show_version, help="Print the version."),
]


def _group_options(json: _Json = False) -> None: ...


def _root_options(json: _Json = False, version: _Version = False) -> None: ...


def _build(name: str, call: Callable[..., Any], help_text: str) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=help_text)(call)
    return get_command(app)


def load(name: str, command: Command) -> Any:
    """The Typer command of a registry entry, with `--json` added."""
    module, function = command.target.split(":")
    call: Callable[..., Any] = getattr(import_module(f"bashgym.cli.{module}"), function)
    loaded = _build(name, call, call.__doc__ or command.help)
    loaded.params += _build(name, _group_options, "").params
    return loaded


class LazyGroup(TyperGroup):
    """A group that knows its commands' names and help without importing them."""

    def __init__(self, name: str, group: Group) -> None:
        super().__init__(name=name, help=group.help, no_args_is_help=False, rich_markup_mode=None)
        self.group = group
        self.params += _build(name, _root_options if group is ROOT else _group_options, "").params

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the registry's order."""
        return list(self.group.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Imports and builds the command, or None."""
        entry = self.group.commands.get(cmd_name)
        if entry is None:
            return None
        if cmd_name == "ledger" and isinstance(ctx.obj, Session):
            ctx.obj.ledger = True
        return LazyGroup(cmd_name, entry) if isinstance(entry, Group) else load(cmd_name, entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As the base class, but an unknown name is told with the nearest one."""
        name = args[0]
        if name.startswith("-") or name in self.group.commands:
            return super().resolve_command(ctx, args)
        near = get_close_matches(name, self.group.commands, n=1)
        where = ctx.command_path
        known = ", ".join(self.group.commands)
        hint = f"Did you mean `{where} {near[0]}`?" if near else f"Commands: {known}."
        raise fail("usage", f"{where} has no command {name[:80]!r}", hint)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The command list, from the registry alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.group.commands.items()])

    def invoke(self, ctx: Any) -> Any:
        """Without a command: the help, as a usage error would be no help."""
        if not ctx.args and not getattr(ctx, "_protected_args", None):
            return Reply({"commands": list(self.group.commands)}, lambda: typer.echo(ctx.get_help()))
        return super().invoke(ctx)
