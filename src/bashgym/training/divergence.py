"""Distances between a teacher's and a student's next-token distributions, in plain torch.

Owns the formulas only: no masks, no averages over tokens, no weights, no T² (its place is with the loss that adds
cross-entropy). Both distributions are softened by the same temperature, as in Hinton et al. 2015, section 2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

_LOWEST = -1e6
"""Log-probabilities are not below this: a token that is impossible for one side costs much, but is no infinity."""


def token_divergence(student_logits: Tensor, teacher_logits: Tensor, kind: str, temperature: float) -> Tensor:
    """Divergence at each position in nats: logits [..., V] of both sides -> float32 [...].

    With p the teacher and q the student, both softmax(logits / temperature):

    - `forward_kl`: KL(p‖q) = Σ p·(log p − log q). Hinton et al. 2015 (arXiv 1503.02531), up to the teacher's entropy.
    - `reverse_kl`: KL(q‖p) = Σ q·(log q − log p). Gu et al. 2023, MiniLLM (arXiv 2306.08543).
    - `jsd`: ½·KL(p‖m) + ½·KL(q‖m), m = ½·(p + q). Agarwal et al. 2023, GKD (arXiv 2306.13649), at β = ½.

    Not NaN where logits are saturated or −inf; NaN and +inf logits stay visible as NaN. ValueError on another kind.
    """
    log_q, log_p = _log_softmax(student_logits, temperature), _log_softmax(teacher_logits, temperature)
    if kind == "forward_kl":
        return _kl(log_p, log_q)
    if kind == "reverse_kl":
        return _kl(log_q, log_p)
    if kind == "jsd":
        log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
        return 0.5 * _kl(log_p, log_m) + 0.5 * _kl(log_q, log_m)
    raise ValueError(f"no divergence is named {kind!r}")


def sorted_distance(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Distance of two distributions over different vocabularies: [N, V1] and [N, V2] -> float32 [N], from 0 to 2.

    Σᵢ |p↓ᵢ − q↓ᵢ|, both sorted, the shorter padded with zeros: the Wasserstein-1 distance under a uniform cost. Boizard
    et al. 2024, Universal Logit Distillation (arXiv 2402.12030). It sees how sure the teacher is, not of what.
    """
    sides = [
        torch.softmax(logits.float() / temperature, dim=-1).sort(dim=-1, descending=True).values
        for logits in (student_logits, teacher_logits)
    ]
    width = max(side.size(-1) for side in sides)
    student, teacher = (functional.pad(side, (0, width - side.size(-1))) for side in sides)
    return (student - teacher).abs().sum(-1)


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(logits.float() / temperature, dim=-1).clamp(min=_LOWEST)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p‖q) over the last dimension."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)
