"""Opening, migrating, breaking and killing the SQLite database."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ledger_cases import P, W, context, finish, register, result, suite, tracked

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.ledger import entities
from bashgym.ledger.backends import Sqlite
from bashgym.ledger.db import VERSIONS, Database
from bashgym.ledger.service import Ledger


def at(home: Path) -> Settings:
    return Settings.from_env({"BASHGYM_DIR": str(home)})


def python(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


OPEN = """
    import sys
    from bashgym.core.settings import Settings
    from bashgym.ledger.service import Ledger
    ledger = Ledger(Settings.from_env({"BASHGYM_DIR": sys.argv[1]}))
    """


def test_processes_that_open_a_fresh_database_at_once_all_succeed(tmp_path: Path) -> None:
    code = OPEN + "ledger.append_event; ledger.claim_idempotency(sys.argv[2], 'd')\n"
    processes = [python(code, str(tmp_path / "home"), f"k{n}") for n in range(4)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    with Database.open(at(tmp_path / "home")).read() as tx:
        assert len(tx.all("SELECT key FROM idempotency_keys")) == 4


def test_kill_9_during_writes_leaves_every_transaction_whole(settings: Settings) -> None:
    code = (
        OPEN
        + """
    n = 0
    while True:
        ledger.register_run(request={}, strategy="sft", run_id=f"run_{n}", run_dir="/r", tracking=None, model={},
                            dataset={}, environment={}, recipe_digest="0" * 64)
        ledger.ingest_metrics(f"run_{n}", 1, [{"step": s, "ts": 1.0, "loss": 1.0} for s in range(200)])
        print(n, flush=True)
        n += 1
    """
    )
    process = python(code, str(settings.home))
    assert process.stdout
    for _ in range(20):
        said = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.communicate()
    ledger = Ledger(settings)
    health = ledger.health()
    assert health["quick_check"] == ["ok"]
    counts = health["counts"]
    assert counts["runs"] == counts["attempts"] == counts["events"] >= int(said) + 1
    assert ledger.verify_chain()["ok"]
    for n in range(int(said) + 1):
        assert ledger.trend("desktop-local", "unassigned", "loss", f"run_{n}")["point_count"] == 200


def test_a_migration_killed_midway_leaves_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    code = (
        """
    import os, signal, sqlalchemy
    seen = 0
    def count(*_):
        global seen
        seen += 1
        if seen == 20:
            os.kill(os.getpid(), signal.SIGKILL)
    sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", count)
    """
        + OPEN
        + "ledger.health()\n"
    )
    process = python(code, str(tmp_path))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    connection = sqlite3.connect(tmp_path / "bashgym.sqlite3")
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()
    assert Ledger(at(tmp_path)).health()["migration_versions"] == list(VERSIONS)


def test_an_older_database_is_backed_up_and_migrated_with_its_rows(tmp_path: Path) -> None:
    from bashgym.ledger.migrate import upgrade

    upgrade(at(tmp_path), "0001")
    old = Database(Sqlite(tmp_path / "bashgym.sqlite3"))
    assert old.version() == "0001"
    with old.write() as tx:
        tx.insert("counters", {"workspace_id": "w", "project_id": "p", "name": "run", "n": 41})
    old.close()
    with Database.open(at(tmp_path), read_only=True).read() as tx:
        assert tx.all("SELECT n FROM counters") == [{"n": 41}]
        assert tx.all("SELECT * FROM metric_points") == []
    (backup,) = tmp_path.glob("bashgym.sqlite3.backup-0001-*")
    copy = Database(Sqlite(backup))
    assert copy.version() == "0001"
    copy.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bashgym.ledger.migrate import upgrade

    upgrade(at(tmp_path), "0001")
    connection = sqlite3.connect(tmp_path / "bashgym.sqlite3")
    connection.execute("CREATE TABLE metric_latest (x)")
    connection.close()
    with pytest.raises(BashGymError) as caught:
        Database.open(at(tmp_path))
    assert caught.value.code == "database_unavailable"
    connection = sqlite3.connect(tmp_path / "bashgym.sqlite3")
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert "metric_points" not in tables
    assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]


def test_a_newer_database_is_refused_and_untouched(settings: Settings) -> None:
    connection = sqlite3.connect(settings.home / "bashgym.sqlite3")
    connection.execute("UPDATE alembic_version SET version_num = '0099'")
    connection.commit()
    connection.close()
    before = sorted(path.name for path in settings.home.iterdir())
    with pytest.raises(BashGymError, match="0099") as caught:
        Ledger(settings).projects(W)
    assert caught.value.code == "database_newer"
    assert sorted(p.name for p in settings.home.iterdir() if not p.name.endswith(("-wal", "-shm"))) == before


def test_a_file_that_is_no_database_is_refused_with_the_way_out(settings: Settings) -> None:
    (settings.home / "bashgym.sqlite3").write_bytes(b"not a database at all" * 500)
    with pytest.raises(BashGymError) as caught:
        Ledger(settings).projects(W)
    assert caught.value.code == "database_unavailable"
    assert "quick_check" in caught.value.hint
    assert "bashgym runs reindex" in caught.value.hint


def test_damage_inside_is_found_set_aside_and_begun_anew(settings: Settings) -> None:
    from bashgym.ledger.migrate import set_aside

    ledger = Ledger(settings)
    tracked(ledger, "run_1")
    ledger.ingest_metrics("run_1", 1, [{"step": n, "ts": 1.0, "loss": 1.0} for n in range(20_000)])
    ledger.close()
    path = settings.home / "bashgym.sqlite3"
    size = path.stat().st_size
    with path.open("rb+") as handle:
        handle.seek(size - 40_960)
        handle.write(b"\xff" * 20_480)
    assert Ledger(settings).health()["status"] == "damaged"
    with pytest.raises(BashGymError) as caught:
        Ledger(settings).trend(W, P, "loss", limit=20_000)
    assert caught.value.code == "database_unavailable"
    moved = set_aside(settings)
    assert moved[0].stat().st_size == size
    assert Ledger(settings).projects(W)["projects"] == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BashGymError) as caught:
        Ledger(at(tmp_path / "file" / "home")).projects(W)
    assert caught.value.code == "directory_unwritable"
    assert str(tmp_path) in caught.value.message


def test_an_unknown_database_scheme_is_refused_without_its_password(tmp_path: Path) -> None:
    settings = Settings.from_env({"BASHGYM_DATABASE_URL": "mysql://me:secret@host/db"})
    with pytest.raises(BashGymError) as caught:
        Ledger(settings).projects(W)
    assert "mysql" in caught.value.message
    assert "secret" not in caught.value.message


def test_a_read_only_ledger_does_not_write(settings: Settings) -> None:
    tracked(Ledger(settings), "run_1")
    reader = Ledger(settings, read_only=True)
    assert len(reader.runs(W, P)["runs"]) == 1
    with pytest.raises(BashGymError) as caught:
        tracked(reader, "run_2")
    assert caught.value.code == "directory_unwritable"


def test_a_full_disk_is_named_and_the_ledger_stays_whole(settings: Settings) -> None:
    ledger = Ledger(settings)
    tracked(ledger, "run_1")
    with ledger.database.read() as tx:
        pages = tx.all("PRAGMA page_count")[0]["page_count"]
    ledger.database._connection().execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(BashGymError) as caught:
        ledger.ingest_metrics("run_1", 1, [{"step": n, "ts": 1.0, "loss": 1.0} for n in range(50_000)])
    assert caught.value.code == "disk_full"
    assert ledger.trend(W, P, "loss")["point_count"] == 0
    assert ledger.set_status("run_1", "running")["changed"]


def test_a_failed_transaction_is_rolled_back_and_the_connection_lives_on(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.database.write() as tx:
        tx.insert("counters", {"workspace_id": "w", "project_id": "p", "name": "run", "n": 1})
        _ = 1 / 0
    with ledger.database.read() as tx:
        assert tx.all("SELECT * FROM counters") == []


def test_a_read_sees_one_state(settings: Settings) -> None:
    ledger, other = Ledger(settings), Ledger(settings)
    tracked(ledger, "run_1")
    with ledger.database.read() as tx:
        assert len(tx.all("SELECT run_id FROM runs")) == 1
        tracked(other, "run_2")
        assert len(tx.all("SELECT run_id FROM runs")) == 1


def test_versions_are_those_of_the_migration_files() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(entities.__file__).with_name("migrations")))
    script = ScriptDirectory.from_config(config)
    assert tuple(reversed([revision.revision for revision in script.walk_revisions()])) == VERSIONS


def test_entities_describe_columns_that_exist(ledger: Ledger) -> None:
    with ledger.database.read() as tx:
        for kind in entities.ENTITIES.values():
            columns = {row["name"] for row in tx.all(f"PRAGMA table_info({kind.table})")}
            named = {kind.key, *kind.identity, *kind.wording, *kind.json, *(column for column, _ in kind.references)}
            assert named <= columns, kind.name


def test_deletes_of_what_is_referred_to_are_refused(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    for table in ("projects", "experiments", "datasets", "runs"):
        with pytest.raises(BashGymError), ledger.database.write() as tx:
            tx.run(f"DELETE FROM {table}")


def test_no_list_or_series_query_scans_a_table(ledger: Ledger) -> None:
    for n in range(3):
        tracked(ledger, f"run_{n}")
        finish(ledger, f"run_{n}")
        ledger.ingest_metrics(f"run_{n}", 1, [{"step": s, "ts": 1.0, "loss": 1.0} for s in range(5)])
    register(ledger, "run_x", context(project_id="other"))
    suite(ledger)
    result(ledger, "run_0", 0.5)
    connection, statements = ledger.database._connection(), set()
    connection.set_trace_callback(statements.add)
    ledger.projects(W)
    ledger.project(W, P)
    ledger.context(W, P)
    ledger.runs(W, P)
    ledger.runs(W, P, status="completed")
    ledger.run(W, P, "run_0")
    ledger.compare(W, P, ["run_0", "run_1"])
    ledger.trend(W, P, "loss")
    ledger.trend(W, P, "loss", run_id="run_1")
    ledger.evaluations(W, P)
    ledger.evaluations(W, P, run_id="run_0")
    ledger.events(W, P, after_cursor=2)
    ledger.events(after_cursor=2)
    ledger.find_run("run_0")
    ledger.recent_runs()
    ledger.recent_runs("completed")
    connection.set_trace_callback(None)
    queries = {statement for statement in statements if statement.startswith("SELECT")}
    assert len(queries) > 20
    for query in queries:
        plan = " | ".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + query))
        # Newest rows of everything: a walk down the primary key that LIMIT ends, not a scan of the table.
        by_key = re.search(r"FROM runs ORDER BY run_key DESC LIMIT", query)
        assert by_key or "SCAN" not in plan, (query, plan)
        assert "TEMP B-TREE" not in plan, (query, plan)


def test_reading_imports_neither_sqlalchemy_nor_alembic_nor_msgspec(settings: Settings) -> None:
    heavy = ("sqlalchemy", "alembic", "msgspec", "psycopg")
    code = OPEN + f"ledger.projects('w'); print([m for m in {heavy} if m in sys.modules])"
    output, errors = python(code, str(settings.home)).communicate(timeout=30)
    assert output.decode().strip() == "[]", errors.decode()


def test_the_database_path_may_have_odd_characters(tmp_path: Path, template: Path) -> None:
    home = tmp_path / "a ?b#c%20d"
    home.mkdir()
    shutil.copy(template, home / "bashgym.sqlite3")
    assert Ledger(at(home)).projects(W)["projects"] == []
