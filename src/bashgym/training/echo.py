"""ECHO: the policy also predicts what its tools showed. An auxiliary loss beside GRPO's, diagnostic and no reason to promote.

    L = L_grpo + lambda * (-(1 / N_obs) * sum over kept observation tokens of log p)

Observation tokens are those of the completion that the tool loop put there (tool mask 0): results and the template's frame
around them. N_obs counts all of them in the answers that the loss is made of, over the whole optimizer step and all
processes; the sum leaves out excluded ids (special tokens, which say nothing about the terminal). log p is that of the policy
loss, at the run's sampling temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor


def observation_loss(logprobs: Tensor, observed: Tensor, excluded: Tensor, total: Tensor | float) -> Tensor:
    """-(sum of log p where `observed` and not `excluded`) / `total`; all but the last are [B, T]. 0 for a total of 0."""
    chosen = torch.where(observed & ~excluded, logprobs, torch.zeros_like(logprobs))
    return -chosen.sum() / torch.as_tensor(total, device=logprobs.device).clamp(min=1)


def observed(inputs: dict[str, Any]) -> Tensor:
    """Bool [B, T]: tokens of the completion that the model did not sample."""
    mask: Tensor = inputs["completion_mask"].bool()
    if "tool_mask" not in inputs:
        return torch.zeros_like(mask)
    return mask & ~inputs["tool_mask"].bool()


def excluded(ids: Tensor, special: Collection[int]) -> Tensor:
    """Bool, of the shape of `ids`: tokens that the sum leaves out."""
    return torch.isin(ids, torch.tensor(sorted(special), device=ids.device, dtype=ids.dtype))


def count(parts: list[dict[str, Any]], window: int, total: Callable[[Tensor], Tensor]) -> None:
    """Gives each micro-batch `observation_tokens`: N_obs of its optimizer step of `window` micro-batches.

    `total` sums a tensor over processes. To be called when the masks hold only what is kept.
    """
    counts = total(torch.stack([observed(part).sum() for part in parts]))
    for start in range(0, len(parts), window):
        for part in parts[start : start + window]:
            part["observation_tokens"] = counts[start : start + window].sum()
