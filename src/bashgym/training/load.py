"""Loading models into the training process: safetensors only, no remote code, no hub.

Covers: pickled weights, `auto_map` code and underscore keys of foreign configs never take effect. Does not cover: bugs
in the safetensors parser or in Transformers' own modelling code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from bashgym.core.errors import fail
from bashgym.core.files import read_object

CLASSES = {
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": AutoModelForTokenClassification,
}
"""What a model gives, by PEFT's name -> the class that loads it: tokens, a score per sequence, a score per token."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(name: str) -> torch.dtype:
    """`auto` is bfloat16 on a device that computes it, float32 elsewhere."""
    if name != "auto":
        return DTYPES[name]
    return torch.bfloat16 if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else torch.float32


def load_config(folder: Path) -> Any:
    """The config of a model folder without remote code and without private keys."""
    raw = read_object(folder / "config.json")
    model_type = str(raw.get("model_type", ""))
    kept = {
        key: value for key, value in raw.items() if not key.startswith("_") and key not in ("auto_map", "model_type")
    }
    try:
        return AutoConfig.for_model(model_type, **kept)
    except ValueError as error:
        raise fail(
            "model_unsafe",
            f"{folder} is of type {model_type!r}, which the installed transformers does not know without remote code",
            hint="Use a model of a built-in architecture, or a newer transformers in the training interpreter.",
        ) from error


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype,
    quantization: Any = None,
    attention: str | None = None,
    device: str = "",
    task: str = "CAUSAL_LM",
) -> Any:
    """The model in `folder`, on `device`, by default the best one of this process.

    A scorer (`task` SEQ_CLS or TOKEN_CLS) has one output; its head is new, from torch's random state, if the folder has none.
    """
    config = load_config(folder)
    if task != "CAUSAL_LM":
        config.num_labels, config.classifier_dropout = 1, 0.0
    model = CLASSES[task].from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        quantization_config=quantization,
        attn_implementation=attention,
    )
    if quantization is None and torch.cuda.is_available() and device != "cpu":
        model = model.to("cuda")
    return model


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer in `folder`; a missing pad token becomes the end token, as the collator needs one."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def lora_config(request: dict[str, Any], task: str = "CAUSAL_LM") -> Any:
    """The PEFT config of a request, or None for full fine-tuning. The head of a scorer is trained and saved whole."""
    from peft import LoraConfig

    if not request["use_lora"]:
        return None
    return LoraConfig(
        r=int(request["lora_rank"]),
        lora_alpha=int(request["lora_alpha"]),
        lora_dropout=float(request["lora_dropout"]),
        target_modules=request.get("lora_target_modules") or "all-linear",
        exclude_modules=None if task == "CAUSAL_LM" else ["score"],
        bias="none",
        task_type=task,
    )


def student(request: dict[str, Any], manifest: dict[str, Any], task: str = "CAUSAL_LM") -> tuple[Any, Any]:
    """(model to train, PEFT config to wrap it with or None).

    An adapter that the run starts from is loaded trainable on top of its base; with use_lora false it is merged into it
    and every weight is trained.
    """
    dtype, facts = choose_dtype(str(request["dtype"])), manifest["model"]
    adapter, unsloth = facts.get("adapter_path"), manifest["backend"]["name"] == "unsloth"
    if unsloth:
        from bashgym.training import unsloth_backend

        model = unsloth_backend.load_base(request, manifest, dtype)
    else:
        model = _plain_base(manifest, dtype, task)
    if not adapter:
        if unsloth and request["use_lora"]:
            return unsloth_backend.add_adapter(model, request), None
        return model, lora_config(request, task)
    from peft import PeftConfig, PeftModel

    config = PeftConfig.from_pretrained(adapter)
    if config.task_type != task:
        config.task_type = None  # a language model's adapter under a reward head: only its layers are meant
    model = PeftModel.from_pretrained(model, adapter, is_trainable=bool(request["use_lora"]), config=config)
    # PEFT froze the base's weights, and merging leaves them so.
    return (model if request["use_lora"] else model.merge_and_unload().requires_grad_(True)), None


def _plain_base(manifest: dict[str, Any], dtype: torch.dtype, task: str) -> Any:
    quantization, backend = None, manifest["backend"]
    if backend.get("load_in_4bit"):
        from transformers import BitsAndBytesConfig

        # A new head has no weights on disk that could be quantised, and it is trained whole.
        kept = {} if task == "CAUSAL_LM" else {"llm_int8_skip_modules": ["score"]}
        quantization = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, **kept
        )
    folder = Path(manifest["model"]["path"])
    return load_model(folder, dtype=dtype, quantization=quantization, attention=backend.get("attention"), task=task)
