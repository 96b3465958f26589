"""`bashgym api`: base, path and query rules, the body file, and being served in this process or by a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.cli.client import server_error
from bashgym.core.apibase import check_base, check_path, looks_like_credential
from bashgym.core.errors import BashGymError, NotFound

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("base", "normal"),
    [
        ("http://localhost:8003", "http://localhost:8003/api"),
        ("http://localhost:8003/api/", "http://localhost:8003/api"),
        ("http://[::1]:8003/api", "http://[::1]:8003/api"),
        ("http://127.0.0.9/", "http://127.0.0.9/api"),
        ("https://gym.example.com", "https://gym.example.com/api"),
    ],
)
def test_bases_that_are_taken(base: str, normal: str) -> None:
    assert check_base(base) == normal


@pytest.mark.parametrize(
    "base",
    [
        "ftp://localhost", "localhost:8003", "//localhost", "http://", "http://u:p@localhost:8003/api", "http://u@localhost",
        "http://localhost/api?x=1", "http://localhost/api?", "http://localhost/api#f", "http://localhost/other", "http://localhost/api/v1",
        "http://example.com/api", "http://localhost.evil.example", "http://10.0.0.1", "http://0.0.0.0", "http://127.0.0.1.evil.example",
        "http://localhost:99999", "http://localhost:x", "http://localhost\\@evil.example", "http://local host", "http://localhost\n",
        "http://[::1", "http://2130706433",
    ],
)  # fmt: skip
def test_bases_that_are_refused(base: str) -> None:
    with pytest.raises(BashGymError) as error:
        check_base(base)
    assert error.value.code == "api_base_refused"


def test_a_refused_base_does_not_repeat_its_password() -> None:
    with pytest.raises(BashGymError) as error:
        check_base("http://user:hunter2@localhost")
    assert "hunter2" not in str(error.value.detail())


BAD_PATHS = """
/etc/passwd api/health /api /api/../etc /api/./health /api/%2e%2e/etc /api/%252e%252e/etc /api//health http://evil/api/health
/api/health?x=1 /api/health#x /api/a\\b /api/a%0ab /api/a%20b /api/.. /api/x/..
"""


@pytest.mark.parametrize("path", ["/api/a b", "", *BAD_PATHS.split()])
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(BashGymError) as error:
        check_path(path)
    assert error.value.code == "api_path_refused"


@given(st.text(max_size=40))
def test_a_path_that_is_taken_stays_below_api(tail: str) -> None:
    from urllib.parse import unquote

    try:
        path = check_path("/api/" + tail)
    except BashGymError as error:
        assert error.code == "api_path_refused"
        return
    assert os.path.normpath(unquote(path)).startswith("/api")


SECRET = """
api_key apiKey APIKEY x-api-key token access_token authToken password hf_token client_secret Authorization bearer
aws_secret_access_key privateKey credentials tokens
"""
HARMLESS = """
max_tokens maxTokens max_new_tokens total_tokens token_count tokens_per_second author authored_by key run_id secretary
monkey tail grep workspace_id
"""


@pytest.mark.parametrize("key", SECRET.split())
def test_keys_that_name_a_credential(key: str) -> None:
    assert looks_like_credential(key)


@pytest.mark.parametrize("key", HARMLESS.split())
def test_keys_that_do_not(key: str) -> None:
    assert not looks_like_credential(key)


def test_a_request_is_served_in_this_process_when_nothing_listens(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bashgym.cli.client._listens", lambda: False)
    said = cli("api", "get", "/api/health")
    assert said.code == 0 and said.doc["status"] == "healthy"
    said = cli("api", "GET", "/api/training/nope", "--json")
    assert said.code == 1 and said.doc["detail"]["code"] == "run_not_found"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["PATCH", "/api/health"], "usage"),
        (["GET", "/api/health", "--query", "x"], "usage"),
        (["GET", "/api/health", "--query", "hf_token=x"], "query_credential"),
        (["GET", "/api/health", "--data-file", "body.json"], "usage"),
        (["DELETE", "/api/health", "--data-file", "body.json"], "usage"),
        (["POST", "/api/training/start", "--data-file", "nope.json"], "file_missing"),
        (["POST", "/api/training/start", "--data-file", "torn.json"], "file_unreadable"),
        (["POST", "/api/training/start", "--data-file", "latin.json"], "file_unreadable"),
        (["POST", "/api/training/start", "--data-file", "nan.json"], "file_unreadable"),
        (["POST", "/api/training/start", "--data-file", "big.json"], "file_too_large"),
        (["GET", "/api/health", "--api-base", "http://127.0.0.1:9"], "api_unreachable"),
    ],
)
def test_requests_that_never_leave(cli: Cli, args: list[str], code: str) -> None:
    Path("body.json").write_text("{}")
    Path("torn.json").write_text("{")
    Path("nan.json").write_text('{"a": NaN}')
    Path("latin.json").write_bytes(b'{"a": "\xe9"}')
    with Path("big.json").open("wb") as file:
        file.truncate((1 << 20) + 1)
    said = cli("api", *args, "--json")
    assert said.code in (1, 2) and said.doc["detail"]["code"] == code


def test_the_servers_own_error_is_shown() -> None:
    detail = {"code": "run_not_found", "message": "m", "hint": "h", "fields": ["run_id"]}
    error = server_error(404, {"detail": detail})
    assert isinstance(error, NotFound) and error.detail() == detail
    assert "teapot" in server_error(418, {"detail": "teapot"}).message
    assert server_error(502, "<html>").code == "api_unreachable"


@contextmanager
def served(home: Path, *args: str) -> Iterator[str]:
    """A real server on a free port; yields its base and ends it with SIGINT."""
    command = [sys.executable, "-m", "bashgym", "serve", "--port", "0", *args]
    env = {**os.environ, "BASHGYM_DIR": str(home)}
    server = subprocess.Popen(command, env=env, cwd=home.parent, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        found = re.search(r"http://\S+/api", server.stderr.readline())
        assert found
        yield found[0]
    finally:
        server.send_signal(signal.SIGINT)
        rest = server.communicate(timeout=15)[1]
        assert server.returncode == 130 and "Traceback" not in rest


def test_a_real_server_answers_and_keeps_strangers_out(cli: Cli, tmp_path: Path) -> None:
    with served(tmp_path / "home") as base:
        assert cli("api", "GET", "/api/health", "--api-base", base).doc["status"] == "healthy"
        assert cli("ledger", "projects", "--workspace-id", "w", "--api-base", base, "--json").doc["projects"] == []
        missing = cli("ledger", "project", "--workspace-id", "w", "--project", "p", "--api-base", base, "--json")
        assert (missing.code, missing.doc["detail"]["code"]) == (5, "ledger_not_found")
        port = int(base.split(":")[2].split("/")[0])
        for raw in (
            b"GET /api/health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port)) as wire:
                wire.sendall(raw)
                assert wire.recv(4096).startswith(b"HTTP/1.1 403")


def test_beyond_loopback_the_token_from_the_environment_opens(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = cli("serve", "--host", "0.0.0.0", "--port", "0", "--json")
    assert refused.code == 2 and refused.doc["detail"]["code"] == "bind_refused"
    token = cli("serve", "--new-token", "--json").doc["token"]
    assert token not in json.dumps([p.read_text() for p in (tmp_path / "home").glob("*.json")])
    with served(tmp_path / "home", "--host", "0.0.0.0") as base:
        local = base.replace("0.0.0.0", "127.0.0.1")
        shut = cli("api", "GET", "/api/health", "--api-base", local, "--json")
        assert shut.code == 1 and shut.doc["detail"]["code"] == "token_missing"
        monkeypatch.setenv("BASHGYM_API_TOKEN", token)
        assert cli("api", "GET", "/api/health", "--api-base", local).code == 0
