"""The HTTP side of the command line: one request to a server, or to the same app in this process.

Covers: base and path rules (`core.apibase`), no redirects, the token only as a header. No retries: a POST is sent once.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bashgym.core.apibase import check_base, check_path, is_loopback
from bashgym.core.errors import CODES, BashGymError, Failed, fail
from bashgym.core.settings import DEFAULT_API_BASE, Settings

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 120.0
_PROBE_TIMEOUT_S = 0.25


Query = list[tuple[str, str | int | float | bool | None]]


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    doc: Any
    """Decoded JSON, or the text if it is none."""

    @property
    def ok(self) -> bool:
        """True for a 2xx."""
        return 200 <= self.status < 300

    def raise_for_refusal(self) -> Any:
        """`doc` of a 2xx; else the server's own error."""
        if not self.ok:
            raise server_error(self.status, self.doc)
        return self.doc


def server_error(status: int, doc: object) -> BashGymError:
    """The typed error in a server's refusal; a foreign answer is shown as it is."""
    detail = doc.get("detail") if isinstance(doc, Mapping) else None
    if isinstance(detail, Mapping) and isinstance(detail.get("code"), str):
        kind = CODES.get(detail["code"], (Failed, ""))[0]
        fields = detail.get("fields")
        return kind(
            detail["code"],
            str(detail.get("message", "")),
            str(detail.get("hint", "")),
            fields if isinstance(fields, list) else [],
        )
    said = json.dumps(detail if detail is not None else doc, ensure_ascii=False)[:500]
    return fail("api_unreachable", f"the server answered {status}: {said}")


@dataclass(frozen=True)
class Client:
    """Where requests go. `base` None is this process."""

    base: str | None

    @classmethod
    def of(cls, flag: str | None, settings: Settings | None = None) -> Client:
        """--api-base, then BASHGYM_API_BASE, then the default base if something listens there, else this process."""
        stated = flag or (settings or Settings.from_env()).api_base
        if stated:
            return cls(check_base(stated))
        return cls(check_base(DEFAULT_API_BASE)) if _listens() else cls(None)

    def request(
        self, method: str, path: str, *, query: Mapping[str, list[str]] | None = None, body: object = None
    ) -> Answer:
        """Sends one request; `api_unreachable` if no answer comes."""
        check_path(path)
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        pairs: Query = [(key, value) for key, values in (query or {}).items() for value in values]
        if self.base is None:
            return _in_process(method, path, pairs, content)
        return self._over_http(method, path, pairs, content)

    def _over_http(self, method: str, path: str, query: Query, content: bytes | None) -> Answer:
        import httpx

        base = str(self.base)
        host = httpx.URL(base).host
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # A proxy from the environment has no business between two processes of one machine.
        with httpx.Client(timeout=timeout, follow_redirects=False, trust_env=not is_loopback(host)) as http:
            try:
                reply = http.request(
                    method, base.removesuffix("/api") + path, params=query, content=content, headers=_headers(content)
                )
            except httpx.HTTPError as error:
                raise fail(
                    "api_unreachable",
                    f"{base} did not answer: {error or type(error).__name__}",
                    "`bashgym serve` starts one; without --api-base and BASHGYM_API_BASE none is needed.",
                ) from error
        return Answer(reply.status_code, _decode(reply.content))


def _headers(content: bytes | None) -> dict[str, str]:
    settings = Settings.from_env()
    headers = {"X-Requested-With": "bashgym", "Accept": "application/json"}
    if content is not None:
        headers["Content-Type"] = "application/json"
    if settings.terminal_id:
        headers["X-BashGym-Origin-Terminal"] = settings.terminal_id
    if settings.agent:
        headers["X-BashGym-Origin-Agent"] = settings.agent
    if token := os.environ.get("BASHGYM_API_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _in_process(method: str, path: str, query: Query, content: bytes | None) -> Answer:
    """The request through the very app that `bashgym serve` serves, guard included."""
    import asyncio

    import httpx

    from bashgym.api.app import create_app
    from bashgym.workspace import Workspace

    app = create_app(Workspace.open())

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=READ_TIMEOUT_S) as http:
            return await http.request(method, path, params=query, content=content, headers=_headers(content))

    reply = asyncio.run(send())
    return Answer(reply.status_code, _decode(reply.content))


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode("utf-8", "replace")


def _listens() -> bool:
    """True if something accepts connections at the default base."""
    try:
        with socket.create_connection(("127.0.0.1", 8003), timeout=_PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
