"""How many bytes one training process holds, counted from shapes: arithmetic only, no model is touched.

Always resident: weights (4-bit: 0.55 bytes a value with its scales), gradients and Adam's two moments of what is trained
(8 bytes in float32), a frozen reference (full fine-tuning with DPO, or with GRPO's beta > 0; an adapter's reference is
its own base), a teacher. On top of that the largest of three that follow each other:

- a training pass: activations of a decoder layer, 34·s·b·h bytes at 2 bytes a value plus attention scores 5·a·s²·b
  (Korthikanti et al. 2022, "Reducing Activation Recomputation", eq. 2); logits, their softmax and gradient: 3·s·b·V
  float32, one more for each pass without gradient. DPO trains two sequences a row and reads both again with its
  reference; session distillation reads the hinted view, GRPO its reference.
- sampling: the key-value cache, 2·layers·kv·s values for each of the sequences sampled at once (Pope et al. 2022,
  "Efficiently Scaling Transformer Inference", sec. 3), one layer of the prefill, the last logits. GRPO and RLVR sample
  batch x steps per generation sequences at once; on-policy distillation a batch.
- evaluation: one layer and the logits of a batch, as values and as float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GIB = 2**30
PROCESS_BYTES = int(0.7 * GIB)
"""What a trainer process holds before any model: the libraries themselves (measured on CPU, torch 2.13)."""
SAMPLE_TOKENS = 64
"""Longest answer that is sampled for a person to read."""
_GROUPED = ("grpo", "rlvr")

Shape = Mapping[str, int]


def shape_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of a config.json that decide memory; generous where a key is absent. `kv` is the width of keys."""
    hidden = int(config.get("hidden_size") or config.get("n_embd") or 4096)
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 32)
    head = int(config.get("head_dim") or hidden // heads)
    return {
        "hidden": hidden,
        "layers": int(config.get("num_hidden_layers") or config.get("n_layer") or 32),
        "heads": heads,
        "kv": head * int(config.get("num_key_value_heads") or heads),
        "inner": int(config.get("intermediate_size") or 4 * hidden),
        "vocab": int(config.get("vocab_size") or 128_000),
    }


def lora_parameters(shape: Shape, rank: int) -> int:
    """Trainable parameters of LoRA on all linear layers of a decoder: 4 attention and 3 MLP projections a layer."""
    attention = 4 * rank * 2 * shape["hidden"]
    mlp = 3 * rank * (shape["hidden"] + shape["inner"])
    return shape["layers"] * (attention + mlp)


def memory_bytes(
    n_parameters: int,
    shape: Shape,
    request: Mapping[str, Any],
    *,
    four_bit: bool,
    bytes_per_value: int,
    teacher: int = 0,
) -> dict[str, int]:
    """Bytes by part for one training process; `total` is what is resident and the largest of the three phases.

    `teacher`: what `runs.teacher.teacher_bytes` says, its logits included.
    """
    trainable = lora_parameters(shape, int(request["lora_rank"])) if request["use_lora"] else n_parameters
    resident = {
        "process": PROCESS_BYTES,
        "weights": int(n_parameters * (0.55 if four_bit else bytes_per_value))
        + (trainable * 4 if request["use_lora"] else 0),
        "gradients": trainable * bytes_per_value,
        "optimizer": trainable * 8,
        "reference": n_parameters * bytes_per_value if _has_reference(request) and not request["use_lora"] else 0,
        "teacher": teacher,
    }
    phases = {
        **_training_pass(shape, request, bytes_per_value),
        "generation": _generation(shape, request, bytes_per_value),
        "evaluation": _evaluation(shape, request, bytes_per_value),
    }
    peak = max(phases["activations"] + phases["logits"], phases["generation"], phases["evaluation"])
    return {**resident, **phases, "total": sum(resident.values()) + peak}


def completion_length(request: Mapping[str, Any]) -> int:
    """Longest sampled answer in tokens: `max_completion_length`, or half of the sequence."""
    return int(request.get("max_completion_length") or max(1, int(request["max_seq_length"]) // 2))


def samples(request: Mapping[str, Any]) -> bool:
    """Whether the method trains on answers that it samples."""
    return request.get("strategy") in _GROUPED or bool(request.get("distillation_on_policy"))


def _has_reference(request: Mapping[str, Any]) -> bool:
    strategy = request.get("strategy")
    return strategy == "dpo" or (strategy in _GROUPED and float(request.get("grpo_beta") or 0) > 0)


def _sequences(request: Mapping[str, Any]) -> tuple[int, int]:
    """Sequences a row in one step: (with gradient, without)."""
    strategy = request.get("strategy")
    if strategy == "dpo":
        return 2, 2
    if strategy == "reward_model":
        return 2, 0
    return 1, int(strategy == "session_distillation" or _has_reference(request))


def _layer(shape: Shape, rows: int, length: int, value: int) -> int:
    return 17 * value * length * rows * shape["hidden"] + 5 * shape["heads"] * length * length * rows


def _training_pass(shape: Shape, request: Mapping[str, Any], value: int) -> dict[str, int]:
    rows, length = int(request["batch_size"]), int(request["max_seq_length"])
    learned, read = _sequences(request)
    kept = shape["layers"] if not request["gradient_checkpointing"] else max(1, round(shape["layers"] ** 0.5))
    # GRPO's loss needs the logits of the completion only.
    scored = completion_length(request) if request.get("strategy") in _GROUPED else length
    head = 4 * shape["vocab"] * shape["hidden"] if request.get("lm_head_fp32") and value < 4 else 0
    return {
        "activations": kept * learned * _layer(shape, rows, length, value),
        "logits": (3 * learned + read) * scored * rows * shape["vocab"] * 4 + head,
    }


def _generation(shape: Shape, request: Mapping[str, Any], value: int) -> int:
    window = int(request["max_seq_length"])
    if not samples(request):
        at_once, prompt, window = int(request.get("sample_prompts") or 0), window, window + SAMPLE_TOKENS
    else:
        at_once, prompt = int(request["batch_size"]), max(1, window - completion_length(request))
        if request.get("strategy") in _GROUPED:
            at_once *= int(
                (request.get("trainer_args") or {}).get("steps_per_generation")
                or request.get("gradient_accumulation_steps")
                or 1
            )
    cache = 2 * shape["layers"] * shape["kv"] * window * at_once * value
    return cache + 17 * value * prompt * at_once * shape["hidden"] + at_once * shape["vocab"] * (value + 4)


def _evaluation(shape: Shape, request: Mapping[str, Any], value: int) -> int:
    if not (request.get("eval_split") or request.get("eval_dataset_path")):
        return 0
    rows, length = int(request["batch_size"]), int(request["max_seq_length"])
    read = sum(_sequences(request))
    return read * (_layer(shape, rows, length, value) + length * rows * shape["vocab"] * (value + 4))
