"""Strict objects from outside: which fields, which types, which limits. Every problem is found, not only the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from bashgym.core.errors import BashGymError
from bashgym.core.ids import IDENTIFIER, SHA256
from bashgym.ledger import safe

Check = Callable[[object], object]
"""Returns the value to keep, or raises ValueError saying what it must be."""


@dataclass(frozen=True)
class Field:
    """One field. Without `required`, `default` stands for an absent one."""

    check: Check
    required: bool = False
    default: object = None


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an object."""

    code: str
    field: str
    message: str


def parse(body: Mapping[str, object], fields: Mapping[str, Field]) -> tuple[dict[str, object], list[Problem]]:
    """The values of `body`, defaults filled in, and what is wrong with it."""
    problems = [_unknown(name, fields) for name in body if name not in fields]
    values: dict[str, object] = {}
    for name, field in fields.items():
        values[name] = field.default
        if name not in body or (body[name] is None and not field.required):
            if field.required:
                problems.append(Problem("missing_field", name, f"{name} is missing"))
            continue
        try:
            values[name] = field.check(body[name])
        except BashGymError as error:
            problems.append(Problem(error.code, name, f"{name}: {error.message}"))
        except ValueError as error:
            problems.append(Problem("invalid_field", name, f"{name} must be {error}"))
    return values, problems


def _unknown(name: str, fields: Mapping[str, Field]) -> Problem:
    from difflib import get_close_matches

    near = get_close_matches(str(name), fields, n=1, cutoff=0.5)
    mend = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(fields)}"
    return Problem("unknown_field", str(name)[:160], f"{str(name)[:160]!r} is not a field{mend}")


def identifier(value: object) -> object:
    """An id of at most 160 characters."""
    if isinstance(value, str) and IDENTIFIER.fullmatch(value) and ".." not in value:
        return value
    raise ValueError("an identifier: 1 to 160 of A-Z a-z 0-9 _ . : -, a letter or digit first")


def digest(value: object) -> object:
    """A sha256 in lower-case hex."""
    if isinstance(value, str) and SHA256.fullmatch(value):
        return value
    raise ValueError("a sha256 of 64 lower-case hex digits")


def text(limit: int, *, empty: bool = False) -> Check:
    """A string of at most `limit` characters without secrets."""

    def check(value: object) -> object:
        if not isinstance(value, str) or len(value) > limit or not (value.strip() or empty):
            raise ValueError(f"a {'' if empty else 'non-empty '}string of at most {limit} characters")
        safe.encode(value, "text")
        return value

    return check


def payload(value: object) -> object:
    """An object that is safe to store, see `safe`."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("an object")
    safe.encode(value, "object")
    return value


def strings(limit: int) -> Check:
    """A list of at most `limit` strings."""

    def check(value: object) -> object:
        if not isinstance(value, list) or len(value) > limit or not all(isinstance(item, str) for item in value):
            raise ValueError(f"a list of at most {limit} strings")
        safe.encode(value, "list")
        return value

    return check


def counts(value: object) -> object:
    """An object of whole numbers from 0."""
    if isinstance(value, dict) and all(isinstance(k, str) and type(v) is int and v >= 0 for k, v in value.items()):
        return value
    raise ValueError("an object of whole numbers from 0")


def numbers(value: object) -> object:
    """An object of finite numbers."""
    if isinstance(value, dict) and all(
        isinstance(k, str) and type(v) in (int, float) and math.isfinite(v) for k, v in value.items()
    ):
        return {name: float(number) for name, number in value.items()}
    raise ValueError("an object of finite numbers")


def whole(value: object) -> object:
    """A whole number from 0 that fits in 63 bits."""
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    raise ValueError("a whole number from 0")


def one_of(*names: str) -> Check:
    """One of the given words."""

    def check(value: object) -> object:
        if value in names:
            return value
        raise ValueError(f"one of {', '.join(names)}")

    return check


def timestamp(value: object) -> object:
    """An ISO 8601 time with its zone."""
    try:
        zoned = isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        zoned = False
    if not zoned:
        raise ValueError("an ISO 8601 time with a zone, such as 2026-12-01T02:10:59Z")
    return value
