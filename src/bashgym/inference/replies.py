"""What is asked of a chat endpoint and what it may answer: the request, the checked reply, and what both cost.

Replies are foreign data. What is used of them has the right type, finite numbers and a bounded size, or the whole
reply is refused with what is wrong with it; nothing is repaired silently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bashgym.core.errors import fail

MAX_LOGPROB = 1e-3
"""A log probability is at most 0; this leaves room for rounding."""
_MAX_TOOL_CALLS = 1024


class ChatRequest(msgspec.Struct, kw_only=True):
    """One chat completion to ask for."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 512
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    stop: list[str] | None = None

    def body(self, model: str, *, budget_key: str = "max_tokens") -> dict[str, Any]:
        """The JSON body. Only what was set is sent: some servers refuse fields they do not know."""
        body: dict[str, Any] = {
            "model": model,
            "messages": self.messages,
            "temperature": self.temperature,
            "top_p": self.top_p,
            budget_key: self.max_tokens,
        }
        for name in ("tools", "stop"):
            if value := getattr(self, name):
                body[name] = value
        for name in ("tool_choice", "seed"):
            if (value := getattr(self, name)) is not None:
                body[name] = value
        if self.logprobs:
            body |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return body


class TokenLogprob(msgspec.Struct):
    """A generated token and its natural log probability."""

    token: str
    logprob: float
    token_id: int | None = None
    """Where the endpoint tells it: a `token_id` beside the token, or tokens of the form `token_id:N`."""


class ToolCall(msgspec.Struct):
    """A tool call of the model. Neither name nor arguments are checked against the tools."""

    id: str
    name: str
    arguments: str
    """JSON text as the model sent it; may be no JSON at all."""


class ChatReply(msgspec.Struct):
    """A checked reply."""

    text: str
    tool_calls: list[ToolCall]
    finish_reason: str
    """`stop`, `length`, `tool_calls` ..., as the endpoint says; empty if it does not."""
    prompt_tokens: int
    completion_tokens: int
    logprobs: list[TokenLogprob] | None
    """None if the endpoint sent none, whether or not they were asked for."""
    latency_s: float
    """Of the try that succeeded."""
    tries: int
    model: str
    """As the endpoint names it."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tokens cost, per million."""

    prompt_per_million: float = 0.0
    completion_per_million: float = 0.0


class Usage(msgspec.Struct):
    """What a client has used so far."""

    requests: int = 0
    """HTTP requests sent, retries included."""
    retries: int = 0
    errors: int = 0
    """Calls that ended in an error."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0
    """Replies that did not say how many tokens they used; their cost is not in `cost`."""
    cost: float | None = None
    """None without a price."""

    def add(self, prompt: int, completion: int, price: Price | None) -> None:
        """Counts one reply."""
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.unmetered += not (prompt or completion)
        if price is not None:
            spent = prompt * price.prompt_per_million + completion * price.completion_per_million
            self.cost = (self.cost or 0.0) + spent / 1e6


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Token(msgspec.Struct):
    token: str
    logprob: float
    token_id: int | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: _Counts | None = None


_decoder = msgspec.json.Decoder(_Completion)


def parse_reply(raw: bytes, where: str, clean: Callable[[str], str], latency_s: float, tries: int) -> ChatReply:
    """The reply in a body of status 200. `endpoint_failed` names what is wrong. `clean` takes secrets out of texts."""
    try:
        found = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise malformed(where, f"a reply of the wrong form: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise malformed(where, _json_fault(raw, error, clean)) from None
    if not found.choices:
        raise malformed(where, "a completion without choices")
    choice, usage = found.choices[0], found.usage or _Counts()
    if usage.prompt_tokens < 0 or usage.completion_tokens < 0:
        raise malformed(where, "a negative token count")
    return ChatReply(
        text=clean(choice.message.content or ""),
        tool_calls=_tool_calls(choice.message.tool_calls or [], where, clean),
        finish_reason=clean(choice.finish_reason or "")[:64],
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        logprobs=_logprobs(choice.logprobs, where, clean),
        latency_s=latency_s,
        tries=tries,
        model=clean(found.model or "")[:256],
    )


def malformed(where: str, what: str) -> Exception:
    """`endpoint_failed` for a reply that is no completion."""
    return fail("endpoint_failed", f"{where} sent {what}", "Is it an OpenAI-compatible chat endpoint?")


def error_text(raw: bytes, clean: Callable[[str], str]) -> tuple[str, str]:
    """(message, code) of an error body: the known envelopes, else its first characters on one line."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        found = None
    error = found.get("error", found) if isinstance(found, Mapping) else None
    if isinstance(error, Mapping):
        message, code = error.get("message") or error.get("detail"), error.get("code") or error.get("type")
        if isinstance(message, str):
            return _line(clean(message)), code if isinstance(code, str) else ""
    text = error if isinstance(error, str) else raw[:2000].decode("utf-8", "replace")
    return _line(clean(text)), ""


def _line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]


def _json_fault(raw: bytes, error: Exception, clean: Callable[[str], str]) -> str:
    if isinstance(error, RecursionError):
        return "JSON that is nested too deeply"
    if b"NaN" in raw or b"Infinity" in raw:
        return f"a number that is NaN or infinite, which is no JSON ({error})"
    start = _line(clean(raw[:2000].decode("utf-8", "replace")))[:80]
    return f"what is no JSON ({error}); it begins {start!r}" if start else "an empty body"


def _tool_calls(calls: list[_Call], where: str, clean: Callable[[str], str]) -> list[ToolCall]:
    if len(calls) > _MAX_TOOL_CALLS:
        raise malformed(where, f"{len(calls)} tool calls in one turn")
    made = []
    for at, call in enumerate(calls):
        given = call.function.arguments
        arguments = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
        made.append(ToolCall(clean(call.id or f"call_{at}"), clean(call.function.name), clean(arguments)))
    return made


def _logprobs(found: _Logprobs | None, where: str, clean: Callable[[str], str]) -> list[TokenLogprob] | None:
    if found is None or found.content is None:
        return None
    made = []
    for at, entry in enumerate(found.content):
        if not math.isfinite(entry.logprob) or entry.logprob > MAX_LOGPROB:
            raise malformed(where, f"logprobs.content[{at}] with the log probability {entry.logprob}")
        identity = entry.token_id
        if identity is None and entry.token.startswith("token_id:") and entry.token[9:].isdecimal():
            identity = int(entry.token[9:19])
        if identity is not None and identity < 0:
            raise malformed(where, f"logprobs.content[{at}] with the token id {identity}")
        made.append(TokenLogprob(clean(entry.token), min(0.0, entry.logprob), identity))
    return made
