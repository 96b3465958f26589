"""Answers that are labelled good or bad one by one, given to a method that wants pairs: a refusal with the label balance.

Owns how such a file is told and described. Does not train on it: that would be KTO (Ethayarajh et al. 2024).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NoReturn

from bashgym.core.errors import fail
from bashgym.data.findings import Collector
from bashgym.data.jsonfaults import json_type
from bashgym.data.readers import Scan

LABELS = ("label", "kto_tag")
"""Columns that say whether a row's answer is a good one."""


def refuse(path: Path, column: str) -> NoReturn:
    """`dataset_format` that says what the file is, and counts the labels in `column` over all its rows."""
    counts: Counter[str] = Counter()
    odd: list[int] = []
    for batch in Scan(path, Collector([])):
        for number, value in zip(batch.numbers, batch.values, strict=True):
            label = value.get(column)
            counts[json_type(label) if not isinstance(label, bool) else str(label).lower()] += 1
            if not isinstance(label, bool):
                odd.append(number)
    good, bad = counts.pop("true", 0), counts.pop("false", 0)
    parts = [f"label balance: {good} true, {bad} false" + (f" ({_ratio(good, bad)})" if good and bad else "")]
    if odd:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
        parts.append(f"the label is not true or false but {kinds} in rows {', '.join(map(str, odd[:5]))}")
    elif not good or not bad:
        parts.append(f"every label is {'true' if good else 'false'}: one class gives nothing to tell apart")
    raise fail(
        "dataset_format",
        f"{path} holds unpaired preferences: one answer and its {column} a row, not a chosen answer beside a rejected "
        f"one. {'; '.join(parts)}",
        hint="DPO needs prompt, chosen and rejected in one row: join a true and a false answer to the same prompt. "
        "KTO, which is not in this version, needs boolean labels of both classes" + _weights(good, bad),
        fields=[column],
    )


def _ratio(good: int, bad: int) -> str:
    return f"{good / bad:.3g}:1" if good >= bad else f"1:{bad / good:.3g}"


def _weights(good: int, bad: int) -> str:
    """KTO, section 4.2: good x desirable_weight / (bad x undesirable_weight) is to lie in [1, 4/3]."""
    if not good or not bad or 1 <= good / bad <= 4 / 3:
        return "."
    if good > bad:
        name, low, high = "undesirable_weight", 3 * good / (4 * bad), good / bad
    else:
        name, low, high = "desirable_weight", bad / good, 4 * bad / (3 * good)
    return f"; with this balance its {name} would be {low:.3g} to {high:.3g}."
