"""What an adapter says of itself before anything is loaded: adapter_config.json and the header of its weights.

Owns: kinds that can or cannot be merged, shapes against the base, tied embeddings, foreign bases. Reads files only; a
finding is advice before a start, a `BashGymError` is for what cannot be loaded at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bashgym.core.errors import fail
from bashgym.core.files import read_object
from bashgym.data.types import Finding, Severity
from bashgym.methods.common import RETENTION
from bashgym.models.headers import safetensors_header, weight_files

CODES = frozenset({"adapter_not_mergeable", "adapter_odd", "base_quantised", "tied_embeddings", "checkpoint_as_model"})
"""Codes of the findings that are made here."""
MERGEABLE = frozenset(
    {"LORA", "ADALORA", "LOHA", "LOKR", "OFT", "BOFT", "HRA", "IA3", "FOURIERFT", "VERA", "LN_TUNING", "BONE"}
)
"""PEFT types whose weights become part of the base's; prompts and prefixes are inputs, not weights."""
_ENDS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings")
_QUANTISED = re.compile(r"(bnb-4bit|-4bit|-8bit|-gptq|-awq|-int4|-int8|-fp8)\b", re.IGNORECASE)


def check_shapes(shapes: Mapping[str, Sequence[int]], base_config: Mapping[str, Any], base_name: str) -> None:
    """`model_incomplete` where whole embeddings in the adapter ({tensor: shape}) have other rows than the base.

    PEFT would say so only after loading, as a size mismatch (peft#1457, #2415).
    """
    rows = base_config.get("vocab_size") or _object(base_config, "text_config").get("vocab_size")
    for tensor, shape in shapes.items():
        whole = any(end in tensor for end in _ENDS) and "lora_" not in tensor and "trainable_tokens" not in tensor
        if whole and rows and shape and shape[0] != rows:
            raise fail(
                "model_incomplete",
                f"{tensor} of the adapter has {shape[0]} rows, the base model {base_name} has vocab_size {rows}",
                hint=f"It was trained after tokens were added or removed: resize the base to {shape[0]} rows, save it "
                "with the adapter's tokenizer, and name that folder as base_model_name_or_path.",
                fields=["base_model"],
            )


def adapter_shapes(folder: Path) -> dict[str, list[int]]:
    """Tensor → shape of an adapter folder, from the headers."""
    return {name: entry["shape"] for path in weight_files(folder) for name, entry in safetensors_header(path).items()}


def base_of(folder: Path) -> str:
    """The base that an adapter names; `model_incomplete` where it names none."""
    named = read_object(folder / "adapter_config.json").get("base_model_name_or_path")
    if not isinstance(named, str) or not named.strip():
        raise fail(
            "model_incomplete",
            f"the base model of the adapter in {folder} is unknown: adapter_config.json has no base_model_name_or_path",
            hint="Write the base's name or folder there.",
            fields=["base_model"],
        )
    return named


def start_findings(
    request: Mapping[str, Any], folder: Path, adapter: Path | None, base_config: Mapping[str, Any]
) -> list[Finding]:
    """What a start should know of `folder` (the base) and `adapter` on top."""
    merges = bool(request["use_lora"]) and bool(RETENTION[request["artifact_retention"]]["merged"])
    found = _checkpoint(adapter or folder)
    if adapter:
        found += config_findings(read_object(adapter / "adapter_config.json"), base_config, merges=merges)
    if request["use_lora"]:
        found += _tied(_names(request.get("lora_target_modules")), base_config, "lora_target_modules", merges)
    if merges and base_config.get("quantization_config"):
        message = f"{folder} holds quantised weights: the adapter cannot be merged into them without losing precision"
        mend = "Train on the 16-bit base with load_in_4bit true, or use artifact_retention adapter_only."
        found.append(Finding("base_quantised", Severity.ERROR, message, mend, "artifact_retention"))
    return found


def config_findings(config: Mapping[str, Any], base_config: Mapping[str, Any], *, merges: bool) -> list[Finding]:
    """What adapter_config.json tells by itself and beside the base's config.json."""
    kind, found = str(config.get("peft_type")), []
    if merges and kind not in MERGEABLE:
        message = f"a {kind} adapter cannot be merged: it is an input to the model, not a change of its weights"
        found.append(
            Finding(
                "adapter_not_mergeable", Severity.ERROR, message, "Use artifact_retention adapter_only.", "base_model"
            )
        )
    task = config.get("task_type")
    if task not in (None, "CAUSAL_LM"):
        found.append(_odd(f"the adapter's task_type is {task}; these models are trained as CAUSAL_LM"))
    base = str(config.get("base_model_name_or_path") or "")
    if _QUANTISED.search(base):
        mend = "Merge into the 16-bit base, which usually has the same name without that ending."
        found.append(
            Finding("base_quantised", Severity.WARNING, f"the adapter's base {base} is quantised", mend, "base_model")
        )
    layers = _adapted_layers(config.get("target_modules"))
    total = base_config.get("num_hidden_layers")
    if layers and total and len(layers) < total:
        found.append(_odd(f"the adapter changes {len(layers)} of {total} layers"))
    if config.get("trainable_token_indices"):
        found.append(_odd("the adapter trains single token embeddings (trainable_token_indices)"))
    saved = _names(config.get("modules_to_save"))
    if saved:
        found.append(_odd(f"the adapter carries whole copies of {', '.join(saved)}, as large as in the base"))
    targets = _names(config.get("target_modules"))
    return [*found, *_tied([*saved, *targets], base_config, "base_model", merges)]


def _tied(modules: Sequence[str], base_config: Mapping[str, Any], field: str, merges: bool) -> list[Finding]:
    ends = [name for name in modules if name.rpartition(".")[2] in _ENDS]
    if not ends or not base_config.get("tie_word_embeddings"):
        return []
    message = (
        f"{', '.join(ends)} is trained on a base with tie_word_embeddings true: embed_tokens and lm_head are one there"
    )
    mend = "Leave it out of the adapter" + (
        "; else merged/ gets tie_word_embeddings false and both matrices, and is larger." if merges else "."
    )
    return [Finding("tied_embeddings", Severity.WARNING, message, mend, field)]


def _checkpoint(folder: Path) -> list[Finding]:
    """A trainer's checkpoint as the model to start from: its weights are taken over, its optimizer is not."""
    if not (folder / "trainer_state.json").is_file():
        return []
    step = read_object(folder / "trainer_state.json").get("global_step")
    has = "is left behind" if any(folder.glob("optimizer*")) else "is not there"
    message = (
        f"{folder.name} is a training checkpoint (step {step}): only its weights are used; its optimizer state {has}"
    )
    mend = "Momentum and warm-up begin anew. To continue that run as it was, use `bashgym training resume`."
    return [Finding("checkpoint_as_model", Severity.WARNING, message, mend, "base_model")]


def _adapted_layers(targets: object) -> set[str]:
    """Layer numbers of target modules that are written as full paths."""
    paths = [name for name in _names(targets) if ".layers." in name]
    return {match[1] for name in paths if (match := re.search(r"\.layers\.(\d+)\.", name))}


def _odd(message: str) -> Finding:
    return Finding("adapter_odd", Severity.WARNING, message, "", "base_model")


def _names(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(item) for item in value] if isinstance(value, list) else []


def _object(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}
