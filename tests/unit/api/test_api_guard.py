"""The guard, attacked property by property. The walk over all routes is what keeps a new route from being forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import bashgym.api
from bashgym.api import guard
from bashgym.api.app import build_app, create_app
from bashgym.api.guard import Guard, Policy
from bashgym.api.tokens import TokenStore
from bashgym.core.settings import Settings
from bashgym.workspace import Workspace

ROUTES = sorted(
    (method, route.path_format.replace("{", "").replace("}", ""))
    for name in iter_modules(bashgym.api.__path__, "bashgym.api.")
    for route in getattr(getattr(import_module(name.name), "router", None), "routes", ())
    for method in route.methods
)
MUTATING = [(method, path) for method, path in ROUTES if method not in guard.SAFE_METHODS]


def test_the_walk_sees_every_route_of_the_app(settings: Settings) -> None:
    schema = build_app(Workspace(settings)).openapi()["paths"]
    of_app = {(m.upper(), p.replace("{", "").replace("}", "")) for p, methods in schema.items() for m in methods}
    assert of_app == set(ROUTES)
    assert len(MUTATING) >= 12


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_refuses_a_foreign_host(api: Any, method: str, path: str) -> None:
    status, doc, _ = api(method, path, headers={"Host": "rebound.example"})
    assert (status, doc["detail"]["code"]) == (403, "host_refused")


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_refuses_a_foreign_origin(api: Any, method: str, path: str) -> None:
    status, doc, _ = api(method, path, headers={"Origin": "https://evil.example"})
    assert (status, doc["detail"]["code"]) == (403, "origin_refused")


@pytest.mark.parametrize(("method", "path"), MUTATING)
def test_every_mutating_route_refuses_a_form_or_text_body(api: Any, method: str, path: str) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        status, doc, _ = api(method, path, content=b'{"a": 1}', headers={"Content-Type": kind} if kind else {})
        assert (status, doc["detail"]["code"]) == (415, "content_type_refused"), kind


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_needs_the_token_where_one_is_required(
    make_api: Callable[..., Any], settings: Settings, method: str, path: str
) -> None:
    tokens = TokenStore(settings.home)
    right = tokens.create()
    api = make_api(Policy.of(["localhost"], tokens.verify))
    for given in (None, "Bearer wrong", "Basic " + right, "Bearer", f"Bearer {right}x", right):
        status, doc, headers = api(method, path, headers={"Authorization": given} if given else {})
        assert (status, doc["detail"]["code"]) == (401, "token_missing"), given
        assert headers["www-authenticate"] == "Bearer"
    assert api("GET", "/api/health", headers={"Authorization": f"Bearer {right}"})[0] == 200


def test_a_token_in_the_query_is_no_token(make_api: Callable[..., Any], settings: Settings) -> None:
    tokens = TokenStore(settings.home)
    token = tokens.create()
    api = make_api(Policy.of((), tokens.verify))
    assert api("GET", f"/api/health?token={token}&access_token={token}")[0] == 401


NEARLY_LOOPBACK = (
    "localhost.evil.example 127.0.0.1.evil.example evil@localhost localhost/evil localhost:80:80 127.0.0.2 0.0.0.0 "
    "[::2] localhost. xn--lcalhost-9za"
)


@pytest.mark.parametrize("host", ["", *NEARLY_LOOPBACK.split()])
def test_host_names_that_only_resemble_loopback_are_refused(api: Any, host: str) -> None:
    assert api("GET", "/api/health", headers={"Host": host})[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8003", "127.0.0.1:8003", "[::1]:8003", "LOCALHOST"])
def test_loopback_names_are_served(api: Any, host: str) -> None:
    assert api("GET", "/api/health", headers={"Host": host})[0] == 200


def test_an_allowed_name_is_served_and_only_it(make_api: Callable[..., Any]) -> None:
    api = make_api(Policy.of(["gpu-box"]))
    assert api("GET", "/api/health", headers={"Host": "gpu-box:8003"})[0] == 200
    assert api("GET", "/api/health", headers={"Host": "gpu-box2:8003"})[0] == 403


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://localhost:3000",
        "http://127.0.0.1:8003",
        "file://",
        "http://localhost:8003/x",
        "localhost:8003",
        "http://[::1",
        "",
    ],
)
def test_only_the_servers_own_page_may_call_it(api: Any, origin: str) -> None:
    assert api("GET", "/api/health", headers={"Host": "localhost:8003", "Origin": origin})[0] == 403


def test_the_servers_own_page_may_call_it(api: Any) -> None:
    headers = {"Host": "localhost:8003", "Origin": "http://localhost:8003"}
    assert api("GET", "/api/health", headers=headers)[0] == 200


def _raw(
    app: Any,
    headers: list[tuple[bytes, bytes]],
    messages: list[dict[str, Any]],
    path: str = "/api/training/start",
    method: str = "POST",
    stall: bool = False,
) -> tuple[int, Any]:
    """One request at the ASGI level: chunks and doubled headers that a client library would not send."""
    sent: list[dict[str, Any]] = []
    queue = list(messages)

    async def receive() -> dict[str, Any]:
        if not queue:
            await asyncio.sleep(3600 if stall else 0)
            return {"type": "http.disconnect"}
        return queue.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
    }
    scope |= {"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    scope |= {"server": ("127.0.0.1", 8003), "client": ("127.0.0.1", 1)}
    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(body)


JSON_HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]
CHUNKED = [*JSON_HEADERS, (b"transfer-encoding", b"chunked")]


def test_a_body_that_claims_to_be_huge_is_refused_unread(settings: Settings) -> None:
    app = create_app(Workspace(settings))
    status, doc = _raw(app, [*JSON_HEADERS, (b"content-length", str(guard.MAX_BODY_BYTES + 1).encode())], [])
    assert (status, doc["detail"]["code"]) == (413, "body_too_large")


def test_an_endless_chunked_body_is_cut_off_at_the_limit(settings: Settings) -> None:
    chunk = {"type": "http.request", "body": b" " * (1 << 20), "more_body": True}
    status, doc = _raw(create_app(Workspace(settings)), CHUNKED, [dict(chunk) for _ in range(64)])
    assert (status, doc["detail"]["code"]) == (413, "body_too_large")


def test_a_body_that_never_ends_is_given_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", 0.05)
    first = {"type": "http.request", "body": b"{", "more_body": True}
    status, doc = _raw(create_app(Workspace(settings)), CHUNKED, [first], stall=True)
    assert (status, doc["detail"]["code"]) == (400, "body_unreadable")


def test_a_chunked_text_body_is_refused_too(settings: Settings) -> None:
    headers = [(b"host", b"localhost"), (b"content-type", b"text/plain"), (b"transfer-encoding", b"chunked")]
    assert _raw(create_app(Workspace(settings)), headers, [])[0] == 415


@pytest.mark.parametrize(
    "doubled", [(b"host", b"evil.example"), (b"content-length", b"5"), (b"content-type", b"text/plain")]
)
def test_doubled_headers_that_decide_something_are_refused(settings: Settings, doubled: tuple[bytes, bytes]) -> None:
    headers = [*JSON_HEADERS, (b"content-length", b"2"), doubled]
    body = [{"type": "http.request", "body": b"{}", "more_body": False}]
    assert _raw(create_app(Workspace(settings)), headers, body)[0] in (400, 403, 415)


@pytest.mark.parametrize("length", [b"-1", b"abc", b""])
def test_a_content_length_that_is_no_number_is_refused(settings: Settings, length: bytes) -> None:
    assert _raw(create_app(Workspace(settings)), [*JSON_HEADERS, (b"content-length", length)], [])[0] == 400


def test_answers_and_refusals_carry_the_security_headers(api: Any) -> None:
    for headers in ({}, {"Host": "evil.example"}):
        told = api("GET", "/api/health", headers=headers)[2]
        assert told["x-content-type-options"] == "nosniff"
        assert told["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in told["content-security-policy"]
        assert told["cache-control"] == "no-store"


def test_a_websocket_is_closed_before_anything_else(settings: Settings) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/api/events", "headers": [(b"host", b"localhost")]}
    asyncio.run(create_app(Workspace(settings))(scope, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_an_unexpected_error_is_typed_logged_once_and_shows_nothing_of_the_inside(settings: Settings) -> None:
    app = build_app(Workspace(settings))

    @app.get("/api/broken")
    def broken() -> None:
        raise ZeroDivisionError("secret inside")

    from bashgym.api.app import reporter

    status, doc = _raw(Guard(app, Policy(), reporter(settings)), [(b"host", b"localhost")], [], "/api/broken", "GET")
    assert (status, doc["detail"]["code"]) == (500, "internal")
    assert "secret inside" not in json.dumps(doc) and "Traceback" not in json.dumps(doc)
    [line] = (settings.home / "logs/api.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] in doc["detail"]["hint"]
    assert "secret inside" in json.loads(line)["traceback"]


def test_tokens_are_hashed_at_rest_and_readable_by_the_owner_only(settings: Settings) -> None:
    tokens = TokenStore(settings.home)
    first, second = tokens.create(), tokens.create()
    assert first not in tokens.path.read_text() and second not in tokens.path.read_text()
    assert tokens.path.stat().st_mode & 0o777 == 0o600
    assert (
        tokens.verify(first) and tokens.verify(second) and not tokens.verify("") and not tokens.verify(first + second)
    )
