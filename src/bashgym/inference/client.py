"""`ChatClient`: many chat completions at once from one OpenAI-compatible endpoint.

Owns: the session, how many requests are under way (`pace`), what is tried again and when.
Covers: an endpoint that is slow, down, wrong or hostile: every call ends within its tries with a reply or a typed error;
bodies are bounded, redirects are not followed, compression is not accepted, the key is in no error and no reply.
Does not cover: a hostile endpoint that hands the key out in another encoding; it has been given it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.inference.endpoint import EndpointSpec, check_endpoint, endpoint_facts
from bashgym.inference.pace import Pace
from bashgym.inference.replies import (
    ChatReply,
    ChatRequest,
    Price,
    TokenLogprob,
    ToolCall,
    Usage,
    error_text,
    malformed,
    parse_reply,
)

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

__all__ = [
    "ChatClient",
    "ChatReply",
    "ChatRequest",
    "EndpointSpec",
    "Price",
    "TokenLogprob",
    "ToolCall",
    "Usage",
    "check_endpoint",
    "endpoint_facts",
]

MAX_REPLY_BYTES = 32 << 20
MAX_ERROR_BYTES = 64 << 10
BACKOFF_S, MAX_BACKOFF_S = 0.5, 20.0
MAX_RETRY_AFTER_S = 60.0
"""A longer Retry-After is cut to this: no endpoint may park a client."""
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_CROWDED = frozenset({408, 429, 502, 503, 504, 529})
"""Answers that say: too much at once."""
_POINTLESS = frozenset({401, 403, 404})
"""Answers that no other request will change."""
_FIELDS = {
    400: ["messages"],
    422: ["messages"],
    401: ["api_key"],
    403: ["api_key"],
    404: ["base_url", "model"],
}
"""What an answer is about, if it is this request and not the endpoint's state."""


class _TryAgainError(Exception):
    """This try failed, the next may not."""

    def __init__(self, error: BashGymError, wait_s: float = 0.0, crowded: bool = False) -> None:
        super().__init__(error.message)
        self.error, self.wait_s, self.crowded = error, wait_s, crowded


class _AnsweredError(Exception):
    """The endpoint answered with a status that ends the call."""

    def __init__(self, error: BashGymError, status: int) -> None:
        super().__init__(error.message)
        self.error, self.status = error, status


class ChatClient:
    """Use as an async context manager, in one event loop. `chat` may be called any number of times at once."""

    def __init__(
        self,
        endpoint: EndpointSpec,
        *,
        timeout_s: float = 60.0,
        max_concurrency: int = 256,
        max_tries: int = 4,
        price: Price | None = None,
    ) -> None:
        self._address = check_endpoint(endpoint)
        self._key, self._model = endpoint.api_key, endpoint.model
        self._timeout_s, self._max_tries, self._price = timeout_s, max(1, max_tries), price
        self._budget_key = "max_completion_tokens" if self._address.host == "api.openai.com" else "max_tokens"
        self._pace = Pace(max_concurrency)
        self._max_concurrency = max_concurrency
        self._session: aiohttp.ClientSession | None = None
        self._naming = asyncio.Lock()
        self.usage = Usage(cost=0.0 if price is not None else None)

    async def __aenter__(self) -> Self:
        import aiohttp
        from yarl import URL

        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "bashgym"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        # The pace is what bounds the requests; the connector only keeps their connections alive.
        connector = aiohttp.TCPConnector(limit=self._max_concurrency, keepalive_timeout=30.0)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=min(10.0, self._timeout_s))
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            requote_redirect_url=False,
        )
        self._chat_url = URL(f"{self._address.base}/chat/completions")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def chat(self, request: ChatRequest) -> ChatReply:
        """One completion. `endpoint_unreachable`, `endpoint_failed`, or `endpoint_invalid` where it is no use to go on."""
        model = self._model or await self._only_model()
        body = _encoded(request.body(model, budget_key=self._budget_key))
        try:
            raw, latency_s, tries = await self._persist("POST", self._chat_url, body)
        except _AnsweredError as answer:
            raise answer.error from None
        try:
            reply = parse_reply(raw, self._address.base, self._clean, latency_s, tries)
        except BashGymError:
            self.usage.errors += 1
            raise
        self.usage.add(reply.prompt_tokens, reply.completion_tokens, self._price)
        return reply

    async def probe(self) -> None:
        """One cheap request before anything is paid for: is anybody there, and is the model? Raises as `chat`."""
        try:
            listed = await self._models()
        except _AnsweredError as answer:
            if answer.status in (401, 403):
                raise answer.error from None
            listed = []  # no such route: ask the model itself
        if not self._model or self._model not in listed:
            await self.chat(ChatRequest(messages=[{"role": "user", "content": "hi"}], max_tokens=1))

    async def models(self) -> list[str]:
        """The names that GET /models lists. Raises as `chat`."""
        try:
            return await self._models()
        except _AnsweredError as answer:
            raise answer.error from None

    async def tokenize(self, payload: dict[str, Any]) -> list[int] | None:
        """Token ids by the `/tokenize` route of vLLM and `bashgym serve-model`; None where there is no such route.

        `payload` is {"messages", "add_generation_prompt", "tools"} or {"prompt"}. Raises as `chat`.
        """
        model = self._model or await self._only_model()
        body = _encoded({"model": model, **payload})
        try:
            raw, _, _ = await self._persist("POST", f"{self._address.root}/tokenize", body)
        except _AnsweredError as answer:
            if answer.status in (404, 405):
                return None
            raise answer.error from None
        return list(self._decoded(raw, _Tokens).tokens)

    async def _models(self) -> list[str]:
        raw, _, _ = await self._persist("GET", f"{self._address.base}/models")
        return [self._clean(model.id) for model in self._decoded(raw, _Models).data]

    def _decoded(self, raw: bytes, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise malformed(self._address.base, f"what is not expected here: {self._clean(str(error))[:200]}") from None

    async def _only_model(self) -> str:
        async with self._naming:
            if not self._model:
                names = await self.models()
                if len(names) != 1:
                    listed = f"It lists: {', '.join(names[:10])}." if names else "It lists none."
                    raise fail("endpoint_invalid", f"{self._address.base}: which model?", listed[:500], ["model"])
                self._model = names[0]
            return self._model

    async def _persist(self, method: str, url: URL | str, body: bytes | None = None) -> tuple[bytes, float, int]:
        """(body, seconds of the last try, tries). Tries again with full jitter what may succeed the next time.

        `_AnsweredError` for a status that ends the call, else a typed error.
        """
        tries = 0
        while True:
            tries += 1
            try:
                raw, latency_s = await self._try(method, url, body)
                return raw, latency_s, tries
            except _TryAgainError as again:
                if tries >= self._max_tries:
                    self.usage.errors += 1
                    raise _after(again.error, tries) from None
                backoff_s = random.uniform(0, min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (tries - 1)))  # noqa: S311  jitter, no secret
                wait_s = max(again.wait_s, backoff_s)
            except (BashGymError, _AnsweredError):
                self.usage.errors += 1
                raise
            self.usage.retries += 1
            await asyncio.sleep(wait_s)

    async def _try(self, method: str, url: URL | str, body: bytes | None) -> tuple[bytes, float]:
        ticket = await self._pace.enter()
        self.usage.requests += 1
        crowded = answered = False
        begin = time.monotonic()
        try:
            raw = await self._once(method, url, body)
            answered = True
            return raw, time.monotonic() - begin
        except _TryAgainError as again:
            crowded = again.crowded
            raise
        finally:
            self._pace.leave(ticket, crowded=crowded, answered=answered)

    async def _once(self, method: str, url: URL | str, body: bytes | None) -> bytes:
        import aiohttp

        if self._session is None:
            raise RuntimeError("ChatClient is used outside of `async with`")
        where = self._address.base
        try:
            async with self._session.request(method, url, data=body, allow_redirects=False) as response:
                if response.status != 200:
                    await self._refusal(response)
                return await self._body(response, MAX_REPLY_BYTES)
        except TimeoutError:
            error = fail("endpoint_unreachable", f"{where} did not answer within {self._timeout_s:g} s")
            raise _TryAgainError(error, crowded=True) from None
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as fault:
            what = f"broke off its answer ({type(fault).__name__})"
            raise _TryAgainError(fail("endpoint_failed", f"{where} {what}")) from None
        except aiohttp.ClientSSLError as fault:
            raise fail("endpoint_unreachable", f"{where}: TLS failed: {self._clean(str(fault))[:200]}") from None
        except aiohttp.ClientResponseError as fault:
            raise malformed(where, f"what is no HTTP: {self._clean(fault.message)[:200]!r}") from None
        except (aiohttp.ClientError, OSError) as fault:
            text = self._clean(str(getattr(fault, "strerror", None) or fault))[:200]
            error = fail("endpoint_unreachable", f"{where} cannot be reached: {text}", "Is the server running?")
            raise _TryAgainError(error) from None

    async def _body(self, response: aiohttp.ClientResponse, most: int) -> bytes:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise malformed(self._address.base, "a compressed body, though none was accepted")
        if (response.content_length or 0) > most:
            raise malformed(self._address.base, f"{response.content_length} bytes; at most {most} are read")
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > most:
                raise malformed(self._address.base, f"more than {most} bytes")
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _refusal(self, response: aiohttp.ClientResponse) -> NoReturn:
        """Raises what a status other than 200 means."""
        status, where = response.status, self._address.base
        if 300 <= status < 400:
            text = f"{where} answered {status}, a redirect; redirects are not followed"
            raise _AnsweredError(fail("endpoint_invalid", text, "Give the final address.", ["base_url"]), status)
        message, code = error_text(await response.content.read(MAX_ERROR_BYTES), self._clean)
        text = f"{where} answered {status}: {message or 'no message'}"
        error = fail(
            "endpoint_invalid" if status in _POINTLESS else "endpoint_failed", text, "", _FIELDS.get(status, [])
        )
        if status not in _AGAIN or code == "insufficient_quota":
            raise _AnsweredError(error, status)
        wait_s = _retry_after(response.headers.get("Retry-After"))
        if status == 429:
            self._pace.hold(wait_s)
        raise _TryAgainError(error, wait_s, status in _CROWDED)

    def _clean(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


class _Named(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Named]


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, UnicodeEncodeError) as error:
        # Python's text may hold half a character (what a command printed, say); JSON in UTF-8 may not.
        raise fail("invalid_field", f"the messages are no JSON: {error}", fields=["messages"]) from None


def _after(error: BashGymError, tries: int) -> BashGymError:
    return fail(error.code, f"{error.message} (tried {tries} times)", error.hint, error.fields) if tries > 1 else error


def _retry_after(value: str | None) -> float:
    """Seconds to wait by a Retry-After header, in seconds or as a date; at most MAX_RETRY_AFTER_S, 0 if there is none."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return min(MAX_RETRY_AFTER_S, max(0.0, seconds)) if math.isfinite(seconds) else 0.0
