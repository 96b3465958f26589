"""merged/: the base and the adapter in final/ as one model, kept only if a reload from disk answers as the two did.

Works from the files alone, on the CPU: the trained model may be quantised, sharded or patched and keeps its device.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bashgym.core.errors import BashGymError, fail
from bashgym.data.readers import iter_rows
from bashgym.training.load import choose_dtype, load_model, load_tokenizer
from bashgym.training.saving import put_in_place, write_verified

if TYPE_CHECKING:
    from bashgym.training.loop import Job

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference of a logit, as a share of the largest logit, that rounding the merged weights may make."""
NOISE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Below this share the adapter's own effect drowns in rounding; above it, a merge must keep more than half of it."""
PROBE_ROWS = 8
PROBE_TOKENS = 32


@dataclass(frozen=True)
class Reference:
    """What adapter-on-base answers."""

    probes: list[list[int]]
    """Token ids; the last probe runs through the whole vocabulary."""
    logits: list[torch.Tensor]
    """Per probe (T, V), float32."""
    effect: float
    """How far the adapter moves the base's logits: root mean square, as a share of the largest logit."""


def save_merged(job: Job, tokenizer: Any) -> None:
    """Merges, saves, reloads, compares, and only then gives the folder its name. `merge_failed` leaves final/ and checkpoints."""
    final = job.run.file("final")
    if not (final / "adapter_config.json").is_file():
        job.run.append_event("merged-skipped", reason="full fine-tuning: final/ is already a standalone model")
        return
    dtype = choose_dtype(str(job.request["dtype"]))
    made = job.run.file(".merged.partial")
    try:
        model = adapter_on_base(Path(job.manifest["model"]["path"]), final, dtype)
        reference = answers(model, probes(Path(str(job.request["dataset_path"])), tokenizer, model.config.vocab_size))
        merged = model.merge_and_unload()
        saved = write_verified(merged, tokenizer, made)
        tensors = len(saved)
        del model, merged, saved
        facts = check_parity(reference, made, dtype)
        check_tokenizer(reference, made, tokenizer)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    put_in_place(made, job.run.file("merged"))
    job.run.append_event(
        "merged-saved", path="merged", tensors=tensors, dtype=str(dtype).removeprefix("torch."), **facts
    )


def adapter_on_base(base: Path, adapter: Path, dtype: torch.dtype) -> Any:
    """The base in full precision, never quantised, with the adapter on top.

    An adapter with LoRA on an embedding or output layer that are tied gets a base with the two apart: merged into shared
    weights, it would change both.
    """
    from peft import PeftModel

    config = json.loads((base / "config.json").read_text())
    if config.get("quantization_config"):
        raise fail(
            "merge_failed",
            f"{base} holds quantised weights: merging into them would round the adapter away; final/ and checkpoints are kept",
            hint="Train on the 16-bit base (load_in_4bit quantises it for training), or keep the adapter: adapter_only.",
        )
    model = PeftModel.from_pretrained(load_model(base, dtype=dtype, device="cpu"), adapter).eval()
    inside = model.get_base_model()
    inner, outer = inside.get_input_embeddings(), inside.get_output_embeddings()
    outer_plain = getattr(outer, "base_layer", outer)
    shared = outer_plain.weight is getattr(inner, "base_layer", inner).weight
    if shared and (hasattr(inner, "lora_A") or hasattr(outer, "lora_A")):
        outer_plain.weight = torch.nn.Parameter(outer_plain.weight.detach().clone(), requires_grad=False)
        inside.config.tie_word_embeddings = False
    return model


def probes(dataset: Path, tokenizer: Any, vocab_size: int) -> list[list[int]]:
    """Token ids of the texts of the first rows, and one sweep through the vocabulary, new tokens included."""
    try:
        texts = ["\n".join(_texts(row.value)) for row in islice(iter_rows(dataset, []), PROBE_ROWS)]
    except BashGymError:
        texts = []  # moved away since training read it: the sweep remains
    found = [ids[:PROBE_TOKENS] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []
    sweep = {round(i * (vocab_size - 1) / (2 * PROBE_TOKENS - 1)) for i in range(2 * PROBE_TOKENS)}
    added = set(tokenizer.get_added_vocab().values())
    return [*filter(None, found), [i for i in sorted(sweep | added) if i < vocab_size]]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value[: 16 * PROBE_TOKENS]
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def answers(model: Any, ids: list[list[int]]) -> Reference:
    """The logits of adapter-on-base over every probe, and how far they are from the base's."""
    logits = _logits(model, ids)
    with model.disable_adapter():
        plain = _logits(model, ids)
    return Reference(ids, logits, _mean_difference(logits, plain))


def check_parity(reference: Reference, folder: Path, dtype: torch.dtype) -> dict[str, Any]:
    """Reloads `folder` and compares its logits. Returns the figures; `merge_failed` with them if they are too far apart."""
    got = _logits(load_model(folder, dtype=dtype, device="cpu").eval(), reference.probes)
    scale = _largest(reference.logits)
    worst = _largest([a - b for a, b in zip(reference.logits, got, strict=True)]) / scale
    mean = _mean_difference(reference.logits, got)
    facts = {
        "probes": len(reference.probes),
        "probe_tokens": sum(map(len, reference.probes)),
        "max_relative_difference": worst,
        "mean_relative_difference": mean,
        "adapter_effect": reference.effect,
        "tolerance": TOLERANCE[dtype],
    }
    if not worst <= TOLERANCE[dtype]:
        raise _differs(f"a logit by {worst:.2e} of the largest one, {TOLERANCE[dtype]:.0e} is allowed", facts)
    if reference.effect > NOISE[dtype] and not mean < reference.effect / 2:
        raise _differs(
            f"logits by {mean:.2e} on average, the adapter itself moves them by {reference.effect:.2e}", facts
        )
    return facts


def check_tokenizer(reference: Reference, folder: Path, tokenizer: Any) -> None:
    """The saved tokenizer has the same special and added tokens, template and decoding; `merge_failed` otherwise."""
    saved = load_tokenizer(folder)
    texts = [tokenizer.decode(ids) for ids in reference.probes]
    for what, ours, theirs in (
        ("special tokens", tokenizer.special_tokens_map, saved.special_tokens_map),
        ("added tokens", tokenizer.get_added_vocab(), saved.get_added_vocab()),
        ("chat template", tokenizer.chat_template, saved.chat_template),
        ("token ids", tokenizer(texts)["input_ids"], saved(texts)["input_ids"]),
    ):
        if ours != theirs:
            raise fail(
                "merge_failed", f"the tokenizer saved with merged/ has other {what}; final/ and checkpoints are kept"
            )


def _logits(model: Any, ids: list[list[int]]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0].float() for row in ids]


def _largest(tensors: list[torch.Tensor]) -> float:
    """NaN if there is any."""
    return float(torch.stack([tensor.abs().max() for tensor in tensors]).max())


def _mean_difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """Root mean square over all probes, as a share of the largest logit of `a`."""
    squares = sum(float((x - y).pow(2).sum(dtype=torch.float64)) for x, y in zip(a, b, strict=True))
    return float((squares / sum(x.numel() for x in a)) ** 0.5 / _largest(a))


def _differs(how: str, facts: dict[str, Any]) -> Exception:
    return fail(
        "merge_failed",
        f"the merged model does not answer as adapter and base do: it differs {how} ({facts['probe_tokens']} probe tokens); "
        "final/ and checkpoints are kept",
        hint="The adapter in final/ is whole. float32 (field dtype) rounds least.",
    )
