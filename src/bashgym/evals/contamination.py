"""Does training data hold the held-out tasks? Word n-grams of their instructions, looked for in every text of every row.

Covers: an instruction quoted whole or in part, other case, spacing and punctuation, any column and any turn of a dataset.
Does not cover: paraphrases, translations, solutions that are given without their task, and parts of instructions in
scripts without spaces between words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bashgym.data.readers import iter_rows
from bashgym.data.types import Finding

BIG, SMALL, JACCARD = 13, 3, 0.7
"""Words of a run that is no accident (Brown et al. 2020, arXiv:2005.14165, C); and of the runs whose overlap counts."""
QUOTE = 6
"""Fewer words, such as "fix the bug", stand in many texts."""
_WORD = re.compile(r"\w+")
_MAX_DEPTH = 16

Gram = tuple[str, ...]


def contaminated(instructions: Mapping[str, str], dataset: Path) -> dict[str, dict[str, Any]]:
    """Id -> {kind, row} of instructions that the dataset holds, at the first row that does.

    `exact`: a text that is nothing else, or all its words in order inside a text if there are six or more.
    `13gram_overlap`: 13 words in a row. `3gram_jaccard`: at least .7 of the 3-word runs of both. Raises what
    `iter_rows` raises.
    """
    held = _Held(instructions)
    found: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    for row in iter_rows(dataset, findings):
        for text in _texts(row.value):
            for name, kind in held.matches(tuple(_words(text))):
                found.setdefault(name, {"kind": kind, "row": row.number})
        if len(found) == len(instructions):
            break
    return found


class _Held:
    """The instructions, indexed by what may be seen of them."""

    def __init__(self, instructions: Mapping[str, str]) -> None:
        self._words = {name: tuple(_words(text)) for name, text in instructions.items()}
        self._small = {name: set(_grams(words, SMALL)) for name, words in self._words.items()}
        self._whole: dict[Gram, list[str]] = {}
        self._big: dict[Gram, list[str]] = {}
        self._rare: dict[Gram, list[str]] = {}
        often = Counter(gram for grams in self._small.values() for gram in grams)
        for name, words in self._words.items():
            if words:
                self._whole.setdefault(words, []).append(name)
            for gram in set(_grams(words, BIG)):
                self._big.setdefault(gram, []).append(name)
            # Who shares .7 of n runs shares one of any .3 n + 1: the rarest, so that a common preamble costs nothing.
            grams = sorted(self._small[name], key=lambda gram: (often[gram], gram))
            for gram in grams[: len(grams) - math.ceil(JACCARD * len(grams)) + 1]:
                self._rare.setdefault(gram, []).append(name)

    def matches(self, words: Gram) -> Iterator[tuple[str, str]]:
        """(id, kind) of all that a text of these words holds, the closest kind first."""
        for name in self._whole.get(words, ()):
            yield name, "exact"
        grams = set(_grams(words, SMALL))
        likely = {name for gram in grams if gram in self._rare for name in self._rare[gram]}
        for name in likely:
            if len(self._words[name]) >= QUOTE and self._small[name] <= grams and _within(self._words[name], words):
                yield name, "exact"
        for gram in _grams(words, BIG):
            for name in self._big.get(gram, ()):
                yield name, f"{BIG}gram_overlap"
        for name in likely:
            if len(self._small[name] & grams) >= JACCARD * len(self._small[name] | grams):
                yield name, f"{SMALL}gram_jaccard"


def _within(part: Gram, whole: Gram) -> bool:
    return any(word == part[0] and whole[i : i + len(part)] == part for i, word in enumerate(whole))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _grams(words: Gram, size: int) -> Iterator[Gram]:
    return (words[i : i + size] for i in range(len(words) - size + 1))


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Every string in a row, however deep within reason."""
    if isinstance(value, str):
        yield value
    elif depth < _MAX_DEPTH and isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item, depth + 1)
