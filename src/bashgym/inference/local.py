"""Batched generation from a Transformers causal language model in this process. Imports torch.

The decoding loop is our own, for three things that `generate` does not give: finished rows leave the batch at once,
each row draws from a generator of its own seed (so its answer does not depend on its neighbours' draws), and no
per-call set-up. Rows are padded on the left; positions and the attention mask leave the padding out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from bashgym.core.errors import fail
from bashgym.inference.job import attempt_seed

Messages = Sequence[dict[str, Any]]
BATCH_SIZE = 64
_PROBE = "qzx probe"


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 takes the most likely one."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    alternatives: int | None = None
    """The log probability of each token and of this many likeliest ones is kept; None keeps none."""


@dataclass
class Row:
    """An answer in the making. Log probabilities are those of the model, before temperature and top_p."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)
    """For each token the `Sampling.alternatives` likeliest ids with their log probabilities."""


Watch = Callable[[int, Row], bool]
"""Called with a row's number and its state after each token; True ends the row."""


@dataclass(frozen=True)
class Generated:
    """One answer."""

    text: str
    n_tokens: int
    finish_reason: str
    """`stop` or `length`."""
    row: Row
    """Its tokens, the stop token included."""


def generate(
    model: Any,
    tokenizer: Any,
    messages_list: Sequence[Messages | str],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> list[str]:
    """Answers to conversations, in their order. Touches no global random state and leaves the model's mode as it is."""
    prompts = [encode_prompt(tokenizer, messages) for messages in messages_list]
    seeds = [attempt_seed(seed, str(i), 0) for i in range(len(prompts))]
    engine, sampling = Engine(model, tokenizer), Sampling(max_new_tokens, temperature)
    answers = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        made = engine.decode([prompts[i] for i in rows], [seeds[i] for i in rows], sampling)
        for i, answer in zip(rows, made, strict=True):
            answers[i] = answer.text
    return answers


def encode_prompt(
    tokenizer: Any,
    messages: Messages | str,
    tools: Sequence[dict[str, Any]] | None = None,
    *,
    generation_prompt: bool = True,
) -> list[int]:
    """Token ids of a conversation up to where the assistant speaks, or of a plain text as it stands.

    `template_failed` if there is no such form.
    """
    if isinstance(messages, str):
        return list(tokenizer(messages)["input_ids"])
    if not tokenizer.chat_template:
        raise fail(
            "template_failed",
            f"the tokenizer in {tokenizer.name_or_path} has no chat template, so a conversation has no certain form",
            hint="Add chat_template.jinja to the model folder.",
        )
    from jinja2 import TemplateError

    options = {"tools": list(tools)} if tools else {}
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=generation_prompt, **options
        )
    except (TemplateError, TypeError) as error:
        raise fail("template_failed", f"the chat template refuses a prompt: {error}") from error
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise fail("template_failed", "the chat template makes an empty prompt")
    return ids


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer: the model's and tokenizer's end tokens, and what the template puts after a turn."""
    found = {tokenizer.eos_token_id}
    declared = getattr(model.generation_config, "eos_token_id", None)
    found.update(declared if isinstance(declared, list | tuple) else [declared])
    found.add(_turn_end(tokenizer))
    return frozenset(int(token) for token in found if token is not None)


def _turn_end(tokenizer: Any) -> int | None:
    """The first special token that the chat template writes after an assistant's text."""
    if not tokenizer.chat_template:
        return None
    from jinja2 import TemplateError

    probe = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
    try:
        full = tokenizer.apply_chat_template(probe, tokenize=False)
    except (TemplateError, TypeError):
        return None
    tail = full[full.rfind(_PROBE) + len(_PROBE) :]
    ids: list[int] = tokenizer(tail, add_special_tokens=False)["input_ids"]
    special = set(tokenizer.all_special_ids)
    return next((token for token in ids if token in special), None)


class Engine:
    """A model with its tokenizer, ready to answer batches."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._stops = stop_ids(model, tokenizer)
        self._window = int(getattr(model.config, "max_position_embeddings", 0) or 1 << 30)
        pad = tokenizer.pad_token_id
        self._pad = int(pad) if pad is not None else min(self._stops, default=0)

    @property
    def window(self) -> int:
        """The most tokens that the model can see."""
        return self._window

    def text(self, ids: Sequence[int]) -> str:
        """What a reader sees of token ids."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling,
        watch: Watch | None = None,
    ) -> list[Generated]:
        """Answers to tokenised prompts as one batch. A prompt that fills the window gets an empty `length` answer."""
        budgets = [max(0, min(sampling.max_new_tokens, self._window - len(prompt))) for prompt in prompts]
        rows = [Row() for _ in prompts]
        live = [row for row, budget in enumerate(budgets) if budget > 0]
        with torch.no_grad():
            state = _Batch(self._model, [prompts[row] for row in live], self._pad) if live else None
            draws = _draws([seeds[row] for row in live], sampling)
            while state is not None:
                chosen = _choose(state.logits_bv, sampling, draws[:, state.steps] if draws is not None else None)
                _record([rows[row] for row in live], state.logits_bv, chosen, sampling.alternatives)
                kept = []
                for place, row in enumerate(live):
                    ended = watch is not None and watch(row, rows[row])
                    if not ended and rows[row].ids[-1] not in self._stops and len(rows[row].ids) < budgets[row]:
                        kept.append(place)
                if not kept:
                    break
                if len(kept) < len(live):
                    live = [live[place] for place in kept]
                    chosen = state.keep(kept, chosen)
                    draws = draws[kept] if draws is not None else None
                state.advance(chosen)
        return [self._finished(row) for row in rows]

    def score(self, ids: Sequence[int], alternatives: int = 0) -> Row:
        """The log probability of each given token after those before it; the first has none, so lists are one shorter."""
        row = Row(list(ids))
        with torch.no_grad():
            logits_tv = self._model(input_ids=torch.tensor([ids], device=self._model.device)).logits[0, :-1].float()
            _keep_logprobs([row] * len(logits_tv), logits_tv, list(ids[1:]), alternatives)
        return row

    def _finished(self, row: Row) -> Generated:
        reason = "stop" if row.ids and row.ids[-1] in self._stops else "length"
        return Generated(self.text(row.ids[:-1] if reason == "stop" else row.ids), len(row.ids), reason, row)


def _record(rows: list[Row], logits_bv: torch.Tensor, chosen_b: torch.Tensor, alternatives: int | None) -> None:
    tokens = chosen_b.tolist()
    for row, token in zip(rows, tokens, strict=True):
        row.ids.append(token)
    if alternatives is not None:
        _keep_logprobs(rows, logits_bv, tokens, alternatives)


def _keep_logprobs(rows: list[Row], logits_bv: torch.Tensor, tokens: list[int], alternatives: int) -> None:
    logprobs_bv = torch.log_softmax(logits_bv, -1)
    chosen = logprobs_bv.gather(-1, torch.tensor(tokens, device=logits_bv.device)[:, None])[:, 0].tolist()
    best = torch.topk(logprobs_bv, alternatives, -1) if alternatives else None
    pairs = (
        zip(best.indices.tolist(), best.values.tolist(), strict=True) if best is not None else [([], [])] * len(rows)
    )
    for row, logprob, (ids, values) in zip(rows, chosen, pairs, strict=True):
        row.logprobs.append(logprob)
        row.likeliest.append(list(zip(ids, values, strict=True)))


def _draws(seeds: Sequence[int], sampling: Sampling) -> np.ndarray[Any, Any] | None:
    """One uniform number per row and step, from the row's own generator."""
    if sampling.temperature == 0 or not seeds:
        return None
    return np.stack([np.random.default_rng(seed).random(sampling.max_new_tokens) for seed in seeds])


def _choose(logits_bv: torch.Tensor, sampling: Sampling, uniform_b: np.ndarray[Any, Any] | None) -> torch.Tensor:
    """The next token of each row: the most likely, or the inverse CDF of its distribution at the row's draw."""
    if uniform_b is None:
        return logits_bv.argmax(-1)
    ordered_bv, ids_bv = torch.sort(torch.softmax(logits_bv.double() / sampling.temperature, -1), descending=True)
    cdf_bv = ordered_bv.cumsum(-1)
    if sampling.top_p < 1:
        # The smallest set of likeliest tokens that reaches top_p; the first token always belongs to it.
        last_b1 = (cdf_bv < sampling.top_p).sum(-1, keepdim=True).clamp(max=cdf_bv.shape[-1] - 1)
        total_b1 = cdf_bv.gather(-1, last_b1)
    else:
        total_b1 = cdf_bv[:, -1:]
    at_b1 = torch.as_tensor(uniform_b, device=cdf_bv.device)[:, None] * total_b1
    place_b1 = torch.searchsorted(cdf_bv, at_b1, right=True).clamp(max=cdf_bv.shape[-1] - 1)
    return ids_bv.gather(-1, place_b1)[:, 0]


class _Batch:
    """The running state of a batch: cache, mask and the logits of the last position."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], pad: int) -> None:
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), pad)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        bare = model.get_base_model() if hasattr(model, "get_base_model") else model
        accepted = inspect.signature(bare.forward).parameters
        self._model, self._positions = model, "position_ids" in accepted
        self._mask_bt = mask.to(model.device)
        # Only the last position's logits are needed; over a large vocabulary the others would fill the memory.
        self._options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._cache = DynamicCache(config=model.config)
        # Transformers 5.24 renamed the argument.
        self._options["cache" if "cache" in accepted else "past_key_values"] = self._cache
        self.steps = 0
        """Tokens fed after the prompts."""
        self._forward(ids.to(model.device), (self._mask_bt.cumsum(-1) - 1).clamp(min=0))

    def _forward(self, ids_bt: torch.Tensor, positions_bt: torch.Tensor) -> None:
        extra = {"position_ids": positions_bt} if self._positions else {}
        out = self._model(
            input_ids=ids_bt,
            attention_mask=self._mask_bt,
            use_cache=True,
            return_dict=True,
            **extra,
            **self._options,
        )
        self.logits_bv = out.logits[:, -1, :].float()

    def keep(self, places: list[int], chosen_b: torch.Tensor) -> torch.Tensor:
        """Drops the finished rows. Returns the chosen tokens of those that go on."""
        index = torch.tensor(places, device=self._mask_bt.device)
        self._cache.batch_select_indices(index)
        self._mask_bt = self._mask_bt[index]
        return chosen_b[index]

    def advance(self, chosen_b: torch.Tensor) -> None:
        """Feeds one token per row."""
        self.steps += 1
        ones_b1 = torch.ones((len(chosen_b), 1), dtype=torch.long, device=self._mask_bt.device)
        self._mask_bt = torch.cat([self._mask_bt, ones_b1], dim=1)
        self._forward(chosen_b[:, None], self._mask_bt.sum(-1, keepdim=True) - 1)
