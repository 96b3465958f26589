"""From our request fields to the arguments of a TRL config; the names come from `methods.trl_names`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from bashgym.methods.trl_names import SHARED
from bashgym.training.launcher import SHARDING
from bashgym.training.load import choose_dtype

_NOT_COPIED = frozenset(
    {
        "max_steps",
        "report_to",
        "eval_steps",
        "assistant_only_loss",
        "completion_only_loss",
        "packing",
        "max_seq_length",
        "use_liger",
        "warmup_ratio",
        "gradient_checkpointing",
    }
)
"""Shared names whose value needs more than copying."""
_CHECKPOINTING = "activation" if hasattr(TrainingArguments, "activation_checkpointing") else "gradient"
"""How the installed Transformers calls it; the older name warns at every start."""


def is_sharded(request: dict[str, Any]) -> bool:
    """Whether no process holds all weights, gradients and optimizer state."""
    return int(request["num_processes"]) > 1 and request["distributed"] != "ddp"


def shared_args(request: dict[str, Any], output_dir: str, *, with_eval: bool) -> dict[str, Any]:
    """The arguments that every TRL config takes."""
    dtype = choose_dtype(str(request["dtype"]))
    args: dict[str, Any] = {
        theirs: request[ours]
        for ours, theirs in SHARED.items()
        if ours not in _NOT_COPIED and request.get(ours) is not None
    }
    # Below 1 TRL reads a share of all steps, from 1 on a number of steps.
    args["warmup_steps"] = min(float(request["warmup_ratio"]), 1 - 1e-9)
    args |= {
        "output_dir": output_dir,
        "run_name": Path(output_dir).name,
        "max_steps": request["max_steps"] or -1,
        "save_strategy": "steps",
        "save_total_limit": None,  # rotation is ours: an old checkpoint goes only after the new one is sealed
        "save_only_model": False,
        "data_seed": request["seed"],
        "report_to": [name for name in request["report_to"] if name != "none"] or "none",
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,  # a NaN loss has to be seen, not replaced by the last finite one
        "logging_first_step": True,
        "include_num_input_tokens_seen": "no",
        "eval_strategy": "no",
    }
    args[f"{_CHECKPOINTING}_checkpointing"] = recompute = bool(request["gradient_checkpointing"])
    if recompute:
        args[f"{_CHECKPOINTING}_checkpointing_kwargs"] = {"use_reentrant": False}
    if is_sharded(request):
        options = str(Path(output_dir) / SHARDING)
        fsdp = request["distributed"] == "fsdp"
        args |= {"fsdp": True, "fsdp_config": options} if fsdp else {"deepspeed": options}
    if with_eval:
        args |= {"eval_strategy": "steps", "eval_steps": request["eval_steps"] or request["save_steps"]}
        args |= {"per_device_eval_batch_size": request["batch_size"]}
    return args | dict(request["trainer_args"])
