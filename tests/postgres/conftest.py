"""A private PostgreSQL server on a unix socket in a temporary folder, and a fresh database for each test.

PostgreSQL refuses to run as root; as root, everything is done as the `postgres` user.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from bashgym.core.settings import Settings
from bashgym.ledger.migrate import upgrade
from bashgym.ledger.service import Ledger

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "ledger"))
_number = count()


def _binary(name: str) -> str:
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which(name)
    assert found, f"PostgreSQL's {name} is not installed (apt-get install postgresql)"
    return found


def _as_server_user(*command: str) -> None:
    user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", **user)
    assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of the server, without a database name."""
    # A short path: a socket's name has at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(root, owner.pw_uid, owner.pw_gid)
    data = str(root / "data")
    _as_server_user(_binary("initdb"), "-D", data, "-U", "bashgym", "-A", "trust", "-E", "UTF8", "--no-sync")
    options = f"-c listen_addresses='' -c unix_socket_directories={root} -c fsync=off"
    _as_server_user(_binary("pg_ctl"), "-D", data, "-w", "-l", f"{root}/log", "-o", options, "start")
    try:
        yield f"postgresql://bashgym@/{{}}?host={root}"
    finally:
        _as_server_user(_binary("pg_ctl"), "-D", data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(root, ignore_errors=True)


def _create(server: str, name: str, template: str = "template0") -> str:
    import psycopg

    with psycopg.connect(server.format("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return server.format(name)


@pytest.fixture(scope="session")
def migrated(server: str) -> str:
    """The name of a migrated database, to be copied."""
    url = _create(server, "migrated")
    upgrade(Settings.from_env({"BASHGYM_DATABASE_URL": url}))
    return "migrated"


@pytest.fixture
def empty_url(server: str) -> str:
    """An empty database."""
    return _create(server, f"empty_{next(_number)}")


@pytest.fixture
def settings(server: str, migrated: str) -> Settings:
    url = _create(server, f"test_{next(_number)}", migrated)
    return Settings.from_env({"BASHGYM_DATABASE_URL": url})


@pytest.fixture
def ledger(settings: Settings) -> Iterator[Ledger]:
    opened = Ledger(settings)
    yield opened
    opened.close()
