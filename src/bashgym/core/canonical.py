"""Canonical JSON and sha256 digests. A digest in a record is always one that this module measured.

Canonical: UTF-8, keys sorted by code point, no spaces, no NaN or infinity, floats as Python's shortest repr.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

_CHUNK = 1 << 20


def canonical_json(value: object) -> bytes:
    """The one byte form of a JSON value. ValueError on NaN, infinity or a lone surrogate."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_bytes(data: bytes) -> str:
    """sha256, 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: object) -> str:
    """sha256 of the canonical JSON of `value`."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """sha256 of a file's bytes, read in bounded memory."""
    state = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()


def digest_tree(root: Path, *, suffixes: tuple[str, ...] = ()) -> str:
    """sha256 over (relative path, size, sha256) of every regular file below `root`, in path order.

    With `suffixes`, only files with one of these endings count. Links are not followed.
    """
    entries = []
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file() or (suffixes and path.suffix not in suffixes):
            continue
        entries.append([path.relative_to(root).as_posix(), path.stat().st_size, digest_file(path)])
    return digest_json(entries)
