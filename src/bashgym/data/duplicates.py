"""Rows that occur twice: within one file while it streams by, and between a training and an evaluation file.

Owns: the counting. Memory: 8 bytes a row, on disk beyond a million rows; `overlap` holds the evaluation side only.
Does not own: near duplicates beyond case, white space and key order.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from bashgym.core.errors import BashGymError
from bashgym.data.formats import iter_examples
from bashgym.data.readers import iter_rows
from bashgym.data.types import MAX_ROWS_LISTED, Finding, Severity, SftExample

_BUFFER_ROWS = 1 << 20
_SMALL_ROWS = 200_000
_PART_ROWS = 1 << 21
_NO_ROW = 0


class RowHashes:
    """64-bit hashes of a file's rows in row order. The hash is Python's keyed one: a file cannot aim at collisions."""

    def __init__(self) -> None:
        self._hashes = array("q")
        self._spilled: IO[bytes] | None = None
        self._length = 0

    def add(self, numbers: Sequence[int], rows: list[bytes]) -> None:
        """`numbers` are 1-based and rise; rows left out are skipped over."""
        if not rows:
            return
        if numbers[-1] - numbers[0] + 1 != len(rows):
            for number, row in zip(numbers, rows, strict=True):
                self.add((number,), [row])
            return
        self._pad(numbers[0] - 1 - self._length)
        self._hashes.extend(map(hash, rows))
        self._length = numbers[-1]
        if len(self._hashes) >= _BUFFER_ROWS:
            self._spill()

    def _pad(self, gap: int) -> None:
        while gap > 0:
            step = min(gap, _BUFFER_ROWS)
            self._hashes.extend(array("q", bytes(8 * step)))
            gap -= step
            if len(self._hashes) >= _BUFFER_ROWS:
                self._spill()

    def _spill(self) -> None:
        if self._spilled is None:
            self._spilled = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `repeats`
        self._hashes.tofile(self._spilled)
        self._hashes = array("q")

    def repeats(self) -> tuple[int, list[int]]:
        """How many rows repeat an earlier one, and the first of their numbers."""
        if self._spilled is None and self._length <= _SMALL_ROWS:
            return _repeats_small(self._hashes)
        self._spill()
        spilled = self._spilled
        assert spilled is not None  # noqa: S101 - set by _spill
        with spilled:
            return _repeats_large(spilled, self._length)


def _repeats_small(hashes: array[int]) -> tuple[int, list[int]]:
    if len(set(hashes)) == len(hashes):
        return 0, []
    seen: set[int] = set()
    repeated = []
    for number, value in enumerate(hashes, 1):
        if value in seen:
            repeated.append(number)
        elif value != _NO_ROW:
            seen.add(value)
    return len(repeated), repeated[:MAX_ROWS_LISTED]


def _repeats_large(file: IO[bytes], length: int) -> tuple[int, list[int]]:
    """Part by part of the hash space, so that one part is in memory at a time."""
    import numpy as np

    bits = max(0, (length // _PART_ROWS).bit_length())
    total, rows = 0, list[int]()
    for part in range(1 << bits):
        file.seek(0)
        hashes, numbers, start = [], [], 1
        while block := file.read(8 * _BUFFER_ROWS):
            values = np.frombuffer(block, dtype=np.int64)
            taken = np.flatnonzero(((values & ((1 << bits) - 1)) == part) & (values != _NO_ROW))
            hashes.append(values[taken])
            numbers.append(taken + start)
            start += len(values)
        found, number = np.concatenate(hashes), np.concatenate(numbers)
        order = np.argsort(found, kind="stable")
        again = order[1:][found[order[1:]] == found[order[:-1]]]
        total += len(again)
        rows = sorted([*rows, *np.sort(number[again])[:MAX_ROWS_LISTED].tolist()])[:MAX_ROWS_LISTED]
    return total, rows


def overlap(
    train_path: Path,
    eval_path: Path,
    *,
    dataset_format: str = "auto",
    column_mapping: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Evaluation rows that the model will have seen: exact, normalised, and same prompt with another answer.

    Exact ignores key order and the columns that training does not use. Normalised ignores case and white space. A row
    is named once, under the closest kind. Raises what `iter_rows` raises.
    """
    levels: list[dict[int, list[int]]] = [{}, {}, {}]
    for row, keys in _keyed(Path(eval_path), dataset_format, column_mapping):
        for level, key in zip(levels, keys, strict=True):
            if key is not None:
                level.setdefault(key, []).append(row)
    hit: list[set[int]] = [set(), set(), set()]
    for _, keys in _keyed(Path(train_path), dataset_format, column_mapping):
        for level, key, rows in zip(levels, keys, hit, strict=True):
            if key in level:
                rows.update(level[key])
    exact, normalised, prompt = hit
    kinds = (
        ("eval_duplicate_exact", exact, "is also in train, an exact duplicate"),
        ("eval_duplicate_normalised", normalised - exact, "is also in train, a duplicate but for case and white space"),
        ("eval_same_prompt", prompt - normalised - exact, "has the prompt of a train row with another answer"),
    )
    return [_finding(code, sorted(rows), text) for code, rows, text in kinds if rows]


def _finding(code: str, rows: list[int], text: str) -> Finding:
    listed = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    kind = (
        "duplicates between eval and train" if code != "eval_same_prompt" else "near duplicates between eval and train"
    )
    return Finding(
        code=code,
        severity=Severity.WARNING,
        message=f"{kind}: {len(rows)} eval row(s) ({listed}): each {text}",
        mend="Drop these rows from eval, or their twins from train; else the eval figures flatter the model.",
        field="eval_path",
        rows=tuple(rows[:MAX_ROWS_LISTED]),
        count=len(rows),
    )


_Keys = tuple[int, int, int | None]


def _keyed(path: Path, dataset_format: str, column_mapping: Mapping[str, str] | None) -> Iterator[tuple[int, _Keys]]:
    """(row, hashes of the row, of its normal form, of its normalised prompt)."""
    try:
        examples = iter_examples(path, [], dataset_format=dataset_format, column_mapping=column_mapping)
        first = next(examples, None)
    except BashGymError as error:
        if error.code != "dataset_format":
            raise
        for row in iter_rows(path, []):
            yield row.number, _keys(row.value, row.value.get("prompt"))
        return
    if first is not None:
        yield first.row, _keys(*_parts(first))
    for example in examples:
        yield example.row, _keys(*_parts(example))


def _keys(whole: object, prompt: object) -> _Keys:
    return _hash(whole), _hash(normal(whole)), None if prompt is None else _hash(normal(prompt))


def _parts(example: SftExample) -> tuple[object, object]:
    """The example without row number, weights and tools, and its prompt: all before the last assistant turn."""
    if example.messages is not None:
        turns = example.messages
        last = max((i for i, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
        return turns, turns[:last] or None
    if example.text is not None:
        return example.text, None
    return [example.prompt, example.completion], example.prompt


def normal(value: object) -> object:
    """`value` with case folded and white space collapsed in every text."""
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, list):
        return [normal(item) for item in value]
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items()}
    return value


_encoder = msgspec.json.Encoder(order="sorted")


def _hash(value: Any) -> int:
    return hash(_encoder.encode(value))
