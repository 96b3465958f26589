"""Texts as vectors: mean-pooled last hidden states of a local causal model. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from bashgym.envs.rewards.rwml import Embed, Vector
from bashgym.training.load import choose_dtype, load_model, load_tokenizer

MAX_TOKENS = 512
"""Of a text; what is longer is cut."""
BATCH = 16


def model_embedding(folder: Path) -> Embed:
    """A function texts -> vectors, computed with the model in `folder`. An empty text is the zero vector."""
    tokenizer, model = load_tokenizer(folder), load_model(folder, dtype=choose_dtype("auto")).eval()
    model.requires_grad_(False)

    def embed(texts: Sequence[str]) -> list[Vector]:
        with torch.inference_mode():
            return pooled(texts)

    def pooled(texts: Sequence[str]) -> list[Vector]:
        found: list[Vector] = [{} for _ in texts]
        filled = [index for index, text in enumerate(texts) if text.strip()]
        for start in range(0, len(filled), BATCH):
            rows = filled[start : start + BATCH]
            encoded = tokenizer(
                [texts[i] for i in rows], padding=True, padding_side="right", truncation=True, max_length=MAX_TOKENS,
                add_special_tokens=False, return_tensors="pt",
            ).to(model.device)  # fmt: skip
            hidden = model.base_model(
                input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]
            ).last_hidden_state.float()
            mask = encoded["attention_mask"].unsqueeze(-1)
            means = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            for i, vector in zip(rows, means.tolist(), strict=True):
                found[i] = dict(enumerate(vector))
        return found

    return embed
