"""Which logits predict the labelled tokens of a batch. Imports torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bashgym.data.encode import IGNORED


def target_logits(model: Any, inputs: dict[str, Tensor], branch: str = "") -> tuple[Tensor, Tensor]:
    """(logits [N, V] that predict the target tokens of a branch, their ids [N]), row by row, from left to right.

    Position t predicts token t + 1, so a target at t reads the logits at t − 1. The head is computed only where a row
    of the batch has a target.
    """
    labels = inputs[f"{branch}labels"][:, 1:]
    mask = labels != IGNORED
    keep = mask.any(0).nonzero().squeeze(-1)
    logits = model(
        input_ids=inputs[f"{branch}input_ids"],
        attention_mask=inputs[f"{branch}attention_mask"],
        logits_to_keep=keep,
        use_cache=False,
    ).logits
    if logits.shape[1] != len(keep):  # an architecture that knows no logits_to_keep gives all
        logits = logits[:, keep]
    return logits[mask[:, keep]], labels[mask]


def target_logprobs(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """log p [N] of the target tokens, in float32."""
    logits, ids = target_logits(model, inputs)
    logprobs: Tensor = logits.float().log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
    return logprobs


def scores_at(logits: Tensor, ends: Tensor) -> Tensor:
    """Scores [B, S] of a reward model, in float32.

    `logits` is [B, 1], one score a sequence, or [B, T, 1], one a token, of which `ends` [B, S] picks.
    """
    if logits.dim() == 2:
        return logits.float()
    return logits.squeeze(-1).float().gather(1, ends.to(logits.device))
