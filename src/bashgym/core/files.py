"""Files that are whole or absent: write, fsync, rename. And paths that stay where they belong.

Covers: torn writes, partial JSON, `..`, absolute paths and symlinks in names that come from outside.
Does not cover: a hostile process with the same user id.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from bashgym.core.errors import fail


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Replaces `path` with `data`; after a crash the old or the new content is there, never a mix."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def atomic_write_text(path: Path, text: str) -> None:
    """`atomic_write_bytes` of UTF-8."""
    atomic_write_bytes(path, text.encode())


def atomic_write_json(path: Path, value: object) -> None:
    """Readable JSON (indent 2), written whole. ValueError on NaN or infinity."""
    atomic_write_bytes(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def fsync_dir(path: Path) -> None:
    """Makes a rename in `path` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append_line(path: Path, line: bytes, *, sync: bool = True) -> None:
    """Appends one line with a single write, so that concurrent appenders do not interleave."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line + b"\n")
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, *, max_bytes: int = 64 << 20) -> object:
    """The JSON value of a regular file; `file_missing`, `file_too_large` or `file_unreadable` otherwise."""
    if not path.exists():
        raise fail("file_missing", f"{path} does not exist")
    if not path.is_file():
        raise fail("file_unreadable", f"{path} is not a regular file")
    if path.stat().st_size > max_bytes:
        raise fail("file_too_large", f"{path} has {path.stat().st_size} bytes; the limit is {max_bytes}")
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise fail("file_unreadable", f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise fail("file_unreadable", f"{path} is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise fail("file_unreadable", f"{path} is not JSON: {error.msg} at line {error.lineno}") from error
    except RecursionError as error:
        raise fail("file_unreadable", f"{path} is nested too deeply") from error


def read_object(path: Path, *, max_bytes: int = 64 << 20) -> dict[str, object]:
    """`read_json`, and it must be an object."""
    value = read_json(path, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise fail("file_unreadable", f"{path} holds a JSON {type(value).__name__}, not an object")
    return value


def confined(root: Path, name: str) -> Path:
    """`root / name`, resolved; `path_outside` if it leaves `root`, by `..`, an absolute path or a link."""
    if not name or "\0" in name:
        raise fail("path_outside", f"not a usable name: {name!r}")
    base = root.resolve()
    path = (base / name).resolve()
    if path == base or not path.is_relative_to(base):
        raise fail("path_outside", f"{name!r} is not below {root}")
    return path


def writable_dir(path: Path) -> Path:
    """Makes `path` and proves that it can be written; `directory_unwritable` with the reason otherwise."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise fail(
            "directory_unwritable",
            f"{path} cannot be written: {error.strerror}",
            hint="Choose another folder or mend its rights.",
        ) from error
    return path
