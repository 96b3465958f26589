"""The outermost layer of the API: every request passes here before anything else sees it, and is refused by default.

Covers: DNS rebinding (Host), cross-site requests (Origin, content type), missing tokens beyond loopback, huge and
endless bodies, framing and sniffing; it applies to every route and method, known or not. Whatever escapes the app
becomes a typed 500. Does not cover: TLS (put a proxy in front), or other users of this machine on a loopback server.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from bashgym.core.errors import BashGymError, fail

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 8 << 20
BODY_TIMEOUT_S = 30.0
"""The whole body has to arrive within this."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True)
class Policy:
    """Who may come in."""

    hosts: frozenset[str] = field(default_factory=lambda: frozenset(LOOPBACK_NAMES))
    """Host names, lower case, without port and brackets."""
    verify_token: Callable[[str], bool] | None = None
    """None: no token is asked for (loopback)."""

    @classmethod
    def of(cls, names: Iterable[str] = (), verify_token: Callable[[str], bool] | None = None) -> Policy:
        """Loopback names and `names`."""
        return cls(frozenset(LOOPBACK_NAMES) | {name.strip("[]").lower() for name in names}, verify_token)


class Guard:
    """Pure ASGI, around the whole app. `report(error)` logs what nobody expected and returns an id for it."""

    def __init__(
        self, app: App, policy: Policy, report: Callable[[BaseException], str], *, websockets: bool = False
    ) -> None:
        self.app, self.policy, self.report, self._websockets = app, policy, report, websockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await self._websocket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not self._websockets:
                raise fail("route_not_found", "no such channel")
            self._admit(scope)
        except BashGymError as error:
            await send({"type": "websocket.close", "code": 1008, "reason": error.message[:120]})
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", []), *SECURITY_HEADERS]}
            await send(message)

        try:
            self._admit(scope)
            await self.app(scope, _limited(receive), guarded_send)
        except BashGymError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001  the boundary of a request
            refusal = fail(
                "internal", "a fault of ours", f"The server's log has the details under {self.report(error)}."
            )
        else:
            return
        if not started:
            await _answer(refusal, guarded_send)

    def _admit(self, scope: Scope) -> None:
        """Raises the refusal of a request that must not go further."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = self._check_host(headers.get("host", []))
        self._check_origin(headers.get("origin", []), host)
        if self.policy.verify_token is not None:
            self._check_token(headers.get("authorization", []))
        _check_body(scope.get("method", "GET"), headers)

    def _check_host(self, given: list[str]) -> str:
        host = given[0].lower() if len(given) == 1 else ""
        match = _HOST.fullmatch(host)
        if match is None or match[1].strip("[]") not in self.policy.hosts:
            raise fail(
                "host_refused",
                f"the Host {host[:100]!r} is not served here",
                "`bashgym serve --allow-host NAME` allows a name.",
            )
        return host

    @staticmethod
    def _check_origin(given: list[str], host: str) -> None:
        """A page may only talk to the server it came from: Origin has to be the very Host, which is on the list."""
        if given and (len(given) > 1 or given[0].lower() not in (f"http://{host}", f"https://{host}")):
            raise fail("origin_refused", f"requests from the page {given[0][:100]!r} are not answered")

    def _check_token(self, given: list[str]) -> None:
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not self.policy.verify_token or not self.policy.verify_token(token.strip()):
            raise fail(
                "token_missing",
                "this server needs a valid token",
                "Send Authorization: Bearer ...; the CLI takes it from BASHGYM_API_TOKEN.",
            )


def _check_body(method: str, headers: dict[str, list[str]]) -> None:
    """Mutating requests with a body have to be JSON; that is what makes a browser ask before it sends one elsewhere."""
    length = headers.get("content-length", [])
    try:
        size = int(length[0]) if length else 0
    except ValueError:
        size = -1
    if len(length) > 1 or size < 0:
        raise fail("body_unreadable", "the Content-Length is not a number")
    if size > MAX_BODY_BYTES:
        raise fail("body_too_large", f"the body has {size} bytes; the limit is {MAX_BODY_BYTES}")
    has_body = size > 0 or "transfer-encoding" in headers
    stated = headers.get("content-type", [])
    if method in SAFE_METHODS or not (has_body or stated):
        return
    kind = stated[0].partition(";")[0].strip().lower() if len(stated) == 1 else ""
    if kind != "application/json":
        raise fail(
            "content_type_refused", f"the body is {kind[:80] or 'of no stated type'}; it must be application/json"
        )


def _limited(receive: Receive) -> Receive:
    """`receive` that ends a body which is too large or too slow, whatever its headers said."""
    seen, done = 0, False
    end = asyncio.get_running_loop().time() + BODY_TIMEOUT_S

    async def limited() -> Message:
        nonlocal seen, done
        if done:
            return await receive()
        try:
            async with asyncio.timeout_at(end):
                message = await receive()
        except TimeoutError as error:
            raise fail("body_unreadable", f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from error
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            done = not message.get("more_body", False)
            if seen > MAX_BODY_BYTES:
                raise fail("body_too_large", f"the body has more than {MAX_BODY_BYTES} bytes")
        return message

    return limited


async def _answer(error: BashGymError, send: Send) -> None:
    body = json.dumps({"detail": error.detail()}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
