"""A model's answer, read strictly: one JSON object of known keys. What tries to be more than an answer is flagged.

The text is hostile: its size, depth and characters are bounded before and after it is decoded, and nothing in it but the five
known keys is ever looked at.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, NoReturn

import msgspec

from polyguard.env.types import Action, ActionType

MAX_BYTES = 4096
MAX_DEPTH = 6
MAX_RATIONALE, MAX_FACTS, MAX_FACT_CHARS = 600, 8, 64
_ID = re.compile(r"cand_[0-9]{2}\Z")
_KEYS = frozenset({"candidate_id", "confidence", "rationale", "cited_facts", "expected_action_type"})
_TYPES = frozenset(item.value for item in ActionType)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_FORBIDDEN = re.compile(r"reward|score", re.IGNORECASE)


class Parsed(msgspec.Struct, frozen=True):
    """What was read."""

    action: Action | None
    format: float
    """1 as asked for, 0.5 found among other text, 0 unreadable."""
    flags: tuple[str, ...] = ()
    """`hard:parser_exploit`, or nothing."""
    problem: str = ""
    exploit: str = ""
    """Why it is one."""


class _Exploit(Exception):
    """An answer that is no mistake."""


def parse_action(text: str) -> Parsed:
    """Reads an answer. Never raises."""
    try:
        _bounded(text)
        found, alone = _objects(text.strip())
        if len(found) > 1:
            raise _Exploit("more than one JSON object")
        return _action(found[0], 1.0 if alone else 0.5) if found else Parsed(None, 0.0, (), "no JSON object")
    except _Exploit as exploit:
        return Parsed(None, 0.0, ("hard:parser_exploit",), "not readable", str(exploit))


def _bounded(text: str) -> None:
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise _Exploit(f"more than {MAX_BYTES} bytes")
    if _hidden(text, allowed="\n\t\r"):
        raise _Exploit("control or invisible characters")
    if _depth(text) > MAX_DEPTH:
        raise _Exploit(f"nested more than {MAX_DEPTH} deep")


def _hidden(text: str, allowed: str = "\n\t") -> bool:
    """Control and zero-width characters, and halves of surrogate pairs."""
    return any(unicodedata.category(c) in ("Cf", "Cc", "Cs") and c not in allowed for c in text)


def _depth(text: str) -> int:
    """How deep brackets are nested, outside of strings."""
    depth = deepest = 0
    for c in _STRING.sub("", text):
        depth = max(0, depth + (c in "{[") - (c in "}]"))
        deepest = max(deepest, depth)
    return deepest


def _objects(text: str) -> tuple[list[dict[str, Any]], bool]:
    """(the outermost JSON objects in the text, whether one of them is all of it)."""
    found, at, alone = [], text.find("{"), False
    while at >= 0:
        start = at
        try:
            value, at = _DECODER.raw_decode(text, start)
        except RecursionError:
            raise _Exploit(f"nested more than {MAX_DEPTH} deep") from None
        except ValueError:
            at = start + 1
        else:
            found.append(value)
            alone = start == 0 and at == len(text)
        at = text.find("{", at)
    return found, alone


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _Exploit("a key stands twice")
    if any(_FORBIDDEN.search(key) for key in made):
        raise _Exploit("a key names a reward")
    return made


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_refuse)


def _action(raw: dict[str, Any], quality: float) -> Parsed:
    name = raw.get("candidate_id")
    if not isinstance(name, str) or not _ID.match(name):
        return Parsed(None, 0.0, (), "candidate_id has to be cand_NN")
    confidence = raw.get("confidence", 0.5)
    facts, rationale = raw.get("cited_facts", []), raw.get("rationale", "")
    kind = raw.get("expected_action_type")
    sound = (
        set(raw) <= _KEYS
        and isinstance(confidence, int | float)
        and not isinstance(confidence, bool)
        and 0 <= confidence <= 1
        and isinstance(facts, list)
        and len(facts) <= MAX_FACTS
        and all(isinstance(fact, str) and len(fact) <= MAX_FACT_CHARS for fact in facts)
        and isinstance(rationale, str)
        and len(rationale) <= MAX_RATIONALE
        and (kind is None or (isinstance(kind, str) and kind in _TYPES))
    )
    if not sound:
        return Parsed(None, 0.0, (), "a field is unknown or has a wrong value")
    if _hidden(rationale) or any(_hidden(fact, "") for fact in facts):  # written as \u escapes
        raise _Exploit("control or invisible characters")
    expected = ActionType(kind) if kind is not None else None
    return Parsed(Action(name, float(confidence), rationale, tuple(facts), expected), quality)
