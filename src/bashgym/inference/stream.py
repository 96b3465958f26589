"""A chat completion as server-sent events, while the model is still writing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from bashgym.core.errors import BashGymError, fail
from bashgym.inference.served import error_envelope

if TYPE_CHECKING:
    from bashgym.inference.batching import Answer, Work
    from bashgym.inference.local import Row
    from bashgym.inference.served import ChatBody

_BROKEN = "\ufffd"


class ChatStream:
    """One streamed request. Text goes out once no later token can change it; with tools it goes out whole, at the end."""

    def __init__(
        self,
        request: web.Request,
        head: dict[str, Any],
        body: ChatBody,
        text: Callable[[Sequence[int]], str],
        logprobs: Callable[[Row, int], dict[str, Any]],
    ) -> None:
        self._request, self._head, self._body, self._text, self._logprobs = request, head, body, text, logprobs
        self._held_back = max(map(len, body.stops), default=1) - 1
        self._told = [0] * (body.n or 1)
        """Tokens of each answer whose log probabilities went out."""
        self._news: asyncio.Queue[tuple[int, Row, int] | None] = asyncio.Queue()

    async def run(
        self, work: list[Work], submit: Callable[[list[Work]], Awaitable[list[Answer]]], prompt_tokens: int
    ) -> web.StreamResponse:
        """Writes all events."""
        loop = asyncio.get_running_loop()
        for at, one in enumerate(work):
            one.on_token = self._listener(loop, at)
        making = asyncio.ensure_future(submit(work))
        making.add_done_callback(lambda _: self._news.put_nowait(None))
        # Refused before it began (a full queue): that is an answer with a status, not a stream.
        await asyncio.sleep(0)
        if making.done() and making.exception():
            await making
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(self._request)
        try:
            for at in range(len(work)):
                await self._send(response, at, {"role": "assistant", "content": ""})
            sent = await self._follow(response, len(work))
            try:
                await self._end(response, await making, sent, prompt_tokens)
            except (BashGymError, RuntimeError) as error:  # the status has gone out: an event has to tell
                await self._event(response, error_envelope(fail("internal", str(error)[:300])))
            await response.write(b"data: [DONE]\n\n")
        finally:
            making.cancel()
        return response

    async def _end(
        self, response: web.StreamResponse, answers: list[Answer], sent: list[str], prompt_tokens: int
    ) -> None:
        """What has not gone out yet: the rest of the texts, tool calls, reasons, counts."""
        from bashgym.inference.answers import chat_message, usage

        for at, answer in enumerate(answers):
            message, reason = chat_message(answer, bool(self._body.used_tools))
            logprobs = self._logprobs(answer.row, self._told[at]) if self._body.logprobs else None
            await self._send(response, at, _rest(message, sent[at]), reason, logprobs)
        if self._body.wants_usage:
            await self._event(response, {**self._head, "choices": [], "usage": usage([prompt_tokens], answers)})

    def _listener(self, loop: asyncio.AbstractEventLoop, at: int) -> Callable[[Row], None]:
        def told(row: Row) -> None:
            loop.call_soon_threadsafe(self._news.put_nowait, (at, row, len(row.ids)))

        return told

    async def _follow(self, response: web.StreamResponse, n: int) -> list[str]:
        """Sends text as it comes, until the answers are there. Returns what was sent of each."""
        sent = [""] * n
        while (news := await self._news.get()) is not None:
            at, row, length = news
            if self._body.used_tools:
                continue
            whole = self._text(row.ids[:length]).rstrip(_BROKEN)
            safe = whole[: max(0, len(whole) - self._held_back)]
            # A stop text that is whole ends the answer before it, and nothing behind it goes out.
            if len(safe) <= len(sent[at]) or any(stop in whole for stop in self._body.stops):
                continue
            logprobs = self._logprobs(_upto(row, length), self._told[at]) if self._body.logprobs else None
            await self._send(response, at, {"content": safe[len(sent[at]) :]}, None, logprobs)
            sent[at], self._told[at] = safe, length
        return sent

    async def _send(
        self,
        response: web.StreamResponse,
        at: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> None:
        choice = {"index": at, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
        await self._event(response, {**self._head, "choices": [choice]})

    async def _event(self, response: web.StreamResponse, doc: dict[str, Any]) -> None:
        await response.write(b"data: " + msgspec.json.encode(doc) + b"\n\n")


def _upto(row: Row, length: int) -> Row:
    from bashgym.inference.local import Row as Made

    return Made(row.ids[:length], row.logprobs[:length], row.likeliest[:length])


def _rest(message: dict[str, Any], sent: str) -> dict[str, Any]:
    """The last delta: what of the message has not been sent."""
    content = message["content"] or ""
    delta: dict[str, Any] = {"content": content[len(sent) :]} if len(content) > len(sent) else {}
    if "tool_calls" in message:
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(message["tool_calls"])]
    return delta
