"""Were held-out items in the training rows? Exact match of the last user turn, whitespace and case apart.

Covers: the same question in training and in the suite. Does not cover: paraphrases and n-gram overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bashgym.store.jsonl import iter_jsonl

_SPACE = re.compile(r"\s+")


def trained_on(prompts: dict[str, Any], dataset: Path) -> list[str]:
    """Ids of the items whose question is a question of the training file (JSONL)."""
    wanted: dict[str, list[str]] = {}
    for item, prompt in prompts.items():
        for text in _questions(prompt):
            wanted.setdefault(text, []).append(item)
    hit: set[str] = set()
    for row in iter_jsonl(dataset):
        for source in (row.get("messages"), row.get("prompt"), row.get("conversations"), row.get("instruction")):
            for text in _questions(source):
                hit.update(wanted.get(text, ()))
    return sorted(hit)


def _questions(prompt: Any) -> Iterator[str]:
    """Every user turn of a conversation, or the string itself, normalised."""
    if isinstance(prompt, str):
        if text := _normal(prompt):
            yield text
    elif isinstance(prompt, list):
        for turn in prompt:
            if not isinstance(turn, dict) or turn.get("role", turn.get("from")) not in ("user", "human"):
                continue
            content = turn.get("content", turn.get("value"))
            if isinstance(content, str) and (text := _normal(content)):
                yield text


def _normal(text: str) -> str:
    return _SPACE.sub(" ", text).strip().casefold()
