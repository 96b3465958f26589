"""How a predicted tool call is scored against the gold one."""

from __future__ import annotations

import json
from typing import Any

METRICS = ("exact_match", "name_match", "arg_f1", "soft")
BINARY = frozenset({"exact_match", "name_match"})
Call = tuple[str, Any]
"""(tool name, arguments: an object, or JSON text of one)."""


def score(metric: str, predicted: Call | None, gold: Call) -> float:
    """In [0, 1]. No call at all scores 0."""
    if predicted is None:
        return 0.0
    named = float(bool(gold[0]) and predicted[0] == gold[0])
    if metric == "name_match":
        return named
    f1 = arg_f1(predicted[1], gold[1])
    if metric == "arg_f1":
        return f1
    if metric == "exact_match":
        return float(named == 1.0 and f1 == 1.0)
    return named * (0.4 + 0.6 * f1)


def arg_f1(predicted: Any, gold: Any) -> float:
    """F1 over keys whose values are equal; strings are compared stripped and in lower case. Both empty 1, one empty 0."""
    ours, theirs = _arguments(predicted), _arguments(gold)
    if ours is None or theirs is None:
        return float(ours is None and theirs is None)
    if not ours and not theirs:
        return 1.0
    same = sum(key in ours and _normal(ours[key]) == _normal(value) for key, value in theirs.items())
    return 2 * same / (len(ours) + len(theirs)) if same else 0.0


def _arguments(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError):
            return None
    return {} if value is None else value if isinstance(value, dict) else None


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().lower()
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    # JSON has true and 1 as different values; Python does not.
    return (type(value).__name__, value) if isinstance(value, bool) else value


def first_call(message: Any) -> Call | None:
    """The first tool call of an assistant message in OpenAI's form; None if it has none."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not calls or not isinstance(calls[0], dict):
        return None
    function = calls[0].get("function", calls[0])
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    return function["name"], function.get("arguments")
