"""`python -m bashgym.inference.server CONFIG_JSON`: a local model behind an OpenAI-compatible endpoint. Imports torch.

Covers: DNS rebinding (Host) and cross-site posts (content type) on loopback, a token beyond it, bounded bodies and
queues. Does not cover: TLS, many users, or other users of this machine on a loopback server.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from bashgym.core.apibase import is_loopback
from bashgym.core.errors import BashGymError, fail
from bashgym.inference.served import ServeConfig, error_envelope

MAX_BODY_BYTES = 8 << 20
BODY_TIMEOUT_S = 30.0
PARENT_LOOK_S = 0.5
TOKEN_VARIABLE = "BASHGYM_MODEL_TOKEN"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet; `port_in_use` or `bind_refused`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        if error.errno == 98:
            raise fail("port_in_use", f"port {port} of {host} is in use", "Use --port.", ["--port"]) from error
        raise fail("bind_refused", f"{host}:{port} cannot be bound: {error.strerror}", fields=["--host"]) from error
    return found


def guard(host: str, token: str | None) -> Any:
    """The middleware that every request passes: who may ask, and errors in OpenAI's envelope."""

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_sender(request, host, token)
            return await handler(request)
        except BashGymError as error:
            return _refusal(error)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(fail("body_too_large", f"the body has more than {MAX_BODY_BYTES} bytes"))
        except web.HTTPException as error:
            code = "method_refused" if error.status == 405 else "route_not_found"
            return _refusal(fail(code, f"{request.method} {request.path[:100]}: {error.reason}"))
        except Exception as error:  # noqa: BLE001  the boundary of a request
            print(f"[bashgym] {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return _refusal(fail("internal", f"{type(error).__name__}: {str(error)[:200]}"))

    return admit


def _check_sender(request: web.Request, host: str, token: str | None) -> None:
    if token is not None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            raise fail("token_missing", "this server needs a valid token", "Send Authorization: Bearer ...")
    else:
        named = _host_of(request.headers.get("Host", ""))
        if not is_loopback(named) and named != host.lower():
            raise fail("host_refused", f"the Host {named[:100]!r} is not served here")
    if request.method == "POST" and request.content_type != "application/json":
        raise fail("content_type_refused", "the body must be application/json")


def _host_of(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _refusal(error: BashGymError) -> web.Response:
    # OpenAI's clients know 400 for a bad request, not 422.
    status = 400 if error.http_status == 422 else error.http_status
    return web.json_response(error_envelope(error), status=status)


async def body_of(request: web.Request) -> bytes:
    """The whole body, in bounded time."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError as error:
        raise fail("body_unreadable", f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from error


def serve(config: ServeConfig, token: str | None) -> None:
    """Binds, loads, then serves until SIGTERM or SIGINT."""
    if token is None and not is_loopback(config.host):
        raise fail("bind_refused", f"binding to {config.host} lets other machines in", "Give --token.", ["--host"])
    if config.parent_pid is not None:
        threading.Thread(target=_end_with, args=(config.parent_pid,), name="parent", daemon=True).start()
    listener = bind(config.host, config.port)
    from bashgym.inference.answers import ModelRoutes

    begin = time.monotonic()
    routes = ModelRoutes.load(config)
    app = web.Application(middlewares=[guard(config.host, token)], client_max_size=MAX_BODY_BYTES)
    routes.add_to(app)
    shown = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{shown}:{listener.getsockname()[1]}/v1"

    def announce(_: object) -> None:
        took = time.monotonic() - begin
        print(f"serving {config.name} at {url} (loaded in {took:.1f} s)", file=sys.stderr, flush=True)
        if config.announce:
            print(json.dumps({"url": url, "model": config.name, "pid": os.getpid()}), flush=True)

    web.run_app(
        app,
        sock=listener,
        print=announce,
        access_log=None,
        shutdown_timeout=2.0,
        keepalive_timeout=75.0,
        handler_cancellation=True,  # who hangs up takes the work along
    )


def _end_with(parent: int) -> None:
    """Waits until somebody else is the parent, which was killed then, and ends this process."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


def main(argument: str) -> int:
    """Exit status 0 after a signal, 1 after a typed error."""
    token = os.environ.pop(TOKEN_VARIABLE, None)
    try:
        serve(msgspec.json.decode(argument, type=ServeConfig), token or None)
    except BashGymError as error:
        print(f"error {error.code}: {error.message}\n  {error.hint}", file=sys.stderr, flush=True)
        return error.exit_status
    except ImportError as error:
        print(f"error missing_extra: {error}\n  pip install 'bashgym[train]'", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
