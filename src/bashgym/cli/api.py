"""`bashgym api METHOD PATH`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, print_json, write
from bashgym.core.apibase import check_path, check_query
from bashgym.core.errors import fail

METHODS = ("GET", "POST", "PUT", "DELETE")
MAX_BODY_BYTES = 1 << 20


def api(
    method: Annotated[str, typer.Argument(help="GET, POST, PUT or DELETE.")],
    path: Annotated[str, typer.Argument(help="Begins with /api/.")],
    query: Annotated[list[str] | None, typer.Option(help="KEY=VALUE; repeatable. Never a credential.")] = None,
    data_file: Annotated[Path | None, typer.Option(help="JSON body of a POST or PUT, at most 1 MiB.")] = None,
    api_base: Annotated[
        str | None, typer.Option(help="Server; BASHGYM_API_BASE, then http://localhost:8003/api.")
    ] = None,
) -> Reply:
    """Send a request to the API. With no base given and nothing listening, it is served in this process.

    A token goes into BASHGYM_API_TOKEN. The answer is printed as JSON; the exit status is 0 for a 2xx, else 1.
    """
    from bashgym.cli.client import Client

    verb = method.upper()
    if verb not in METHODS:
        raise fail("usage", f"the method is {method[:20]!r}; it must be one of {', '.join(METHODS)}")
    check_path(path)
    pairs = check_query(query or [])
    body = _body(verb, data_file)
    answer = Client.of(api_base).request(verb, path, query=pairs, body=body)
    doc = answer.raise_for_refusal()
    return Reply(doc, lambda: write(doc + "\n") if isinstance(doc, str) else print_json(doc))


def _body(verb: str, path: Path | None) -> Any:
    if path is None:
        return None
    if verb in ("GET", "DELETE"):
        raise fail("usage", f"a {verb} takes no --data-file")
    from bashgym.cli.inputs import regular_file

    regular_file(path, "data file")
    if path.stat().st_size > MAX_BODY_BYTES:
        raise fail("file_too_large", f"{path} has {path.stat().st_size} bytes; the limit is {MAX_BODY_BYTES}")
    try:
        return json.loads(path.read_bytes().decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise fail("file_unreadable", f"{path} is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise fail("file_unreadable", f"{path} is not JSON: {error.msg} at line {error.lineno}") from error
    except RecursionError as error:
        raise fail("file_unreadable", f"{path} is nested too deeply") from error


def _no_constant(name: str) -> None:
    raise fail("file_unreadable", f"the body holds {name}, which is not JSON", "Use null or leave the field out.")
