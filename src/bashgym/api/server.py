"""`bashgym serve`: binds, decides who may come in, runs uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from bashgym.api.app import create_app, reporter
from bashgym.api.guard import Guard, Policy
from bashgym.api.tokens import TokenStore
from bashgym.core.apibase import is_loopback
from bashgym.core.errors import fail
from bashgym.core.settings import Settings
from bashgym.envs.spec import EnvironmentSpec
from bashgym.workspace import Workspace


def policy_for(host: str, allow_hosts: Sequence[str], tokens: TokenStore) -> Policy:
    """Loopback: no token. Anything else needs one to exist (`bind_refused`) and every request to carry one."""
    if is_loopback(host):
        return Policy.of([host, *allow_hosts])
    if not tokens.exists():
        raise fail(
            "bind_refused",
            f"binding to {host} lets other machines in, and there is no token yet",
            "`bashgym serve --new-token` makes one.",
            ["--host"],
        )
    return Policy.of([host, *allow_hosts], tokens.verify)


def run(
    workspace: Workspace, host: str, port: int, allow_hosts: Sequence[str], *, announce: Callable[[str], None]
) -> None:
    """Serves until interrupted. `bind_refused`, `port_in_use`."""
    policy = policy_for(host, allow_hosts, TokenStore(workspace.settings.home))
    listener = bind(host, port)
    _serve(create_app(workspace, policy), listener, host, announce=announce, path="/api")


def serve_environments(
    specs: Sequence[EnvironmentSpec], host: str, port: int, *, announce: Callable[[str], None]
) -> None:
    """Serves environments over OpenEnv until interrupted, on loopback only: its sessions carry no token."""
    from bashgym.envs import sandbox

    if not is_loopback(host):
        raise fail(
            "bind_refused", f"OpenEnv sessions have no token: {host} would let anybody run commands", "", ["--host"]
        )
    try:
        from bashgym.envs.adapters.openenv_server import build_app
    except ImportError as error:
        raise fail("missing_extra", f"openenv is not installed: {error}", "pip install 'bashgym[adapters]'") from error
    sandbox.require()
    app = Guard(build_app(specs), Policy.of([host]), reporter(Settings.from_env()), websockets=True)
    _serve(app, bind(host, port), host, announce=announce, path="")


def _serve(app: Guard, listener: socket.socket, host: str, *, announce: Callable[[str], None], path: str) -> None:
    import uvicorn

    # No access log: query strings end in it. No proxy headers: nobody may claim another address.
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        limit_concurrency=512,
        h11_max_incomplete_event_size=64 << 10,
    )
    address = f"[{host}]" if ":" in host else host
    announce(f"http://{address}:{listener.getsockname()[1]}{path}")
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; `port_in_use` or `bind_refused` with the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == 98:
            raise fail(
                "port_in_use", f"port {port} of {host} is in use", "Use --port, or end the other program."
            ) from error
        raise fail("bind_refused", f"{host}:{port} cannot be bound: {error.strerror}", fields=["--host"]) from error
    return listener
