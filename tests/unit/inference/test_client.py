"""The chat client against real servers on loopback that are good, slow, wrong and hostile."""

import asyncio
import json
import time

import pytest
from aiohttp import web

from bashgym.core.errors import BashGymError
from bashgym.inference import client as module
from bashgym.inference.client import ChatClient, ChatRequest, EndpointSpec, Price
from tests.unit.inference.double import MESSAGES, Double, completion, raw_server

KEY = "sk-secret-0123456789abcdef"
ASK = ChatRequest(messages=MESSAGES)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "BACKOFF_S", 0.01)


def ask(double, request=ASK, *, model="double", **options):
    """(reply or error, client) of one chat with a double."""

    async def go():
        async with double.served() as base:
            return await one(base, request, model=model, **options)

    return asyncio.run(go())


async def one(base, request=ASK, *, model="double", **options):
    async with ChatClient(EndpointSpec(base_url=base, model=model, api_key=KEY), **options) as chat:
        try:
            return await chat.chat(request), chat
        except BashGymError as error:
            assert KEY not in json.dumps(error.detail())
            return error, chat


def refused(double, code, *words, **options):
    error, chat = ask(double, **options)
    assert isinstance(error, BashGymError), error
    assert error.code == code, error
    for word in words:
        assert word in error.message
    assert chat.usage.errors == 1
    return error, chat


def test_a_whole_reply_with_tools_logprobs_and_cost():
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    double = Double(
        completion(None, tool_calls=[call], finish="tool_calls", logprobs=[("a", -0.5), ("b", 0.0)], usage=(1000, 500))
    )
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    request = ChatRequest(
        messages=MESSAGES, tools=tools, tool_choice="auto", seed=7, logprobs=True, top_logprobs=2, stop=["x"]
    )
    reply, chat = ask(double, request, price=Price(prompt_per_million=2.0, completion_per_million=8.0))
    assert reply.text == "" and reply.finish_reason == "tool_calls" and reply.model == "double" and reply.tries == 1
    assert [(c.id, c.name, c.arguments) for c in reply.tool_calls] == [("c1", "bash", '{"command": "ls"}')]
    assert [(p.token, p.logprob) for p in reply.logprobs] == [("a", -0.5), ("b", 0.0)]
    assert 0 < reply.latency_s < 5
    assert chat.usage.cost == pytest.approx(0.006) and chat.usage.prompt_tokens == 1000 and chat.usage.requests == 1
    assert double.headers[0]["Authorization"] == f"Bearer {KEY}"
    sent = double.bodies[0]
    assert sent["tools"] == tools and sent["seed"] == 7 and sent["logprobs"] is True and sent["top_logprobs"] == 2
    assert sent["stop"] == ["x"] and sent["max_tokens"] == 512 and sent["temperature"] == 0.0


def test_only_what_was_set_is_sent():
    double = Double()
    ask(double)
    assert set(double.bodies[0]) == {"model", "messages", "temperature", "top_p", "max_tokens"}


def test_the_double_speaks_what_the_official_client_reads():
    import openai

    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    double = Double(
        completion("hi", tool_calls=[call], logprobs=[("h", -1.0)]), (429, {"error": {"message": "slow"}}, {})
    )

    async def go():
        async with double.served() as base, openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=0) as official:
            listed = [model.id async for model in official.models.list()]
            made = await official.chat.completions.create(model="double", messages=MESSAGES, logprobs=True)
            with pytest.raises(openai.RateLimitError, match="slow"):
                await official.chat.completions.create(model="double", messages=MESSAGES)
            return listed, made

    listed, made = asyncio.run(go())
    assert listed == ["double"] and made.choices[0].message.content == "hi" and made.usage.total_tokens == 5
    assert made.choices[0].logprobs.content[0].logprob == -1.0
    assert made.choices[0].message.tool_calls[0].function.name == "bash"


def test_an_empty_model_name_takes_the_only_one_or_asks():
    reply, _ = ask(Double(), model="")
    assert reply.text == "hello"
    error, _ = ask(Double(names=["a", "b"]), model="")
    assert error.code == "endpoint_invalid" and "a, b" in error.hint


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status):
    reply, chat = ask(Double((status, {"error": {"message": "later"}}, {}), completion()))
    assert reply.tries == 2 and chat.usage.retries == 1 and chat.usage.requests == 2 and chat.usage.errors == 0


@pytest.mark.parametrize(
    ("status", "code"),
    [(status, "endpoint_failed") for status in (400, 405, 413, 422, 501)]
    + [(status, "endpoint_invalid") for status in (401, 403, 404)],
)
def test_what_will_not_pass_is_asked_once(status, code):
    double = Double((status, {"error": {"message": f"no, {KEY}"}}, {}))
    _, chat = refused(double, code, str(status), "no, [key]")
    assert len(double.bodies) == 1 and chat.usage.retries == 0


def test_an_exhausted_quota_is_not_tried_again():
    double = Double((429, {"error": {"message": "pay", "code": "insufficient_quota"}}, {}))
    refused(double, "endpoint_failed", "pay")
    assert len(double.bodies) == 1


def test_tries_end():
    double = Double((503, {"error": "busy"}, {}))
    refused(double, "endpoint_failed", "503", "busy", "tried 3 times", max_tries=3)
    assert len(double.bodies) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_waited_for(status):
    begin = time.monotonic()
    reply, _ = ask(Double((status, {}, {"Retry-After": "0.3"}), completion()))
    assert reply.tries == 2 and 0.3 <= time.monotonic() - begin < 2


def test_retry_after_holds_new_requests_back_too():
    double = Double((429, {}, {"Retry-After": "0.3"}), completion())

    async def go():
        async with double.served() as base, ChatClient(EndpointSpec(base_url=base, model="double")) as chat:
            first = asyncio.create_task(chat.chat(ASK))
            await asyncio.sleep(0.1)
            begin = time.monotonic()
            await chat.chat(ASK)
            await first
            return time.monotonic() - begin

    assert asyncio.run(go()) >= 0.15


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (None, 0, 0),
        ("", 0, 0),
        ("2", 2, 2),
        ("-5", 0, 0),
        ("nan", 0, 0),
        ("inf", 0, 60),
        ("1e9", 60, 60),
        ("soon", 0, 0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 60, 60),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
    ],
)
def test_retry_after_is_bounded(value, low, high):
    assert low <= module._retry_after(value) <= high


def test_a_slow_endpoint_is_unreachable_after_its_time():
    async def slow(request):
        await asyncio.sleep(30)

    begin = time.monotonic()
    refused(Double(slow), "endpoint_unreachable", "0.2 s", timeout_s=0.2, max_tries=2)
    assert time.monotonic() - begin < 2


def test_a_body_that_trickles_ends_at_the_time_out():
    async def trickle(request):
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    refused(Double(trickle), "endpoint_unreachable", timeout_s=0.3, max_tries=1)


def test_nobody_listens():
    error, chat = asyncio.run(one("http://127.0.0.1:9/v1", max_tries=2))
    assert error.code == "endpoint_unreachable" and "tried 2 times" in error.message and chat.usage.requests == 2


def test_a_redirect_is_not_followed():
    double = Double((302, {}, {"Location": "http://127.0.0.1:1/steal"}))
    refused(double, "endpoint_invalid", "redirect")
    assert len(double.bodies) == 1


def with_logprobs(entry):
    return b'{"choices": [{"message": {"content": "a"}, "logprobs": {"content": [' + entry + b"]}}]}"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"<html><body>Welcome</body></html>", "no JSON"),
        (b"", "empty body"),
        (b'{"choices": [{"message": {"content": "he', "no JSON"),
        (b"[]", "wrong form"),
        (b"{}", "wrong form"),
        (b'{"choices": []}', "without choices"),
        (b'{"choices": [{"message": {"content": 5}}]}', "content"),
        (b'{"choices": [{"message": {"content": ["a"]}}]}', "content"),
        (b'{"choices": {"0": 1}}', "choices"),
        (b'{"choices": [{"message": {"content": "a", "tool_calls": [{"function": {"arguments": "x"}}]}}]}', "name"),
        (b'{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": "3"}}', "prompt_tokens"),
        (b'{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": -3}}', "negative"),
        (with_logprobs(b'{"token": "a", "logprob": NaN}'), "NaN"),
        (with_logprobs(b'{"token": "a", "logprob": -Infinity}'), "infinite"),
        (with_logprobs(b'{"token": "a", "logprob": 0.5}'), "0.5"),
        (with_logprobs(b'{"token": "a", "logprob": -1e999}'), ""),
        (with_logprobs(b'{"token": "a", "logprob": null}'), "logprob"),
        (with_logprobs(b'{"token": "a", "logprob": "-1"}'), "logprob"),
        (with_logprobs(b'{"logprob": -1}'), "token"),
        (with_logprobs(b"7"), "content"),
        (with_logprobs(b'{"token": "a", "logprob": -1, "token_id": -4}'), "token id"),
        (b'{"choices": [{"message": {"content": "\xff\xfe"}}]}', ""),
        (b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b', "choices": []}', ""),
        (b'{"error": {"message": "overloaded"}}', "wrong form"),
    ],
)
def test_what_is_no_completion_is_named_and_not_asked_for_again(body, word):
    double = Double(body)
    error, _ = refused(double, "endpoint_failed", word)
    assert len(double.bodies) == 1 and len(error.message) < 700


def test_lenient_where_providers_differ():
    body = {"choices": [{"message": {"content": None}}], "extra": 1}
    reply, chat = ask(Double(body))
    assert reply.text == "" and reply.finish_reason == "" and reply.logprobs is None and chat.usage.unmetered == 1
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    body = {
        "choices": [
            {"message": {"tool_calls": [call]}, "logprobs": {"content": [{"token": "token_id:42", "logprob": -1}]}}
        ]
    }
    reply, _ = ask(Double(body))
    assert reply.tool_calls[0].arguments == '{"a":1}' and reply.tool_calls[0].id == "call_0"
    assert reply.logprobs[0].token_id == 42


def test_a_body_beyond_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 1 << 20)
    refused(Double(b" " * (2 << 20)), "endpoint_failed", "at most 1048576")

    async def endless(request):
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)

    refused(Double(endless), "endpoint_failed", "more than 1048576")


def test_compression_is_neither_asked_for_nor_unpacked():
    import gzip

    async def packed(request):
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=gzip.compress(b" " * 50_000_000), headers={"Content-Encoding": "gzip"})

    refused(Double(packed), "endpoint_failed", "compressed")


def test_a_key_in_the_reply_does_not_come_back():
    leak = json.dumps(completion(f"your key is {KEY}", logprobs=[(KEY, -1.0)], model=KEY))
    escaped = leak.replace(KEY, "".join(f"\\u{ord(c):04x}" for c in KEY))
    for body in (leak, escaped):
        reply, _ = ask(Double(body.encode()))
        assert KEY not in repr(reply) and "[key]" in reply.text


def test_broken_http_below_the_surface():
    async def hang_up(reader, writer):
        return

    async def garbage(reader, writer):
        writer.write(b"\x00\x01\x02 nonsense\r\n\r\n")
        await writer.drain()

    async def cut_short(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        await writer.drain()

    async def bad_length(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}")
        await writer.drain()

    async def endless_headers(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Filler: " + b"a" * 1000 + b"\r\n")
            await writer.drain()

    async def one_endless_header(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nX-Filler: ")
        while True:
            writer.write(b"a" * 65536)
            await writer.drain()

    async def go(answer):
        async with raw_server(answer) as base:
            return await one(base, timeout_s=2.0, max_tries=2)

    for answer in (hang_up, garbage, cut_short, bad_length, endless_headers, one_endless_header):
        begin = time.monotonic()
        error, _ = asyncio.run(go(answer))
        assert error.code in ("endpoint_failed", "endpoint_unreachable"), (answer, error)
        assert time.monotonic() - begin < 6, answer


def test_probe():
    async def go(double, model="double", key=KEY):
        async with double.served() as base, ChatClient(EndpointSpec(base_url=base, model=model, api_key=key)) as chat:
            await chat.probe()

    listed = Double()
    asyncio.run(go(listed))
    assert not listed.bodies
    other = Double(names=["another"])
    asyncio.run(go(other))
    assert other.bodies[0]["max_tokens"] == 1
    with pytest.raises(BashGymError) as caught:
        asyncio.run(go(Double((404, {"error": {"message": "no such model"}}, {}), names=["another"])))
    assert caught.value.code == "endpoint_invalid" and "no such model" in caught.value.message


def test_concurrency_grows_on_success_and_shrinks_when_it_is_too_much():
    def limited(most):
        async def answer(request):
            crowded = double.under_way > most
            await asyncio.sleep(0.005)
            body = {"error": {"message": "slow down"}} if crowded else completion()
            return web.json_response(body, status=429 if crowded else 200)

        double = Double(answer)
        return double

    async def go(double, n):
        async with (
            double.served() as base,
            ChatClient(EndpointSpec(base_url=base, model="double"), max_concurrency=200, max_tries=12) as chat,
        ):
            await asyncio.gather(*(chat.chat(ASK) for _ in range(n)))
            return chat

    roomy = limited(10_000)
    chat = asyncio.run(go(roomy, 800))
    assert 64 < roomy.peak <= 200 and chat.usage.retries == 0
    narrow = limited(8)
    chat = asyncio.run(go(narrow, 300))
    assert chat.usage.errors == 0 and chat._pace.limit < 40 and len(narrow.bodies) < 900


def test_a_cancelled_call_gives_its_place_back():
    async def slow(request):
        await asyncio.sleep(0.05)
        return web.json_response(completion())

    async def go():
        async with (
            Double(slow).served() as base,
            ChatClient(EndpointSpec(base_url=base, model="double"), max_concurrency=2) as chat,
        ):
            tasks = [asyncio.create_task(chat.chat(ASK)) for _ in range(8)]
            await asyncio.sleep(0.02)
            for task in tasks[:6]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(d).__name__ for d in done] == ["CancelledError"] * 6 + ["ChatReply"] * 2
            assert chat._pace._under_way == 0
            return await asyncio.wait_for(chat.chat(ASK), 2)

    assert asyncio.run(go()).text == "hello"
