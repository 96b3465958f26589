"""Files and folders that a request wants written: proven writable before anything is paid for."""

from __future__ import annotations

from pathlib import Path

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import writable_dir


def folder_for(text: str, field: str) -> Path:
    """An absolute folder that exists now and can be written; `invalid_field` or `directory_unwritable` naming `field`."""
    if not text or not text.isprintable():
        raise fail("invalid_field", f"{field} is no path: {text[:80]!r}", fields=[field])
    try:
        return writable_dir(Path(text).expanduser().absolute())
    except (BashGymError, RuntimeError) as error:  # RuntimeError: ~nobody
        raise fail("directory_unwritable", f"{field}: {error}", fields=[field]) from error


def file_for(text: str, field: str) -> Path:
    """An absolute path in such a folder, where no folder stands."""
    path = folder_for(str(Path(text).parent) if text else "", field) / Path(text).name
    if path.is_dir() or not path.name.isprintable():
        raise fail("invalid_field", f"{field} is no file: {text[:80]!r}", fields=[field])
    return path
