"""What is PostgreSQL's own: concurrent openers and writers, its transactional migration, a server that goes away."""

import os
import subprocess
import sys
import textwrap
import threading

import psycopg
import pytest
from ledger_cases import P, W, tracked

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.ledger.db import VERSIONS, Database
from bashgym.ledger.migrate import upgrade
from bashgym.ledger.service import Ledger

pytestmark = pytest.mark.postgres


def test_processes_that_open_an_empty_database_at_once_all_succeed(empty_url: str) -> None:
    code = textwrap.dedent(
        """
        import sys
        from bashgym.core.settings import Settings
        from bashgym.ledger.service import Ledger
        Ledger(Settings.from_env({"BASHGYM_DATABASE_URL": sys.argv[1]})).claim_idempotency(sys.argv[2], "d")
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, empty_url, f"k{n}"], stderr=subprocess.PIPE, env=environment)
        for n in range(3)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    with Database.open(Settings.from_env({"BASHGYM_DATABASE_URL": empty_url})).read() as tx:
        assert len(tx.all("SELECT key FROM idempotency_keys")) == 3


def test_a_migration_that_fails_changes_nothing(empty_url: str) -> None:
    settings = Settings.from_env({"BASHGYM_DATABASE_URL": empty_url})
    upgrade(settings, "0001")
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE metric_latest (x int)")
        with pytest.raises(BashGymError):
            Database.open(settings)
        assert connection.execute("SELECT to_regclass('metric_points')").fetchone() == (None,)
        connection.execute("DROP TABLE metric_latest")
    assert Ledger(settings).health()["migration_versions"] == list(VERSIONS)


def test_a_newer_database_is_refused(settings: Settings) -> None:
    with psycopg.connect(settings.database_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0099'")
    with pytest.raises(BashGymError, match="0099") as caught:
        Ledger(settings).projects(W)
    assert caught.value.code == "database_newer"


def test_concurrent_writers_keep_one_chain_and_lose_no_point(settings: Settings) -> None:
    ledger, failures = Ledger(settings), []
    for n in range(4):
        tracked(ledger, f"run_{n}")

    def work(n: int) -> None:
        try:
            for s in range(20):
                points = [{"step": s * 10 + i, "ts": 1.0, f"m{(n + i) % 5}": 1.0, "loss": 1.0} for i in range(10)]
                ledger.ingest_metrics(f"run_{n}", 1, points)
                body = {"event_type": "note", "source_system": f"s{n}", "source_event_id": f"e{s}", "payload": {}}
                ledger.append_event(W, P, **body)
        except BashGymError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ledger.verify_chain() | {"head": ""} == {
        "ok": True,
        "events": 84,
        "head": "",
        "first_bad_cursor": None,
        "problem": "",
    }
    assert ledger.trend(W, P, "loss")["point_count"] == 800
    ledger.close()


def test_a_lost_connection_is_an_error_once_and_then_made_anew(settings: Settings, server: str) -> None:
    ledger = Ledger(settings)
    tracked(ledger, "run_1")
    with psycopg.connect(server.format("postgres"), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [ledger_name(settings)]
        )
    with pytest.raises(BashGymError) as caught:
        ledger.runs(W, P)
    assert caught.value.code == "database_unavailable"
    assert len(ledger.runs(W, P)["runs"]) == 1
    ledger.close()


def ledger_name(settings: Settings) -> str:
    return settings.database_url.partition("@/")[2].partition("?")[0]


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    settings = Settings.from_env({"BASHGYM_DATABASE_URL": "postgresql://me:hunter22@127.0.0.1:1/db"})
    with pytest.raises(BashGymError) as caught:
        Ledger(settings).projects(W)
    assert caught.value.code == "database_unavailable"
    assert "hunter22" not in caught.value.message
