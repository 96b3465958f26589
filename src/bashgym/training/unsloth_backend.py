"""Loading the student through Unsloth. Needs CUDA; not run in CI, and never tested by us on a device.

`__main__` imports unsloth before transformers and TRL, which it patches. `runs.backend` decides when this is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def load_base(request: dict[str, Any], manifest: dict[str, Any], dtype: torch.dtype) -> Any:
    """The base model with Unsloth's kernels, on this process' device."""
    from unsloth import FastLanguageModel

    model, _ = FastLanguageModel.from_pretrained(
        model_name=str(Path(manifest["model"]["path"])),
        max_seq_length=int(request["max_seq_length"]),
        dtype=dtype,
        load_in_4bit=bool(manifest["backend"].get("load_in_4bit")),
        full_finetuning=not request["use_lora"],
        trust_remote_code=False,
        local_files_only=True,
    )
    return model


def add_adapter(model: Any, request: dict[str, Any]) -> Any:
    """`model` with a new LoRA adapter as the request describes it."""
    from unsloth import FastLanguageModel

    return FastLanguageModel.get_peft_model(
        model,
        r=int(request["lora_rank"]),
        target_modules=request.get("lora_target_modules") or "all-linear",
        lora_alpha=int(request["lora_alpha"]),
        lora_dropout=float(request["lora_dropout"]),
        bias="none",
        use_gradient_checkpointing="unsloth" if request["gradient_checkpointing"] else False,
        random_state=int(request["seed"]),
    )
