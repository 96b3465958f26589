"""Tool calls in a model's text, in the form of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

What is no such call stays text: nothing is guessed. No torch.
"""

from __future__ import annotations

import json
from json import JSONDecoder
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MAX_CALLS = 64


def read_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """(text before the calls, [{"name", "arguments"}]). Without a whole call the text comes back as it is."""
    before, at = text.find(_OPEN), 0
    calls: list[dict[str, Any]] = []
    while len(calls) < _MAX_CALLS and (start := text.find(_OPEN, at)) >= 0:
        found = _call_at(text, start + len(_OPEN))
        if found is None:
            return text, []
        call, at = found
        calls.append(call)
    return (text[:before].strip(), calls) if calls else (text, [])


def _call_at(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = JSONDecoder().raw_decode(text, start)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    rest = text[end:].lstrip()
    # A model that ends its turn with the call may leave the closing tag out.
    if rest and not rest.startswith(_CLOSE):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments) if _is_object(arguments) else None
    if not isinstance(arguments, dict):
        return None
    return {"name": value["name"], "arguments": arguments}, len(text) - len(rest) + len(_CLOSE) * bool(rest)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
