"""`bashgym serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from bashgym.cli.output import Reply, note


def serve(
    host: Annotated[str, typer.Option(help="Address to bind. Anything but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 lets the system choose.", min=0, max=65535)] = 8003,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Further name under which clients reach this server; repeatable.")
    ] = None,
    new_token: Annotated[bool, typer.Option("--new-token", help="Make a token, print it once, and end.")] = False,
) -> Reply:
    """Serve the HTTP API until interrupted. Runs that are live are adopted; they go on when the server ends."""
    from bashgym.core.settings import Settings

    settings = Settings.from_env()
    if new_token:
        from bashgym.api.tokens import TokenStore

        token = TokenStore(settings.home).create()
        return Reply({"token": token}, lambda: print(token))
    from bashgym.api.server import run
    from bashgym.workspace import Workspace

    run(Workspace(settings), host, port, allow_host or [], announce=lambda url: note(f"serving {url}"))
    return Reply({"ok": True}, lambda: None)
