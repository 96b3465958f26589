"""What a served model may be asked: OpenAI's request bodies, checked. No torch.

A field that would change the answer and is not supported is refused by name, never ignored.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.data.findings import Collector
from bashgym.data.messages import normalise

MAX_CHOICES = 16
MAX_ALTERNATIVES = 20
DEFAULT_TOKENS = 512
_Text = str | list[dict[str, Any]]


class ServeConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The one argument of the serving process."""

    path: str
    adapter_path: str | None = None
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    threads: int | None = None
    max_batch: int = 64
    announce: bool = False
    """Say on stdout, as JSON, where the endpoint is; the person at the terminal is told on stderr anyway."""
    parent_pid: int | None = None
    """The server ends when this is no longer its parent; null lets it live on."""


class _Generation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields that both kinds of completion share."""

    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    user: str | None = None
    # Only their neutral values are taken.
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    def check(self) -> None:
        """`invalid_field` for what is out of bounds or not supported."""
        _need(self.temperature is None or 0 <= self.temperature <= 2, "temperature", "0 to 2")
        _need(self.top_p is None or 0 < self.top_p <= 1, "top_p", "above 0, at most 1")
        _need(self.n is None or 1 <= self.n <= MAX_CHOICES, "n", f"1 to {MAX_CHOICES}")
        _need(self.seed is None or abs(self.seed) < 1 << 63, "seed", "a 64-bit integer")
        _need(
            len(self.stops) <= 16 and all(0 < len(stop) <= 256 for stop in self.stops), "stop", "up to 16 short texts"
        )
        for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
            _need(not getattr(self, name), name, "not supported here; leave it out")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def root_seed(self) -> int:
        """The seed, non-negative; a random one where none was given."""
        return self.seed % (1 << 63) if self.seed is not None else secrets.randbits(63)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool((self.stream_options or {}).get("include_usage"))


class ChatBody(_Generation):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None

    def check(self) -> None:
        """As `_Generation.check`."""
        super().check()
        _need(self.budget is None or self.budget >= 1, "max_tokens", "1 or more")
        top = self.top_logprobs or 0
        _need(0 <= top <= MAX_ALTERNATIVES, "top_logprobs", f"0 to {MAX_ALTERNATIVES}")
        _need(not top or bool(self.logprobs), "top_logprobs", "only together with logprobs")
        _need(self.tool_choice in (None, "auto", "none"), "tool_choice", "auto or none; a call cannot be forced here")
        kind = (self.response_format or {}).get("type", "text")
        _need(kind == "text", "response_format", "text; constrained decoding is not supported here")
        for at, tool in enumerate(self.tools or []):
            function = tool.get("function")
            named = isinstance(function, dict) and isinstance(function.get("name"), str)
            _need(tool.get("type") == "function" and named, "tools", f"functions with a name; tools[{at}] is none")

    @property
    def budget(self) -> int | None:
        """The most tokens of an answer, under either name."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def used_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the model is told of."""
        return self.tools if self.tools and self.tool_choice != "none" else None

    def conversation(self) -> list[dict[str, Any]]:
        """The messages in the form that training rows have: contents as text, arguments as objects, no nulls."""
        return conversation(self.messages)


class TextBody(_Generation):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def check(self) -> None:
        """As `_Generation.check`."""
        super().check()
        least = 0 if self.echo else 1
        _need(self.max_tokens is None or self.max_tokens >= least, "max_tokens", f"{least} or more")
        _need(0 <= (self.logprobs or 0) <= MAX_ALTERNATIVES, "logprobs", f"0 to {MAX_ALTERNATIVES}")
        _need(self.suffix is None, "suffix", "not supported here")
        _need(self.best_of in (None, 1), "best_of", "not supported here")
        _need(not self.stream, "stream", "not supported for plain completions")

    def prompts(self) -> list[str | list[int]]:
        """The prompts, texts or token ids. A list of numbers is one prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [given for given in self.prompt if isinstance(given, int)]
        if ids and len(ids) == len(self.prompt):
            return [ids]
        found = [given for given in self.prompt if not isinstance(given, int)]
        _need(0 < len(found) <= MAX_CHOICES and not ids, "prompt", f"1 to {MAX_CHOICES} texts or lists of token ids")
        return found


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /tokenize, as vLLM has it."""

    model: str = ""
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None


def read_body(raw: bytes, kind: type[Any]) -> Any:
    """A body of that kind, checked. `body_unreadable` for no JSON, `invalid_field` for the rest."""
    try:
        body = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise fail("invalid_field", str(error)[:300]) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise fail("body_unreadable", f"the body is no JSON: {str(error)[:200]}") from None
    if isinstance(body, _Generation):
        body.check()
    return body


def conversation(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI messages in the form that training rows have. `invalid_field` with what is wrong."""
    collector = Collector([])
    made = normalise(raw, 1, collector)
    if made is None:
        problem = next((issue for issue in collector.issues if issue.severity == "error"), None)
        raise fail("invalid_field", problem.message if problem else "the messages are not valid", fields=["messages"])
    return [{key: value for key, value in message.items() if value is not None} for message in made.messages]


def error_envelope(error: BashGymError) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = "invalid_request_error" if error.http_status < 500 else "server_error"
    text = f"{error.message} {error.hint}".strip()
    param = error.fields[0] if error.fields else None
    return {"error": {"message": text, "type": kind, "param": param, "code": error.code}}


def _need(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise fail("invalid_field", f"{name}: {what}", fields=[name])
