"""Chat completions per second against an endpoint that takes 50 ms, beside bare aiohttp and bare httpx.

The endpoint is a process of its own and answers from a timer, so that the clients are what is measured.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bashgym.inference.client import ChatClient, ChatRequest, EndpointSpec
from benchmarks.measure import Result

LATENCY_S = 0.05
CONCURRENCY = 256
HTTPX_BEST = 32
"""Where httpx is fastest; its pool looks at every connection for every request."""
REPEATS = 5
SECONDS = 2.0
_REQUEST = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are a terminal agent. " * 8},
        {"role": "user", "content": "Count the words in notes.txt. " * 8},
    ],
    "temperature": 0.8,
    "top_p": 1.0,
    "max_tokens": 128,
    "seed": 1,
}
_REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "wc -w notes.txt " * 8}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140},
}

Call = Callable[[], Awaitable[None]]


def run(work: Path) -> list[Result]:
    """The same number of requests under way for all three, interleaved; and httpx where it does best."""
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.client"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        base = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        rates: dict[str, list[float]] = {name: [] for name in _CLIENTS}
        for _ in range(REPEATS):
            for name, found in rates.items():
                gc.collect()
                found.append(asyncio.run(_CLIENTS[name](base)))
    finally:
        server.terminate()
        server.wait()
    ours, *others = (statistics.median(found) for found in rates.values())
    names = ("aiohttp bare", "httpx.AsyncClient bare", f"httpx.AsyncClient bare, {HTTPX_BEST} under way")
    what = f"pass@k client, 50 ms endpoint, {CONCURRENCY} under way"
    return [
        Result(what, ours, "requests/s", "≥ 1,500", name, rate, bigger_is_better=True)
        for name, rate in zip(names, others, strict=True)
    ]


async def _rate(call: Call, under_way: int = CONCURRENCY) -> float:
    """Requests per second once the connections stand."""
    done = 0

    async def worker() -> None:
        nonlocal done
        while True:
            await call()
            done += 1

    workers = [asyncio.create_task(worker()) for _ in range(under_way)]
    await asyncio.sleep(1.0)
    before, begin = done, time.perf_counter()
    await asyncio.sleep(SECONDS)
    rate = (done - before) / (time.perf_counter() - begin)
    failed = [worker.exception() for worker in workers if worker.done()]
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert not failed, failed
    return rate


async def _ours(base: str) -> float:
    request = ChatRequest(**{key: value for key, value in _REQUEST.items() if key != "model"})
    async with ChatClient(EndpointSpec(base_url=base, model="m"), max_concurrency=CONCURRENCY) as client:

        async def call() -> None:
            reply = await client.chat(request)
            assert reply.completion_tokens == 40 and reply.text

        rate = await _rate(call)
        assert not client.usage.errors and not client.usage.retries, client.usage
        return rate


async def _aiohttp(base: str) -> float:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENCY)) as session:

        async def call() -> None:
            async with session.post(f"{base}/chat/completions", json=_REQUEST) as response:
                found = await response.json()
                assert found["choices"][0]["message"]["content"]

        return await _rate(call)


async def _httpx(base: str, under_way: int = CONCURRENCY) -> float:
    import httpx

    limits = httpx.Limits(max_connections=under_way, max_keepalive_connections=under_way)
    async with httpx.AsyncClient(limits=limits, timeout=60.0) as client:

        async def call() -> None:
            found = (await client.post(f"{base}/chat/completions", json=_REQUEST)).json()
            assert found["choices"][0]["message"]["content"]

        return await _rate(call, under_way)


async def _httpx_best(base: str) -> float:
    return await _httpx(base, HTTPX_BEST)


_CLIENTS = {"ours": _ours, "aiohttp": _aiohttp, "httpx": _httpx, "httpx best": _httpx_best}


class _Endpoint(asyncio.Protocol):
    """Answers every request LATENCY_S after its last byte."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._held = transport, b""
        body = json.dumps(_REPLY).encode()
        self._answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._answer += body

    def data_received(self, data: bytes) -> None:
        """Requests that are whole are answered, in order."""
        self._held += data
        while (cut := self._held.find(b"\r\n\r\n")) >= 0:
            head = self._held[:cut].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._held) < cut + 4 + length:
                return
            self._held = self._held[cut + 4 + length :]
            asyncio.get_running_loop().call_later(LATENCY_S, self._transport.write, self._answer)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Endpoint, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
