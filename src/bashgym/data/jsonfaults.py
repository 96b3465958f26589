"""JSON values looked at closely, and why a line of text is not one.

Owns: the diagnosis of a faulty line, doubled keys, the first byte that is not UTF-8, walking a value without recursion.
Does not own: streaming (`readers`). All of this is slow and runs on odd rows only.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from bashgym.data.sources import Source


def diagnose(line: bytes, torn: bool, error: Exception) -> tuple[str, str]:
    """(code, message) for a line that could not be decoded. `torn`: the last one, without a newline.

    UnicodeDecodeError if the line is not UTF-8.
    """
    numbers = _OddNumbers()
    try:
        value = json.loads(
            line.decode(), parse_constant=numbers.constant, parse_float=numbers.real, parse_int=numbers.whole
        )
    except RecursionError:
        return "nested_too_deep", "the row is nested too deeply to be read"
    except UnicodeDecodeError:
        raise
    except ValueError as bad:
        where = f" at character {bad.pos + 1}" if isinstance(bad, json.JSONDecodeError) else ""
        reason = getattr(bad, "msg", str(bad))
        if torn:
            return "torn_last_line", f"the last line is cut off{where}: {reason}"
        return "json_invalid", f"not valid JSON: {reason}{where}"
    if numbers.faults:
        return "nan_or_infinity", numbers.faults[0]
    if not all(map(_encodable, strings(value))):
        return "lone_surrogate", "a text holds half a surrogate pair (\\ud800 to \\udfff)"
    return "json_invalid", f"not valid JSON: {error}"


def doubled_key(line: bytes) -> str:
    """The first key that one object of the line gives twice."""
    doubled: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    doubled.append(key)
                seen.add(key)
        return value

    try:
        json.loads(line, object_pairs_hook=check, parse_int=str)
    except (ValueError, RecursionError):
        return ""
    return doubled[0] if doubled else ""


def first_bad_byte(path: Path) -> tuple[int, int, int]:
    """(line, offset, value) of the first byte that is not UTF-8, by a second pass."""
    source, decoder = Source(path), codecs.getincrementaldecoder("utf-8")()
    line, seen = 1, 0
    for chunk in chain(source.chunks(), (b"",)):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            good = error.object[: error.start]
            return line + good.count(b"\n"), source.offset + seen - pending + error.start, error.object[error.start]
        line, seen = line + chunk.count(b"\n"), seen + len(chunk)
    return line, seen, 0


def leaves(value: object) -> Iterator[object]:
    """Every key and every scalar in a JSON value, without recursion."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
            yield from item
        elif isinstance(item, list):
            stack.extend(item)
        else:
            yield item


def strings(value: object) -> Iterator[str]:
    """Every text in a JSON value, keys included."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, str))


def integers(value: object) -> Iterator[int]:
    """Every whole number in a JSON value."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, int))


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_type(value: object) -> str:
    """The JSON name of a Python value's type."""
    if value is None:
        return "null"
    names: dict[type, str] = {
        bool: "boolean",
        int: "number",
        float: "number",
        str: "string",
        list: "list",
        dict: "object",
    }
    return names.get(type(value), type(value).__name__)


class _OddNumbers:
    """Hooks for `json.loads` that note the numbers which JSON or a 64-bit float cannot hold."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def constant(self, name: str) -> None:
        self.faults.append(f"{name} is not JSON")

    def real(self, digits: str) -> None:
        if math.isinf(float(digits)):
            self.faults.append(f"{digits[:20]} is larger than any 64-bit float (infinity)")

    def whole(self, digits: str) -> None:
        if len(digits) > 4000:
            self.faults.append(f"an integer of {len(digits)} digits is too large to read")
