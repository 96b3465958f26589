"""Bringing a database to the newest schema: lock, backup, one transaction. Imported only when that is due.

Killed midway, the transaction is rolled back and the backup of an older SQLite file is kept beside it. PostgreSQL
has transactional DDL too; its backup is the operator's (`pg_dump`). Also sets a damaged SQLite file aside.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from bashgym.core.errors import fail
from bashgym.core.settings import Settings
from bashgym.ledger.backends import BUSY_TIMEOUT_S, Backend, Sqlite
from bashgym.ledger.db import VERSIONS, Database, make_backend

_MIGRATION_LOCK = 0x62617368676D


def upgrade(settings: Settings, target: str = VERSIONS[-1]) -> None:
    """Migrates to `target`. Safe when several processes do it at once: the later ones find it done."""
    backend = make_backend(settings)
    with _locked(backend):
        database = Database(backend)
        try:
            if isinstance(backend, Sqlite):
                _use_wal(backend)
            version = database.version()
        finally:
            database.close()
        if version == target:
            return
        if version and isinstance(backend, Sqlite):
            backup(backend.path, version)
        _run(backend, target)


def _use_wal(backend: Sqlite) -> None:
    # This switch does not wait for readers by itself, so it is retried until the busy timeout.
    end = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection = backend.connect()
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            finally:
                connection.close()
            return
        except sqlite3.Error as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise backend.explain(error) from error
            time.sleep(0.02)


def backup(path: Path, version: str) -> Path:
    """A consistent copy of a SQLite file beside it, synced to disk before its name appears."""
    target = path.with_name(f"{path.name}.backup-{version}-{_stamp()}")
    part = target.with_name(target.name + ".part")
    source, copy = sqlite3.connect(path), sqlite3.connect(part)
    try:
        source.backup(copy)
    finally:
        source.close()
        copy.close()
    with part.open("rb+") as handle:
        os.fsync(handle.fileno())
    part.rename(target)
    return target


def set_aside(settings: Settings) -> list[Path]:
    """Renames a damaged SQLite file and its log, so that `bashgym runs reindex` can begin anew. Nothing is deleted."""
    backend = make_backend(settings)
    if not isinstance(backend, Sqlite):
        raise fail("database_unavailable", "only a SQLite file can be set aside", hint="Restore PostgreSQL's backup.")
    moved, stamp = [], _stamp()
    with _locked(backend):
        for suffix in ("", "-wal", "-shm"):
            path = Path(f"{backend.path}{suffix}")
            if path.exists():
                moved.append(path.rename(f"{backend.path}.damaged-{stamp}{suffix}"))
    return moved


def _run(backend: Backend, target: str) -> None:
    engine = sa.create_engine(backend.sqlalchemy_url, poolclass=sa.NullPool)
    if backend.dialect == "sqlite":
        # The driver would commit before each DDL statement; these two hooks give the transaction back to us.
        sa.event.listen(engine, "connect", lambda dbapi, _: setattr(dbapi, "isolation_level", None))
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    try:
        with engine.begin() as connection:
            if backend.dialect == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
                if _postgres_version(connection) == target:
                    return
            config.attributes["connection"] = connection
            command.upgrade(config, target)
    except sa.exc.DBAPIError as error:
        raise backend.explain(error.orig if isinstance(error.orig, Exception) else error) from error
    finally:
        engine.dispose()


def _postgres_version(connection: sa.Connection) -> str:
    # Read again under the lock: another process may have migrated while this one waited.
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return str(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() or "")


@contextmanager
def _locked(backend: Backend) -> Iterator[None]:
    """A lock file beside a SQLite database; PostgreSQL locks in `_run`. The kernel frees it if we are killed."""
    if not isinstance(backend, Sqlite):
        yield
        return
    try:
        handle = os.open(f"{backend.path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise fail(
            "directory_unwritable",
            f"{backend.path.parent} cannot be written: {error.strerror}",
            hint="Set BASHGYM_DIR to a folder that you can write, or mend its rights.",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _stamp() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
