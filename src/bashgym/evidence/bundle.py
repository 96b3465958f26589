"""Digest-bound evidence: a file, its sha256, and the run that it speaks about.

Covers: a byte changed, a file removed or emptied, a file swapped for another run's. Does not cover: someone who can
rewrite the evidence, every report below it and the card together; the rules therefore rebuild what they can.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_json

_PEEK_BYTES = 16 << 20


class EvidenceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence as measured."""

    kind: str
    path: str
    """Relative to the card's folder when the file is below it, absolute otherwise."""
    sha256: str
    size_bytes: int
    run_id: str
    """The run that the file names, or that it lies in; empty when neither is so."""
    schema_version: str
    created_at: str
    """When it was measured."""


class Integrity(StrEnum):
    """What a second look at a bound file found."""

    INTACT = "intact"
    MISSING = "missing"
    EMPTY = "empty"
    CHANGED = "changed"


def resolve_input(path: str | Path, card_dir: Path) -> Path:
    """A path that a user gave: relative ones are tried from the current folder first, then from the card's."""
    given = Path(path).expanduser()
    if given.is_absolute():
        return given
    return given.absolute() if given.exists() else (card_dir / given).absolute()


def stored(path: Path, card_dir: Path) -> str:
    """How a path is written into a card, so that the card still holds when its folder is moved as a whole."""
    real, base = path.resolve(), card_dir.resolve()
    return real.relative_to(base).as_posix() if real.is_relative_to(base) else str(real)


def located(path: str, card_dir: Path) -> Path:
    """Where a path of a card points now. Never looks into the current folder."""
    return card_dir / path


def measure(kind: str, path: Path, *, card_dir: Path, run_id: str = "", run_dir: Path | None = None) -> EvidenceEntry:
    """Hashes a file into an entry. `file_missing` or `file_unreadable` if there is no regular file.

    `run_id` is used for a file inside `run_dir` that names no run itself.
    """
    if not path.exists():
        raise fail("file_missing", f"{kind} evidence {path} does not exist", fields=[kind])
    if not path.is_file():
        raise fail("file_unreadable", f"{kind} evidence {path} is not a regular file", fields=[kind])
    named, schema = _peek(path)
    if not named and run_dir is not None and path.resolve().is_relative_to(run_dir.resolve()):
        named = run_id
    return EvidenceEntry(
        kind=kind,
        path=stored(path, card_dir),
        sha256=digest_file(path),
        size_bytes=path.stat().st_size,
        run_id=named,
        schema_version=schema,
        created_at=utc_now(),
    )


def verify(entry: EvidenceEntry, card_dir: Path) -> Integrity:
    """Re-hashes the file of an entry."""
    path = located(entry.path, card_dir)
    if not path.is_file():
        return Integrity.MISSING
    if path.stat().st_size == 0:
        return Integrity.EMPTY
    if path.stat().st_size != entry.size_bytes or digest_file(path) != entry.sha256:
        return Integrity.CHANGED
    return Integrity.INTACT


def _peek(path: Path) -> tuple[str, str]:
    """(run_id, schema_version) as a JSON object states them; empty strings for anything else."""
    if path.suffix != ".json" or path.stat().st_size > _PEEK_BYTES:
        return "", ""
    try:
        value = read_json(path)
    except BashGymError:
        return "", ""
    if not isinstance(value, dict):
        return "", ""
    run_id, schema = value.get("run_id"), value.get("schema_version")
    return (run_id if isinstance(run_id, str) else ""), (schema if isinstance(schema, str) else "")
