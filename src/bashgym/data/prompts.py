"""The valid rows of the methods that train on prompts, in the order of the file: what preflight counted, the trainer reads.

Owns the iteration and the wrapping of plain strings into turns. What makes a row valid is `preferences`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from bashgym.data import preferences
from bashgym.data.findings import Collector
from bashgym.data.formats import PROBE_ROWS
from bashgym.data.preferences import PairWatch, PromptRow, Side
from bashgym.data.readers import Scan


def iter_prompt_rows(
    path: Path,
    method: str,
    *,
    column_mapping: Mapping[str, str] | None = None,
    wrap: bool = False,
    reward_mode: str | None = None,
) -> Iterator[PromptRow]:
    """Every row that keeps the contract of `method`; identical pairs are left out, as the contract counts them.

    `wrap` turns a plain prompt into one user turn and plain answers into one assistant turn each. Raises `dataset_*`.
    """
    collector, pairs = Collector([]), PairWatch()
    columns: dict[str, str] = {}
    scan = Scan(Path(path), collector)
    for batch in scan:
        if not columns:
            columns = preferences.resolve(method, batch.values[:PROBE_ROWS], column_mapping, scan.path, reward_mode)
        for number, value in zip(batch.numbers, batch.values, strict=True):
            row = preferences.check_row(method, columns, number, value, collector)
            if row is None or (method == "dpo" and pairs.add(number, row)):
                continue
            yield wrapped(row) if wrap else row


def wrapped(row: PromptRow) -> PromptRow:
    """The row with a plain prompt as a user turn and plain answers as assistant turns."""
    prompt = _turn("user", row.prompt)
    answers = {name: _turn("assistant", side) for name, side in row.sides.items()}
    return PromptRow(prompt, answers, row.number, row.value, row.tools)


def _turn(role: str, side: Side) -> Side:
    return [{"role": role, "content": side}] if isinstance(side, str) else side
