"""Train/serve parity: do the same rows become the same token ids in training and at the endpoint that serves the model?

A model that is served with another chat template, other special tokens or another tokenizer than it was trained with
answers worse, and nothing says so. Owns the comparison. The training side is `data.encode`, which the trainer is fed
from; the served side is the endpoint's own `/tokenize` route, or, where it has none, the token counts that it bills.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError, fail
from bashgym.data.encode import common_prefix, encode_example
from bashgym.data.formats import iter_examples
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import Finding, SftExample
from bashgym.inference.client import ChatClient, ChatRequest, EndpointSpec, endpoint_facts

SCHEMA = "bashgym.parity_report.v1"
MAX_MISMATCHES = 20
"""More are counted, not listed."""
_POOL = 10_000
"""Rows are taken evenly from the first so many."""
_AROUND = 6
"""Tokens shown on each side of a difference."""
_WHOLE = 1 << 24
"""No truncation: parity is about all of a row."""


class Case(msgspec.Struct):
    """One comparison of one row."""

    row: int
    part: str
    """`prompt`: what the model sees before it answers; `conversation`: the row with its answers."""
    train_ids: list[int]
    """What training feeds for this part."""
    payload: dict[str, Any]
    """The same part for `/tokenize`."""
    request: ChatRequest | None
    """The same part as a chat, where it is one: its `prompt_tokens` can be compared."""
    prefix: bool
    """The endpoint's ids only have to begin what training feeds."""


def check_parity(
    model_dir: Path,
    dataset: Path,
    endpoint: EndpointSpec,
    *,
    rows: int = 32,
    dataset_format: str = "auto",
    column_mapping: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The report. `mode` is `ids`, or `count_only` where the endpoint has no `/tokenize` and only counts were compared.

    `model_dir` holds the tokenizer that training uses. Raises the dataset's errors, `row_not_encodable`,
    `template_failed` and the endpoint's errors: what was not compared is never called equal.
    """
    notes: list[Finding] = []
    bundle = TokenizerBundle.load(model_dir)
    pool = list(
        islice(iter_examples(dataset, notes, dataset_format=dataset_format, column_mapping=column_mapping), _POOL)
    )
    chosen = pool[:: max(1, len(pool) // rows)][:rows]
    cases = [case for example in chosen for case in cases_of(bundle, example)]
    if not cases:
        raise fail("dataset_empty", f"{dataset.name} has no row to compare", fields=["dataset"])
    mode, found = asyncio.run(_compare(endpoint, bundle, cases))
    return {
        "schema_version": SCHEMA,
        "ok": not found,
        "mode": mode,
        "n": len({case.row for case in cases}),
        "n_comparisons": len(cases) if mode == "ids" else sum(case.request is not None for case in cases),
        "n_mismatches": len(found),
        "mismatches": found[:MAX_MISMATCHES],
        "endpoint": endpoint_facts(endpoint),
        "tokenizer": {name: digest_file(model_dir / name) for name in _FILES if (model_dir / name).is_file()},
        "dataset": {"path": str(dataset), "sha256": digest_file(dataset)},
    }


_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def cases_of(bundle: TokenizerBundle, example: SftExample) -> Iterator[Case]:
    """The comparisons of one row: its whole conversation, and the prompt of its last answer."""
    ids = encode_example(bundle, example, max_length=_WHOLE).input_ids
    turns = example.messages
    if turns is None and isinstance(example.prompt, list) and isinstance(example.completion, list):
        turns = [*example.prompt, *example.completion]
    if turns is None:
        text = example.prompt if isinstance(example.prompt, str) else example.text or ""
        yield Case(example.row, "prompt", ids, {"prompt": text, "add_special_tokens": True}, None, prefix=True)
        return
    tools = {"tools": example.tools} if example.tools else {}
    whole = {"messages": on_the_wire(turns), "add_generation_prompt": False, **tools}
    yield Case(example.row, "conversation", ids, whole, None, prefix=False)
    last = max((i for i, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
    if last:
        before = on_the_wire(turns[:last])
        prompt = bundle.encode(bundle.render(turns[:last], example.tools, add_generation_prompt=True))
        # What training feeds before the answer is the row's own beginning, whatever a prompt alone would give.
        shared = ids[: len(prompt)]
        request = ChatRequest(messages=before, tools=example.tools, max_tokens=1)
        yield Case(
            example.row,
            "prompt",
            shared,
            {"messages": before, "add_generation_prompt": True, **tools},
            request,
            prefix=False,
        )


def on_the_wire(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Training messages as OpenAI's API has them: arguments of calls as JSON text, an absent content as null."""
    made = []
    for turn in turns:
        sent = {"content": None, **turn}
        if calls := turn.get("tool_calls"):
            sent["tool_calls"] = [_call(call) for call in calls]
        made.append(sent)
    return made


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


async def _compare(
    endpoint: EndpointSpec, bundle: TokenizerBundle, cases: list[Case]
) -> tuple[str, list[dict[str, Any]]]:
    async with ChatClient(endpoint, max_concurrency=16) as client:
        await client.probe()  # a model that is not there is not a route that is not there
        if not await _tokenizes(client):
            counted = [case for case in cases if case.request is not None]
            if not counted:
                raise fail("endpoint_failed", "the endpoint has no /tokenize route, and no row is a chat to count")
            found = await asyncio.gather(*(_counts(client, case) for case in counted))
            return "count_only", [mismatch for mismatch in found if mismatch]
        found = await asyncio.gather(*(_ids(client, bundle, case) for case in cases))
        return "ids", [mismatch for mismatch in found if mismatch]


async def _tokenizes(client: ChatClient) -> bool:
    return await client.tokenize({"prompt": "a"}) is not None


async def _ids(client: ChatClient, bundle: TokenizerBundle, case: Case) -> dict[str, Any] | None:
    try:
        served = await client.tokenize(case.payload)
    except BashGymError as error:
        if "messages" not in error.fields:
            raise
        # The served template refuses what the training template takes: that is a difference, not an outage.
        return {"row": case.row, "part": case.part, "first_difference": 0, "refused": error.message}
    if served is None:
        raise fail("endpoint_failed", "the /tokenize route came and went")
    wanted = case.train_ids[: len(served)] if case.prefix else case.train_ids
    if served == wanted and served:
        return None
    at = common_prefix(served, wanted)
    return {
        "row": case.row,
        "part": case.part,
        "first_difference": at,
        "n_train": len(wanted),
        "n_served": len(served),
        "train_tokens": _around(bundle, wanted, at),
        "served_tokens": _around(bundle, served, at),
    }


async def _counts(client: ChatClient, case: Case) -> dict[str, Any] | None:
    served = (await client.chat(case.request)).prompt_tokens if case.request else 0
    if not served:
        raise fail("endpoint_failed", "the endpoint has no /tokenize route and does not count prompt tokens")
    if served == len(case.train_ids):
        return None
    return {"row": case.row, "part": case.part, "n_train": len(case.train_ids), "n_served": served}


def _around(bundle: TokenizerBundle, ids: Sequence[int], at: int) -> list[dict[str, Any]]:
    """Tokens around a place; an id that the training vocabulary lacks has no text."""
    start = max(0, at - _AROUND)
    return [
        {"at": start + i, "id": token, "text": bundle.decode([token]) if 0 <= token < bundle.vocab_size else None}
        for i, token in enumerate(ids[start : at + _AROUND])
    ]
