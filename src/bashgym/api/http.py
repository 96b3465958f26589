"""What all routes share: the workspace, strict JSON bodies, strict queries, fast replies, one error envelope."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request, Response

from bashgym.core.errors import BashGymError, fail
from bashgym.workspace import Workspace


def _workspace(request: Request) -> Workspace:
    workspace: Workspace = request.app.state.workspace
    return workspace


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; an absent body is an empty one. `body_unreadable` otherwise."""
    raw = await request.body()
    if not raw:
        return {}
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    except UnicodeDecodeError as error:
        raise fail("body_unreadable", f"the body is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise fail("body_unreadable", f"the body is not JSON: {error.msg} at line {error.lineno}") from error
    except RecursionError as error:
        raise fail("body_unreadable", "the body is nested too deeply") from error
    if not isinstance(value, dict):
        raise fail("body_unreadable", f"the body is a JSON {type(value).__name__}, not an object")
    return value


def _no_constant(name: str) -> None:
    raise fail("body_unreadable", f"the body holds {name}, which is not JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise fail("body_unreadable", f"the body has the key {doubled[:80]!r} twice", fields=[doubled[:80]])
    return value


async def known_query(request: Request) -> None:
    """`unknown_field` for a query parameter that the route does not have: a typing error is not a default."""
    if not request.query_params:
        return
    known = [n for n in inspect.signature(request.scope["endpoint"]).parameters if n not in request.path_params]
    for name in request.query_params:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else ""
            raise fail("unknown_field", f"this route has no query parameter {name[:80]!r}", hint, [name[:80]])


Space = Annotated[Workspace, Depends(_workspace)]
Body = Annotated[dict[str, Any], Depends(json_object)]


def reply(value: object, status: int = 200) -> Response:
    """A JSON response; NaN and infinity become null."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def refusal(error: BashGymError) -> Response:
    """The one error envelope."""
    return reply({"detail": error.detail()}, error.http_status)
