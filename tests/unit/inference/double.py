"""An OpenAI-compatible endpoint for tests: a real HTTP server on loopback that speaks the real wire format, or refuses to."""

import asyncio
import contextlib

from aiohttp import web

MESSAGES = [{"role": "user", "content": "hi"}]


def completion(text="hello", *, logprobs=None, tool_calls=None, finish="stop", usage=(3, 2), **changes):
    """A chat.completion object as OpenAI documents it."""
    message = {"role": "assistant", "content": text, "refusal": None}
    if tool_calls:
        message["tool_calls"] = tool_calls
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    if logprobs is not None:
        entries = [{"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []} for t, p in logprobs]
        choice["logprobs"] = {"content": entries, "refusal": None}
    prompt, made = usage
    counts = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "double"}
    return {**made, "choices": [choice], "usage": counts, **changes}


class Double:
    """Counts what arrives. `answers` are taken in order, the last one again and again.

    An answer is a dict (status 200), a (status, body, headers) triple, bytes for a body of status 200, or an async
    function from a request to a response.
    """

    def __init__(self, *answers, names=("double",)):
        self.answers, self.names = list(answers) or [completion()], list(names)
        self.bodies, self.headers, self.under_way, self.peak = [], [], 0, 0

    async def chat(self, request):
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        try:
            return await self._answer(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0], request)
        finally:
            self.under_way -= 1

    async def _answer(self, answer, request):
        if callable(answer):
            return await answer(request)
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type="application/json")
        status, body, headers = answer if isinstance(answer, tuple) else (200, answer, {})
        return web.json_response(body, status=status, headers=headers)

    async def models(self, request):
        listed = [{"id": name, "object": "model", "created": 1, "owned_by": "tests"} for name in self.names]
        return web.json_response({"object": "list", "data": listed})

    @contextlib.asynccontextmanager
    async def served(self):
        """Yields the base URL."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        finally:
            await runner.cleanup()


@contextlib.asynccontextmanager
async def raw_server(answer):
    """A server below HTTP: `answer(reader, writer)` does with each connection what it wants."""

    async def held(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(held, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
