"""Reading what the user hands in: config files, `--set` pairs, JSON bodies. Refused early, with the file's name."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bashgym.core.errors import fail
from bashgym.core.files import read_object

MAX_CONFIG_BYTES = 8 << 20


def regular_file(path: Path, what: str) -> Path:
    """`path` if it is a regular file and not a link; `file_missing` or `file_unreadable` otherwise."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError as error:
        raise fail("file_missing", f"the {what} {path} does not exist") from error
    except OSError as error:
        raise fail("file_unreadable", f"the {what} {path}: {error.strerror}") from error
    if stat.S_ISLNK(mode):
        raise fail("file_unreadable", f"the {what} {path} is a symbolic link", "Name the file itself.")
    if not stat.S_ISREG(mode):
        raise fail("file_unreadable", f"the {what} {path} is not a regular file")
    return path


def load_config(path: Path | None) -> dict[str, object]:
    """The object of a `--config` file: at most 8 MiB, and no key that has its own flag (`field_has_flag`)."""
    if path is None:
        return {}
    config = read_object(regular_file(path, "config file"), max_bytes=MAX_CONFIG_BYTES)
    from bashgym.methods.request import check_config_keys

    check_config_keys(config)
    return config


def parse_sets(pairs: Sequence[str]) -> dict[str, object]:
    """`FIELD=VALUE` pairs; a value is JSON if it parses as such, else the text itself."""
    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise fail("usage", f"--set needs FIELD=VALUE, not {pair[:80]!r}", "Example: --set num_epochs=1")
        try:
            values[name.strip()] = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            values[name.strip()] = text
    if values:
        from bashgym.methods.request import check_config_keys

        check_config_keys(values)
    return values


def merge(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Later parts win; a None means that the flag was not given."""
    return {key: value for part in parts for key, value in part.items() if value is not None}
