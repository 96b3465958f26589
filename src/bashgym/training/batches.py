"""Tensors of a rollout batch: the order of its prompts, groups that take another's place, and what a mean is over.

Owns no state and no model; `policy` calls it between TRL's sampling and TRL's loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from trl.trainer.utils import RepeatSampler

_LEFT_PADDED = frozenset({"prompt_ids", "prompt_mask"})


class EpochSampler(RepeatSampler):
    """TRL's sampler, whose order follows from (seed, epoch) alone, so that a run resumed in any epoch sees the same rows."""

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate before each epoch."""
        if self.shuffle:
            self.generator.manual_seed(self.seed + epoch)


def normalise(
    parts: list[dict[str, Any]],
    *,
    window: int,
    processes: int,
    loss_type: str,
    total: Callable[[torch.Tensor], torch.Tensor],
) -> list[dict[str, Any]]:
    """Takes what is not `kept` out of the masks of micro-batches, and gives each the factor that takes it out of the mean.

    `window` micro-batches make an optimizer step. TRL divides the sum over it by its number of answers (grpo, dr_grpo),
    micro-batches (bnpo) or tokens (dapo). Here only kept ones count: `loss_scale` is all / kept, and for dapo
    `num_items_in_batch` becomes what TRL needs to end at the step's own tokens. A step that keeps nothing has
    `rows_in_step` 0. `total` sums a tensor over processes.
    """
    for part in parts:
        part["completion_mask"] = part["completion_mask"] * part["kept"].unsqueeze(1)
    local = torch.stack([torch.stack([p["kept"].sum(), p["kept"].any().long(), _tokens(p)]) for p in parts])
    counts = total(local)  # (micro-batches, [answers, whether any, tokens])
    for start in range(0, len(parts), window):
        step = counts[start : start + window]
        rows, batches, tokens = step.sum(dim=0)
        scale = torch.ones_like(rows, dtype=torch.float)
        if loss_type == "bnpo":
            scale = window * processes / batches.clamp(min=1)
        elif loss_type != "dapo":
            scale = len(parts[start]["kept"]) * window * processes / rows.clamp(min=1)
        for part, count in zip(parts[start : start + window], step, strict=True):
            part["num_items_in_batch"] = tokens * len(parts) / window
            part |= {"loss_scale": scale, "rows_in_step": rows, "rows_in_part": count[0]}
    return parts


def _tokens(part: dict[str, Any]) -> torch.Tensor:
    mask = part["completion_mask"]
    return (mask * part["tool_mask"] if "tool_mask" in part else mask).sum()


def replace_groups(
    base: dict[str, Any], extra: dict[str, Any], used: list[tuple[int, int]], size: int, pad_id: int
) -> None:
    """Puts group c of `extra` into place g of `base`, for each (g, c); both are padded to the longer width."""
    if not used:
        return
    to = torch.tensor([g * size + i for g, _ in used for i in range(size)])
    of = torch.tensor([c * size + i for _, c in used for i in range(size)])
    for name, value in base.items():
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            continue
        fill = pad_id if name.endswith("_ids") else 1 if name == "tool_mask" else 0
        source = extra[name]
        if value.ndim == 2:
            width = max(value.shape[1], source.shape[1])
            value, source = (_widened(t, width, fill, left=name in _LEFT_PADDED) for t in (value, source))
        value = value.clone()
        value[to] = source[of]
        base[name] = value


def _widened(tensor: torch.Tensor, width: int, fill: int, *, left: bool) -> torch.Tensor:
    missing = width - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (missing, 0) if left else (0, missing), value=fill)
