"""SQLite and PostgreSQL behind one small interface: connect, begin, and what the driver's errors mean.

Owns connection settings and error translation. No SQL of the ledger's tables, no migrations.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

from bashgym.core.errors import BashGymError, fail

BUSY_TIMEOUT_S = 10
_WRITE_LOCK = 0x6261736867796D


class Backend(Protocol):
    """What `Database` needs from a database product."""

    dialect: ClassVar[str]
    begin_write: ClassVar[tuple[str, ...]]
    begin_read: ClassVar[str]

    @property
    def errors(self) -> type[Exception]:
        """The driver's base class of database errors."""

    @property
    def sqlalchemy_url(self) -> str:
        """For the migrations."""

    def connect(self) -> Any:
        """A DB-API connection in autocommit mode."""

    def usable(self, connection: Any) -> bool:
        """False if the connection was lost."""

    def explain(self, error: Exception) -> BashGymError:
        """The driver's error as one of ours."""


class Sqlite:
    """A file: WAL, foreign keys on, 10 s of patience with other writers, one writer at a time."""

    dialect: ClassVar[str] = "sqlite"
    begin_write: ClassVar[tuple[str, ...]] = ("BEGIN IMMEDIATE",)
    begin_read: ClassVar[str] = "BEGIN"

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only

    @property
    def errors(self) -> type[Exception]:
        """sqlite3.Error."""
        return sqlite3.Error

    @property
    def sqlalchemy_url(self) -> str:
        """`sqlite:///<path>`."""
        return f"sqlite:///{self.path}"

    def connect(self) -> sqlite3.Connection:
        """Opens the file. WAL is a property of the file, which `migrate` sets."""
        mode = "ro" if self.read_only else "rwc"
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def usable(self, connection: sqlite3.Connection) -> bool:
        """A file does not hang up."""
        return True

    def explain(self, error: Exception) -> BashGymError:
        """By SQLite's own message: damaged, full, read-only, locked, or anything else."""
        text = str(error)
        if "malformed" in text or "not a database" in text:
            return fail(
                "database_unavailable",
                f"{self.path} is damaged: {text}",
                hint="`sqlite3 FILE 'PRAGMA quick_check'` shows the damage; "
                "`bashgym runs reindex` rebuilds the index from the run directories.",
            )
        if "full" in text:
            return fail("disk_full", f"{self.path}: {text}", hint="Free some disk space and try again.")
        if "readonly" in text or "unable to open" in text:
            return fail(
                "directory_unwritable",
                f"{self.path} cannot be opened or written: {text}",
                hint="Set BASHGYM_DIR to a folder that you can write, or mend its rights.",
            )
        hint = "Another process holds the database; try again." if "locked" in text else ""
        return fail("database_unavailable", f"{self.path}: {text}", hint=hint)


class Postgres:
    """A server. Writers take one advisory lock, so that both databases have the same single-writer order."""

    dialect: ClassVar[str] = "postgresql"
    begin_write: ClassVar[tuple[str, ...]] = ("BEGIN", f"SELECT pg_advisory_xact_lock({_WRITE_LOCK})")
    begin_read: ClassVar[str] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, url: str) -> None:
        self.url = "postgresql" + url[url.index("://") :]
        self.driver = _psycopg()

    @property
    def errors(self) -> type[Exception]:
        """psycopg.Error."""
        found: type[Exception] = self.driver.Error
        return found

    @property
    def sqlalchemy_url(self) -> str:
        """The same URL with the driver named."""
        return self.url.replace("postgresql", "postgresql+psycopg", 1)

    def connect(self) -> Any:
        """Ten seconds to answer."""
        connect: Callable[..., Any] = self.driver.connect
        return connect(self.url, autocommit=True, connect_timeout=BUSY_TIMEOUT_S)

    def usable(self, connection: Any) -> bool:
        """False after the server went away."""
        return not (connection.closed or connection.broken)

    def explain(self, error: Exception) -> BashGymError:
        """The first line of the server's message; the URL is left out, it may hold a password."""
        lines = str(error).splitlines() or [type(error).__name__]
        return fail(
            "database_unavailable",
            f"PostgreSQL: {lines[0]}",
            hint="Check BASHGYM_DATABASE_URL and that the server is up.",
        )


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise fail("missing_extra", "PostgreSQL needs psycopg", hint="pip install 'bashgym[postgres]'") from error
    return psycopg
