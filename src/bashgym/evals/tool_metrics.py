"""How a predicted tool call is scored against the gold one. A prediction is a model's word: anything may be in it."""

from __future__ import annotations

import json
from typing import Any

METRICS = ("exact_match", "name_match", "arg_f1", "soft")
BINARY = frozenset({"exact_match", "name_match"})
Call = tuple[str, Any]
"""(tool name, arguments: an object, or JSON text of one)."""


def score(metric: str, predicted: Call | None, gold: Call) -> float:
    """In [0, 1]. No call at all scores 0, and so do arguments that are no JSON object."""
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
    try:
        ours, theirs = _arguments(predicted), _arguments(gold)
        if ours is None or theirs is None:
            return 0.0
        if not ours and not theirs:
            return 1.0
        same = sum(key in ours and _normal(ours[key]) == _normal(value) for key, value in theirs.items())
    except RecursionError:
        return 0.0  # nested deeper than any gold call
    return 2 * same / (len(ours) + len(theirs)) if same else 0.0


def _arguments(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError:
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
