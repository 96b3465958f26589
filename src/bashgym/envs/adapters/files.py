"""Files of environments: one EnvironmentSpec a line."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.envs.spec import EnvironmentSpec

MAX_BYTES = 1 << 30


def read_environments(path: Path) -> list[EnvironmentSpec]:
    """Every environment of a JSONL file. Errors name the line; ids are unique."""
    if not path.is_file():
        raise fail("file_missing", f"{path} does not exist", fields=["environments"])
    if path.stat().st_size > MAX_BYTES:
        raise fail("file_too_large", f"{path} is over {MAX_BYTES} bytes", fields=["environments"])
    found: dict[str, EnvironmentSpec] = {}
    with path.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            if line.strip():
                spec = _read(line, f"{path}, line {number}")
                if spec.id in found:
                    raise fail("environment_invalid", f"{path}, line {number}: a second {spec.id}", fields=["id"])
                found[spec.id] = spec
    if not found:
        raise fail("environment_invalid", f"{path} holds no environment", fields=["environments"])
    return list(found.values())


def _read(line: bytes, place: str) -> EnvironmentSpec:
    try:
        value = msgspec.json.decode(line)
        if not isinstance(value, dict):
            raise fail("environment_invalid", "not a JSON object")
        return EnvironmentSpec.from_dict(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise fail("environment_invalid", f"{place}: {error}", fields=["environments"]) from error
    except BashGymError as error:
        raise fail("environment_invalid", f"{place}: {error.message}", error.hint, list(error.fields)) from error
