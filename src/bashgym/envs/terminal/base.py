"""What a task family is made of: random values from disjoint pools, a draft of one task, and the registry.

Names and words are two consonant-vowel syllables. A word's own hash decides whether training may see it, so the pools
cannot overlap, whatever the seed. Small closed classes (extensions, line counts, modes) are shared by all splits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import product

CONSONANTS, VOWELS = "bdfklmnrst", "aeiou"
HELDOUT_SHARE = 64
"""Of 256: the hash bytes below it are held out."""
RESERVED = frozenset(
    {"done", "file", "line", "make", "mode", "move", "name", "rule", "side", "size", "take", "type", "note"}
)
"""Words that instructions or commands use themselves."""
EXTENSIONS = ("txt", "log", "csv", "md")


class Category(StrEnum):
    """What a family is about."""

    FILES = "files"
    TEXT = "text"
    SEARCH = "search"
    COUNTING = "counting"
    ARCHIVES = "archives"
    PERMISSIONS = "permissions"
    SCRIPTS = "scripts"


class Split(StrEnum):
    """Which tasks may be trained on."""

    TRAIN = "train"
    HELDOUT_VALUES = "heldout_values"
    """Training families, names and words that training never sees."""
    HELDOUT_FAMILIES = "heldout_families"
    """Families that training never sees, with held-out names and words too."""


@dataclass(frozen=True)
class Draft:
    """One task before it becomes an environment: what there is, what shall be there afterwards, and nothing else."""

    instruction: str
    solution: str
    wrong: tuple[str, ...]
    """Plausible commands that miss."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Files of the workspace: path -> text."""
    after: Mapping[str, str | None] = field(default_factory=dict)
    """All files of the finished workspace; None: its content is judged by `check`."""
    folders: tuple[str, ...] = ()
    """Folders of the finished workspace that hold no file."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links of the finished workspace: path -> target."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """Octal modes that are part of the goal: path -> `640`."""
    setup: tuple[str, ...] = ()
    """Commands that turn `before` into what the model finds."""
    check: str = ""
    """Shell lines after the comparison of the whole tree; a failing one fails the task."""
    probe: str = ""
    """Runs the script that the model wrote; its output is at $BASHGYM_VERIFIER_DIR/probe.out for `check`."""


@dataclass(frozen=True)
class Family:
    """One kind of task."""

    name: str
    category: Category
    split: Split
    """TRAIN or HELDOUT_FAMILIES."""
    draft: Callable[[Draw], Draft]


FAMILIES: dict[str, Family] = {}


def family(
    category: Category, split: Split = Split.TRAIN
) -> Callable[[Callable[[Draw], Draft]], Callable[[Draw], Draft]]:
    """Registers a draft function under its own name."""

    def register(draft: Callable[[Draw], Draft]) -> Callable[[Draw], Draft]:
        FAMILIES[draft.__name__] = Family(draft.__name__, category, split, draft)
        return draft

    return register


def is_heldout(word: str) -> bool:
    """Whether training never sees this name or word."""
    return hashlib.sha256(word.encode()).digest()[0] < HELDOUT_SHARE


@cache
def words(heldout: bool) -> tuple[str, ...]:
    """One of the two pools."""
    all_syllables = [c + v for c, v in product(CONSONANTS, VOWELS)]
    every = (first + second for first, second in product(all_syllables, repeat=2) if first != second)
    return tuple(word for word in every if word not in RESERVED and is_heldout(word) is heldout)


def syllables(word: str) -> tuple[str, str]:
    """The two of a word."""
    return word[:2], word[2:]


class Draw:
    """Random values for one draft. No word comes twice, so a name never equals a word in a file.

    The words of the instruction do not even share a syllable: which of them is meant is never a matter of spelling.
    """

    def __init__(self, rng: random.Random, heldout: bool) -> None:
        self._rng, self._words = rng, words(heldout)
        self._used, self._syllables = set[str](), set[str]()

    def word(self) -> str:
        """A word for the instruction or a name."""
        word = self._rng.choice(self._words)
        while word in self._used or not self._syllables.isdisjoint(syllables(word)):
            word = self._rng.choice(self._words)
        self._syllables.update(syllables(word))
        self._used.add(word)
        return word

    def filler(self) -> str:
        """A word for the inside of a file."""
        while (word := self._rng.choice(self._words)) in self._used:
            pass
        self._used.add(word)
        return word

    def file(self, extension: str = "txt") -> str:
        """A file name."""
        return f"{self.word()}.{extension}"

    def pick(self, *options: str) -> str:
        """One of `options`."""
        return self._rng.choice(options)

    def number(self, low: int, high: int) -> int:
        """low <= n <= high."""
        return self._rng.randint(low, high)

    def lines(self, low: int, high: int) -> list[str]:
        """Different lines, each of one new word or two."""
        return [" ".join(self.filler() for _ in range(self.number(1, 2))) for _ in range(self.number(low, high))]

    def shuffled(self, values: list[str]) -> list[str]:
        """A shuffled copy."""
        return self._rng.sample(values, len(values))


def text(lines: list[str]) -> str:
    """Lines as a file's content."""
    return "".join(f"{line}\n" for line in lines)
