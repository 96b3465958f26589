"""`Database`: connections, transactions and named-parameter SQL on SQLite or PostgreSQL.

Opening checks the schema version with one SELECT; SQLAlchemy and Alembic are imported only if a migration is due,
because their import alone is longer than a read command may take. Owns no table.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import writable_dir
from bashgym.core.settings import Settings
from bashgym.ledger.backends import Backend, Postgres, Sqlite

VERSIONS = ("0001", "0002")
"""The schema versions that this code knows, oldest first. A test holds them to the migration files."""

Row = dict[str, Any]
_PARAMETER = re.compile(r"(?<!:):([a-z][a-z0-9_]*)")


@lru_cache(maxsize=512)
def _pyformat(sql: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", sql)


class Tx:
    """One transaction. SQL is the common subset of both databases, with `:name` parameters."""

    def __init__(self, cursor: Any, dialect: str) -> None:
        self._cursor, self._dialect = cursor, dialect

    def _execute(self, sql: str, values: Row) -> Any:
        return self._cursor.execute(sql if self._dialect == "sqlite" else _pyformat(sql), values)

    def run(self, sql: str, **values: Any) -> None:
        """Executes a statement."""
        self._execute(sql, values)

    def all(self, sql: str, **values: Any) -> list[Row]:
        """Every row, as dicts."""
        self._execute(sql, values)
        names = [column[0] for column in self._cursor.description]
        return [dict(zip(names, row, strict=True)) for row in self._cursor.fetchall()]

    def tuples(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Every row, as the driver's tuples: for the long series."""
        self._execute(sql, values)
        found: list[tuple[Any, ...]] = self._cursor.fetchall()
        return found

    def one(self, sql: str, **values: Any) -> Row | None:
        """The first row, or None."""
        rows = self.all(sql, **values)
        return rows[0] if rows else None

    def insert(self, table: str, row: Row) -> None:
        """Inserts one row. Column names come from our own tables, never from input."""
        names = ", ".join(row)
        self.run(f"INSERT INTO {table} ({names}) VALUES ({', '.join(':' + name for name in row)})", **row)  # noqa: S608

    def update(self, table: str, changes: Row, where: Row) -> None:
        """Updates the rows that equal `where`."""
        sets = ", ".join(f"{name} = :{name}" for name in changes)
        tests = " AND ".join(f"{name} = :{name}" for name in where)
        self.run(f"UPDATE {table} SET {sets} WHERE {tests}", **changes, **where)  # noqa: S608

    def insert_many(self, table: str, columns: dict[str, str], rows: Sequence[tuple[Any, ...]], conflict: str) -> None:
        """Inserts many rows in one statement's time. `columns`: name -> PostgreSQL type; no two rows share a key."""
        if not rows:
            return
        names = ", ".join(columns)
        if self._dialect == "sqlite":
            marks = ", ".join("?" * len(columns))
            self._cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks}) {conflict}", rows)  # noqa: S608
            return
        arrays = ", ".join(f"%s::{kind}[]" for kind in columns.values())
        values = [list(column) for column in zip(*rows, strict=True)]
        self._cursor.execute(f"INSERT INTO {table} ({names}) SELECT * FROM unnest({arrays}) {conflict}", values)  # noqa: S608


class Database:
    """Thread-safe: each thread has a connection of its own."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._local = threading.local()
        self._connections: list[Any] = []

    @classmethod
    def open(cls, settings: Settings, *, read_only: bool = False) -> Database:
        """The database of `settings`, at the schema version of this code.

        An absent one is made, an older one is backed up and migrated, also by a read-only opener. Errors:
        `directory_unwritable`, `database_newer`, `database_unavailable`, `missing_extra`.
        """
        backend = make_backend(settings)
        database = cls(backend)
        absent = isinstance(backend, Sqlite) and not backend.path.exists()
        if isinstance(backend, Sqlite) and absent:
            writable_dir(backend.path.parent)
        elif isinstance(backend, Sqlite):
            backend.read_only = read_only
        if absent or database.version() != VERSIONS[-1]:
            database.close()
            from bashgym.ledger.migrate import upgrade

            upgrade(settings)
        return database

    def version(self) -> str:
        """The schema version, "" if the database is empty; `database_newer` if this code does not know it."""
        with self.read() as tx:
            if not _has_table(tx, "alembic_version"):
                if _has_table(tx, "runs"):
                    raise fail("database_newer", "the database holds tables of an unknown version")
                return ""
            row = tx.one("SELECT version_num FROM alembic_version")
        found = str(row["version_num"]) if row else ""
        if found and found not in VERSIONS:
            raise fail(
                "database_newer",
                f"the database has schema version {found}; this code knows up to {VERSIONS[-1]}",
                hint="Use the version of bashgym that wrote it, or another BASHGYM_DIR.",
            )
        return found

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """A read transaction: every query in it sees the same state."""
        with self._transaction((self.backend.begin_read,)) as tx:
            yield tx

    @contextmanager
    def write(self, *, serial: bool = True) -> Iterator[Tx]:
        """A write transaction, committed at the end and rolled back on any exception.

        Without `serial`, PostgreSQL writers do not wait for each other; only for data that one process owns.
        """
        begin = self.backend.begin_write
        with self._transaction(begin if serial else begin[:1]) as tx:
            yield tx

    @contextmanager
    def _transaction(self, begin: Sequence[str]) -> Iterator[Tx]:
        try:
            connection = self._connection()
            cursor = connection.cursor()
            for statement in begin:
                cursor.execute(statement)
            done = False
            try:
                yield Tx(cursor, self.backend.dialect)
                cursor.execute("COMMIT")
                done = True
            finally:
                if not done and self.backend.usable(connection):
                    self._roll_back(connection)
        except self.backend.errors as error:
            raise self.backend.explain(error) from error

    def _roll_back(self, connection: Any) -> None:
        # A full disk makes SQLite roll back by itself; a second ROLLBACK would hide the first error.
        if getattr(connection, "in_transaction", True):
            connection.execute("ROLLBACK")

    def _connection(self) -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None or not self.backend.usable(connection):
            connection = self.backend.connect()
            self._local.connection = connection
            self._connections.append(connection)
        return connection

    def quick_check(self) -> list[str]:
        """SQLite's list of damages, empty if there are none; PostgreSQL keeps its own checksums."""
        if self.backend.dialect != "sqlite":
            return []
        try:
            with self.read() as tx:
                rows = tx.all("PRAGMA quick_check")
        except BashGymError as error:
            return [error.message]
        return [str(row["quick_check"]) for row in rows if row["quick_check"] != "ok"]

    def sizes(self) -> dict[str, int]:
        """Bytes of the database and of its write-ahead log."""
        if isinstance(self.backend, Sqlite):
            files = (self.backend.path, Path(f"{self.backend.path}-wal"))
            sizes = [path.stat().st_size if path.exists() else 0 for path in files]
            return {"database_bytes": sizes[0], "wal_bytes": sizes[1]}
        with self.read() as tx:
            row = tx.one("SELECT pg_database_size(current_database()) AS n")
        return {"database_bytes": int(row["n"]) if row else 0, "wal_bytes": 0}

    def close(self) -> None:
        """Closes the connections of all threads."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._local = threading.local()


def make_backend(settings: Settings) -> Backend:
    """The backend that BASHGYM_DATABASE_URL names, by default SQLite at `home/bashgym.sqlite3`."""
    url = settings.database_url
    if not url:
        return Sqlite(settings.home / "bashgym.sqlite3")
    if url.startswith("sqlite:///"):
        return Sqlite(Path(url.removeprefix("sqlite:///")).absolute())
    if re.match(r"postgres(ql)?(\+psycopg)?://", url):
        return Postgres(url)
    raise fail(
        "database_unavailable",
        f"BASHGYM_DATABASE_URL has an unknown scheme: {url.partition(':')[0][:40]}",
        hint="Use sqlite:///PATH or postgresql://...",
    )


def _has_table(tx: Tx, name: str) -> bool:
    if tx._dialect == "sqlite":
        return tx.one("SELECT 1 AS n FROM sqlite_master WHERE type = 'table' AND name = :name", name=name) is not None
    row = tx.one("SELECT to_regclass(:name) IS NOT NULL AS found", name=name)
    return bool(row and row["found"])
