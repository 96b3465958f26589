"""Canonical conversations: roles, contents, tool calls and their results, checked as they are converted.

Owns: a list of messages of any known dialect -> `{role, content, tool_calls?, tool_call_id?, name?}`, tools, weights.
Does not own: which column it came from (`formats`), how it is rendered (`tokens`).
Nothing is invented: no ids, no null keys; each row keeps its own tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from bashgym.data.findings import Collector
from bashgym.data.jsonfaults import json_type
from bashgym.data.types import Severity

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
}
"""Role names of the known dialects -> the four that templates know."""
_CALL_ROLES = ("function_call", "tool_call")
_KEPT_KEYS = frozenset(("role", "from", "content", "value", "tool_calls", "tool_call_id", "name")) | {
    "loss_weight",
    "weight",
    "function_call",
    "reasoning_content",
}
_MAX_ARGUMENT_DEPTH = 64
_KNOWN = "system, user, assistant, tool, human, gpt, function_call, observation"


class Conversation(msgspec.Struct):
    """What became of one list of messages."""

    messages: list[dict[str, Any]]
    weights: list[float] | None = None


class PlainSizes(NamedTuple):
    """Of plain conversations: their roles, the characters of the last message and of all before it."""

    shapes: list[tuple[str, ...]]
    before: list[int]
    last: list[int]


def plain_sizes(conversations: list[Any]) -> PlainSizes | None:
    """If every message of all is just `{role, content: text that is not blank}` in healthy order; else None.

    Most rows of most files are like that. Looking at thousands at once costs a fifth of `normalise` and `check`.
    """
    if set(map(type, conversations)) != {list}:
        return None
    flat = list(chain.from_iterable(conversations))
    if set(map(type, flat)) != {dict} or set(map(len, flat)) != {2}:
        return None
    try:
        roles, contents = [turn["role"] for turn in flat], [turn["content"] for turn in flat]
        if set(map(type, contents)) != {str} or not all(contents) or any(map(str.isspace, contents)):
            return None
        ends = list(accumulate(map(len, conversations)))
        shapes = [tuple(roles[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        if not all(map(is_healthy, set(shapes))):
            return None
    except (KeyError, TypeError):
        return None
    sizes = [0, *accumulate(map(len, contents))]
    starts = [0, *ends]
    before = [sizes[end - 1] - sizes[start] for start, end in zip(starts, ends, strict=False)]
    return PlainSizes(shapes, before, [sizes[end] - sizes[end - 1] for end in ends])


@lru_cache(maxsize=4096)
def is_healthy(roles: tuple[str, ...]) -> bool:
    """Canonical roles in an order that raises no remark, without tool turns."""
    return "tool" not in roles and all(ROLES.get(role) == role for role in roles) and not sequence_remarks(roles)


@lru_cache(maxsize=4096)
def sequence_remarks(roles: tuple[str, ...]) -> tuple[tuple[str, Severity, str], ...]:
    """(code, severity, message) about the order of canonical roles."""
    remarks = []
    turns = [role for role in roles if role != "system"]
    if "assistant" not in roles:
        remarks.append(("no_assistant_turn", Severity.ERROR, "there is no assistant turn, so nothing would be trained"))
    elif turns[0] == "assistant":
        remarks.append(("starts_with_assistant", Severity.WARNING, "the conversation starts with an assistant turn"))
    if any(pair == ("user", "user") for pair in pairwise(turns)):
        remarks.append(("consecutive_user_turns", Severity.WARNING, "two user turns in a row"))
    if "system" in roles[1:]:
        remarks.append(
            ("late_system_turn", Severity.WARNING, "a system turn after the first turn; many chat templates refuse it")
        )
    return tuple(remarks)


def normalise(raw: object, number: int, collector: Collector, *, column: str = "messages") -> Conversation | None:
    """A conversation in canonical form, or None after an error about the row. `check` looks at turns and tool pairs."""
    if not isinstance(raw, list) or not raw:
        found = "an empty list" if raw == [] else f"a {json_type(raw)}"
        collector.error(
            "messages_not_list",
            f"{column} must be a non-empty list of messages, found {found}",
            number,
            column,
            sample=raw,
        )
        return None
    errors = collector.errors
    messages = [_message(item, number, collector, column) for item in raw]
    weights = [_weight(item, number, collector) for item in raw]
    if collector.errors != errors:
        return None
    weighted = any(weight is not None for weight in weights)
    return Conversation(
        [message for message in messages if message is not None],
        [1.0 if weight is None else weight for weight in weights] if weighted else None,
    )


def check(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, number: int, collector: Collector
) -> None:
    """Remarks about the order of turns, empty answers, and tool calls against results and against `tools`."""
    for code, severity, text in sequence_remarks(tuple(message["role"] for message in messages)):
        collector.add(code, severity, text, row=number, field="messages")
    for message in messages:
        if message["role"] == "assistant" and not message.get("tool_calls") and not (message["content"] or "").strip():
            collector.warn("empty_assistant_turn", "an assistant turn is empty", number, "messages")
            break
    if any(m["role"] == "user" and str(m["content"]).startswith("OBSERVATION:") for m in messages):
        collector.add(
            "observations_as_user",
            Severity.INFO,
            "tool results stand in user turns that begin with OBSERVATION:; as user turns they are not trained on",
            row=number,
        )
    _check_names(messages, tools, number, collector)
    _check_pairing(messages, number, collector)


def parse_tools(raw: Any, number: int, collector: Collector) -> list[dict[str, Any]] | None:
    """The tools of a row as a list of `{"type": "function", "function": {...}}`, from a list or a JSON string."""
    if isinstance(raw, str) and raw.strip():
        try:
            raw = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            collector.error(
                "tools_invalid", "the tools column is a string that is not valid JSON", number, "tools", sample=raw
            )
            return None
    if not raw or (isinstance(raw, str) and not raw.strip()):
        return None
    tools = raw if isinstance(raw, list) else [raw]
    parsed = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or _too_deep(function):
            collector.error("tools_invalid", "a tool is not an object with a name", number, "tools", sample=tool)
            return None
        parsed.append(tool if "function" in tool else {"type": "function", "function": function})
    return parsed


def _message(item: object, number: int, collector: Collector, column: str) -> dict[str, Any] | None:
    if not isinstance(item, dict):
        collector.error(
            "message_not_object", f"a message is a {json_type(item)}, not an object", number, column, sample=item
        )
        return None
    given = item.get("role", item.get("from"))
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        text = f"unknown role {given[:40]!r}" if isinstance(given, str) else "a message has no role"
        collector.error("unknown_role", f"{text}; known are {_KNOWN}", number, column)
        return None
    for key in item.keys() - _KEPT_KEYS:
        collector.add(
            "message_key_ignored",
            Severity.INFO,
            f"the message key {key[:40]!r} is not used",
            row=number,
            field=key[:40],
        )
    raw = item.get("content", item.get("value"))
    message: dict[str, Any] = {"role": role, "content": None}
    calls = raw if given in _CALL_ROLES else item.get("tool_calls") or item.get("function_call")
    if calls or given in _CALL_ROLES:
        message["tool_calls"] = _tool_calls(calls, number, collector)
    if given not in _CALL_ROLES and (raw is not None or not calls or role != "assistant"):
        message["content"] = _content(raw, role, number, collector, column)
    for key in ("tool_call_id", "name", "reasoning_content"):
        if isinstance(item.get(key), str):
            message[key] = item[key]
    return message


def _content(raw: object, role: str, number: int, collector: Collector, column: str) -> str | None:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, list) and raw:
        texts = [_part_text(part) for part in raw]
        if None not in texts:
            return "".join(text or "" for text in texts)
        kinds = {str(part.get("type", "?")) if isinstance(part, dict) else json_type(part) for part in raw}
        named = ", ".join(sorted(kinds - {"text"})[:3]) or "text without a string"
        collector.error(
            "content_not_text",
            f"the content of a {role} turn has parts that are not text ({named[:80]})",
            number,
            column,
        )
        return None
    problem = "is missing" if raw is None else f"is a {json_type(raw)}, not a string"
    collector.error("content_not_text", f"the content of a {role} turn {problem}", number, column, sample=raw)
    return None


def _part_text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type", "text") not in ("text", "input_text", "output_text"):
        return None
    text = part.get("text", part.get("value"))
    return text if isinstance(text, str) else None


def _weight(item: object, number: int, collector: Collector) -> float | None:
    weight = item.get("loss_weight", item.get("weight")) if isinstance(item, dict) else None
    if weight is None:
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not (isfinite(weight) and 0 <= weight <= 1e6):
        collector.error(
            "loss_weight_invalid", "a loss weight is not a number from 0 up", number, "loss_weight", sample=weight
        )
        return None
    return float(weight)


def _tool_calls(raw: Any, number: int, collector: Collector) -> list[dict[str, Any]]:
    """Calls with arguments as objects; ids only where the row has them."""
    if isinstance(raw, str):
        raw = _json(raw)
    calls = []
    for call in raw if isinstance(raw, list) and raw else [raw]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            collector.error(
                "tool_call_invalid",
                "a tool call is not an object with a function name",
                number,
                "tool_calls",
                sample=call,
            )
            continue
        arguments = function.get("arguments", function.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _json(arguments) if arguments.strip() else {}
        if not isinstance(arguments, dict) or _too_deep(arguments):
            text = f"the arguments of a call of {function['name'][:40]!r} are not a valid JSON object"
            collector.error("tool_arguments_invalid", text, number, "tool_calls", sample=function.get("arguments"))
            continue
        if None in arguments.values():
            collector.warn(
                "tool_arguments_null",
                "tool-call arguments hold null values, perhaps filled in by a loader; a model learns to write them",
                number,
                "tool_calls",
            )
        identity = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        calls.append({**identity, "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return calls


def _check_names(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, number: int, collector: Collector
) -> None:
    known = {tool["function"]["name"] for tool in tools or ()}
    if not known:
        return
    called = {call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    for name in sorted(called - known):
        collector.error(
            "tool_unknown", f"the tool {name[:40]!r} is called but is not in the tools column", number, "tool_calls"
        )


def _check_pairing(messages: Sequence[dict[str, Any]], number: int, collector: Collector) -> None:
    """Every call has its result before the next turn, every result its call. Calls in the last turn may stay open."""
    waiting: list[str | None] = []
    for message in messages:
        if message["role"] == "tool":
            identity = message.get("tool_call_id")
            if identity is None and waiting:
                waiting.pop(0)
            elif identity is not None and identity in waiting:
                waiting.remove(identity)
            elif identity is not None and None in waiting:
                waiting.remove(None)
            else:
                name = f" for the unknown id {identity[:40]!r}" if identity else " without a tool call before it"
                collector.error("tool_result_unknown", f"a tool result{name}", number, "messages")
            continue
        _report_waiting(waiting, number, collector)
        waiting = [call.get("id") for call in message.get("tool_calls", ())]
    if messages and messages[-1]["role"] == "tool":
        _report_waiting(waiting, number, collector)


def _report_waiting(waiting: list[str | None], number: int, collector: Collector) -> None:
    for identity in waiting:
        name = f" {identity[:40]!r}" if identity else ""
        collector.error("tool_call_without_result", f"the tool call{name} has no result", number, "messages")


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _too_deep(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(_MAX_ARGUMENT_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True
