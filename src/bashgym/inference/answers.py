"""The routes of a served model: requests to tokens, tokens to OpenAI's answers. Imports torch."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from aiohttp import web

from bashgym.core.errors import fail
from bashgym.inference.batching import Answer, Batcher, Work
from bashgym.inference.job import JobModel, attempt_seed
from bashgym.inference.local import Engine, Row, Sampling, encode_prompt
from bashgym.inference.served import (
    DEFAULT_TOKENS,
    ChatBody,
    ServeConfig,
    TextBody,
    TokenizeBody,
    conversation,
    read_body,
)
from bashgym.inference.server import body_of
from bashgym.inference.stream import ChatStream
from bashgym.inference.tool_text import read_tool_calls


@dataclass
class ModelRoutes:
    """One model, its tokenizer and its queue."""

    name: str
    tokenizer: Any
    engine: Engine
    batcher: Batcher

    @classmethod
    def load(cls, config: ServeConfig) -> Self:
        """Loads the model of the config. `model_unsafe` and what the loading raises."""
        import torch
        from transformers.utils.logging import disable_progress_bar

        from bashgym.inference.scoring import load

        disable_progress_bar()

        if config.threads:
            torch.set_num_threads(config.threads)
        model, tokenizer = load(JobModel(config.path, config.adapter_path))
        engine = Engine(model, tokenizer)
        return cls(config.name, tokenizer, engine, Batcher(engine, config.max_batch))

    def add_to(self, app: web.Application) -> None:
        """Adds the routes; the queue ends with the app."""

        async def close(_: web.Application) -> None:
            self.batcher.close()

        app.on_shutdown.append(close)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/tokenize", self.tokenize)

    async def health(self, _: web.Request) -> web.Response:
        """Loaded and listening."""
        return web.json_response({"status": "ok", "model": self.name})

    async def models(self, _: web.Request) -> web.Response:
        """The one model."""
        model = {"id": self.name, "object": "model", "created": 0, "owned_by": "bashgym"}
        return web.json_response({"object": "list", "data": [{**model, "max_model_len": self.engine.window}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        """vLLM's `/tokenize`: the ids that a conversation or text has here."""
        body: TokenizeBody = read_body(await body_of(request), TokenizeBody)
        self._check_model(body.model)
        if (body.messages is None) == (body.prompt is None):
            raise fail("invalid_field", "either messages or prompt", fields=["messages"])
        if body.messages is not None:
            turns = conversation(body.messages)
            ids = encode_prompt(self.tokenizer, turns, body.tools, generation_prompt=body.add_generation_prompt)
        else:
            special = body.add_special_tokens is not False
            ids = list(self.tokenizer(body.prompt, add_special_tokens=special)["input_ids"])
        return web.json_response({"count": len(ids), "max_model_len": self.engine.window, "tokens": ids})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """A chat completion, whole or as a stream of events."""
        body: ChatBody = read_body(await body_of(request), ChatBody)
        self._check_model(body.model)
        prompt = encode_prompt(self.tokenizer, body.conversation(), body.used_tools)
        room = self._room(prompt)
        alternatives = (body.top_logprobs or 0) if body.logprobs else None
        work = self._works(body, prompt, min(room, body.budget or DEFAULT_TOKENS), alternatives)
        if body.stream:
            stream = ChatStream(request, self.head("chat.completion.chunk"), body, self.engine.text, self.logprobs)
            return await stream.run(work, self._submit, len(prompt))
        answers = await self._submit(work)
        choices = [self._choice(at, answer, body) for at, answer in enumerate(answers)]
        return _json({**self.head("chat.completion"), "choices": choices, "usage": usage([len(prompt)], answers)})

    async def complete(self, request: web.Request) -> web.Response:
        """A plain completion; with echo also the log probabilities of the prompt."""
        body: TextBody = read_body(await body_of(request), TextBody)
        self._check_model(body.model)
        prompts = [self._text_ids(given) for given in body.prompts()]
        choices: list[dict[str, Any]] = []
        answers: list[Answer] = []
        for prompt in prompts:
            room = self._room(prompt) if body.max_tokens != 0 else 0
            budget = min(room, body.max_tokens if body.max_tokens is not None else 16)
            made = await self._submit(self._works(body, prompt, budget, body.logprobs)) if budget else [_EMPTY]
            scored = await self._scored(prompt, body) if body.echo else None
            choices += [
                self._text_choice(prompt, answer, body, scored, len(choices) + i) for i, answer in enumerate(made)
            ]
            answers += made
        head = self.head("text_completion")
        return _json({**head, "choices": choices, "usage": usage(list(map(len, prompts)), answers)})

    def head(self, kind: str) -> dict[str, Any]:
        """What every answer begins with."""
        prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
        return {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.name,
        }

    def logprobs(self, row: Row, start: int = 0) -> dict[str, Any]:
        """OpenAI's `logprobs` of the tokens from `start` on, with `token_id` beside each; the stop token has one too."""
        content = []
        for at in range(start, len(row.ids)):
            entry = self._token(row.ids[at], row.logprobs[at])
            content.append({**entry, "top_logprobs": [self._token(i, p) for i, p in row.likeliest[at]]})
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._spelled(token)
        return {"token": text, "token_id": token, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}

    def _spelled(self, token: int) -> str:
        return str(self.tokenizer.decode([token], skip_special_tokens=False))

    def _check_model(self, name: str) -> None:
        if name not in ("", self.name):
            raise fail(
                "model_missing", f"the model {name[:100]!r} is not served here", f"This is {self.name}.", ["model"]
            )

    def _room(self, prompt: Sequence[int]) -> int:
        room = self.engine.window - len(prompt)
        if room < 1:
            text = f"the prompt has {len(prompt)} tokens; the model sees at most {self.engine.window}"
            raise fail("invalid_field", text, fields=["messages"])
        return room

    def _text_ids(self, given: str | list[int]) -> list[int]:
        ids = encode_prompt(self.tokenizer, given) if isinstance(given, str) else given
        if not ids or not all(0 <= token < len(self.tokenizer) for token in ids):
            raise fail(
                "invalid_field", "the prompt is empty or has ids that are not in the vocabulary", fields=["prompt"]
            )
        return ids

    def _works(self, body: ChatBody | TextBody, prompt: list[int], budget: int, alternatives: int | None) -> list[Work]:
        temperature = 1.0 if body.temperature is None else body.temperature
        sampling = Sampling(budget, temperature, body.top_p or 1.0, alternatives)
        root = body.root_seed
        seeds = [attempt_seed(root, "choice", at) for at in range(body.n or 1)]
        return [Work(prompt, seed, sampling, budget, body.stops) for seed in seeds]

    async def _submit(self, work: list[Work]) -> list[Answer]:
        """Waits for the answers; a request that is given up takes its work along."""
        self.batcher.submit(work)
        try:
            return list(await asyncio.gather(*(asyncio.wrap_future(one.done) for one in work)))
        except asyncio.CancelledError:
            for one in work:
                one.done.cancel()
            raise

    async def _scored(self, prompt: list[int], body: TextBody) -> Row:
        if body.logprobs is None or len(prompt) < 2:
            return Row(list(prompt))
        work = Work(prompt, 0, None, 0, alternatives=body.logprobs)
        self.batcher.submit([work])
        row: Row = await asyncio.wrap_future(work.done)
        return row

    def _choice(self, at: int, answer: Answer, body: ChatBody) -> dict[str, Any]:
        message, reason = chat_message(answer, bool(body.used_tools))
        logprobs = self.logprobs(answer.row) if body.logprobs else None
        return {"index": at, "message": message, "finish_reason": reason, "logprobs": logprobs}

    def _text_choice(
        self, prompt: list[int], answer: Answer, body: TextBody, scored: Row | None, at: int
    ) -> dict[str, Any]:
        text = self.engine.text(prompt) + answer.text if scored else answer.text
        logprobs = None
        if body.logprobs is not None:
            ids, values, likeliest = list(answer.row.ids), list(answer.row.logprobs), list(answer.row.likeliest)
            if scored:
                ids, values = scored.ids + ids, [*scored.logprobs, *values]
                likeliest = scored.likeliest + likeliest
            first = [None] if scored else []
            tops = [{self._spelled(i): p for i, p in best} for best in likeliest]
            logprobs = _text_logprobs([self._spelled(i) for i in ids], [*first, *values], [*first, *tops])
        return {"index": at, "text": text, "finish_reason": answer.finish_reason, "logprobs": logprobs}


_EMPTY = Answer("", "length", Row())


def _text_logprobs(tokens: list[str], values: Sequence[float | None], tops: Sequence[Any]) -> dict[str, Any]:
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(token)
    return {"tokens": tokens, "token_logprobs": list(values), "top_logprobs": list(tops), "text_offset": offsets}


def chat_message(answer: Answer, with_tools: bool) -> tuple[dict[str, Any], str]:
    """(assistant message, finish reason). Tool calls are read from the text only where tools were given."""
    text, calls = read_tool_calls(answer.text) if with_tools else (answer.text, [])
    if not calls:
        return {"role": "assistant", "content": answer.text}, answer.finish_reason
    made = [
        {
            "id": f"call_{secrets.token_hex(8)}",
            "type": "function",
            "function": {"name": call["name"], "arguments": msgspec.json.encode(call["arguments"]).decode()},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": made}, "tool_calls"


def usage(prompts: Sequence[int], answers: Sequence[Answer]) -> dict[str, int]:
    """Token counts; the stop token counts as generated."""
    asked, made = sum(prompts), sum(len(answer.row.ids) for answer in answers)
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}


def _json(doc: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(doc), content_type="application/json")
