"""A model's answer, read strictly: one JSON object of known keys. What tries to be more than an answer is flagged."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import msgspec

from polyguard.env.types import Action, ActionType

MAX_BYTES = 4096
MAX_DEPTH = 6
MAX_RATIONALE, MAX_FACTS, MAX_FACT_CHARS = 600, 8, 64
_ID = re.compile(r"cand_\d{2}\Z")
_KEYS = frozenset({"candidate_id", "confidence", "rationale", "cited_facts", "expected_action_type"})
_FORBIDDEN = re.compile(r"reward|score", re.IGNORECASE)
_FENCE = re.compile(r"```(?:json)?\s*\n?(.*?)\n?```", re.DOTALL)


class Parsed(msgspec.Struct, frozen=True):
    """What was read."""

    action: Action | None
    format: float
    """1 as asked for, 0.5 after a repair, 0 unreadable."""
    flags: tuple[str, ...] = ()
    """`hard:parser_exploit`, or nothing."""
    problem: str = ""
    exploit: str = ""
    """Why it is one."""


def parse_action(text: str) -> Parsed:
    """Reads an answer. Never raises."""
    if exploit := _exploit(text):
        return Parsed(None, 0.0, ("hard:parser_exploit",), "not readable", exploit)
    stripped = text.strip()
    whole = _object(stripped)
    if isinstance(whole, dict):
        return _action(whole, 1.0)
    inner = _FENCE.search(stripped)
    start, end = stripped.find("{"), stripped.rfind("}")
    part = inner.group(1) if inner else stripped[start : end + 1] if 0 <= start < end else ""
    found = _object(part.strip())
    return _action(found, 0.5) if isinstance(found, dict) else Parsed(None, 0.0, (), "no JSON object")


def _exploit(text: str) -> str:
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        return f"more than {MAX_BYTES} bytes"
    if any(unicodedata.category(c) in ("Cf", "Cc", "Cs") and c not in "\n\t\r" for c in text):
        return "control or invisible characters"
    depth = deepest = objects = 0
    for c in text:
        depth += (c in "{[") - (c in "}]")
        deepest = max(deepest, depth)
        objects += c == "{" and depth == 1
    if deepest > MAX_DEPTH:
        return f"nested more than {MAX_DEPTH} deep"
    if objects > 1:
        return "more than one JSON object"
    keys = re.findall(r'"((?:[^"\\]|\\.)*)"\s*:', text)
    if len(keys) != len(set(keys)):
        return "a key stands twice"
    return "a key names a reward" if any(_FORBIDDEN.search(key) for key in keys) else ""


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


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
        and (kind is None or kind in set(ActionType))
    )
    if not sound:
        return Parsed(None, 0.0, (), "a field is unknown or has a wrong value")
    expected = ActionType(kind) if kind is not None else None
    return Parsed(Action(name, float(confidence), rationale, tuple(facts), expected), quality)
