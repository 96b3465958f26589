"""An output head that computes in float32 over weights of any dtype."""

from __future__ import annotations

from typing import Any

import torch

from bashgym.core.errors import fail


class Float32Head(torch.nn.Linear):
    """A linear layer that computes in float32 and keeps its weights (and whatever they are tied to) as they are."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., H) to float32 logits (..., V), also under autocast."""
        with torch.autocast(hidden.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return torch.nn.functional.linear(hidden.float(), self.weight.float(), bias)


def use_float32_head(model: Any) -> None:
    """Makes a causal model's logits float32, as MiniMax-M1 does (2025, arXiv 2506.13585, sec. 3.2): sampler and trainer
    disagree about bfloat16 ones. TRL's `cast_lm_head_to_fp32` fails on an adapter over tied embeddings and converts them.

    `unsupported_model` when the head is no plain linear layer.
    """
    head = model.get_output_embeddings()
    if type(head) not in (torch.nn.Linear, Float32Head):
        raise fail(
            "unsupported_model",
            f"lm_head_fp32 needs a plain linear output head; this model's is a {type(head).__name__}",
            hint="Set lm_head_fp32 to false.",
            fields=["lm_head_fp32"],
        )
    head.__class__ = Float32Head
