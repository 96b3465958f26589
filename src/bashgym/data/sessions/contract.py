"""What a session-distillation record must be, and reading the records of a file.

Owns the fields, the faults of one row and the confidence filter, so that building, `validate`, preflight, training and
the RunCard agree. Does not own tokens (`encode`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bashgym.data import textchecks
from bashgym.data.findings import Collector
from bashgym.data.jsonfaults import json_type
from bashgym.data.readers import Scan
from bashgym.methods.session_distillation import DATASET

TAG = "[Session Distillation Hint]"
TARGET_TYPES = ("tool_call", "command", "edit", "test_decision", "recovery_decision", "summary")
MASK_POLICY = "target_span_only"
_LIMITS = {"original_context": 1_000_000, "hinted_context": 1_000_000, "target_text": 100_000}
"""Characters at most."""
_TEXTS = (
    "record_id",
    "trace_id",
    "session_id",
    "decision_id",
    "original_context",
    "hinted_context",
    "hint_text",
    "target_text",
    "target_type",
    "reader_model",
    "verifier_outcome",
)
_SHARES = ("reader_confidence", "quality_score")


class Fault(NamedTuple):
    """One thing that is wrong with a row."""

    code: str
    field: str
    message: str


class Record(msgspec.Struct, frozen=True):
    """What training needs of a valid row."""

    row: int
    """1-based: the line in JSONL, the index in an array."""
    session_id: str
    original_context: str
    hinted_context: str
    hint_text: str
    target_text: str
    target_type: str
    confidence: float
    split: str
    """`train` or `validation` where the row says so, else empty."""


def faults(value: Mapping[str, Any]) -> list[Fault]:
    """Everything that is wrong with a row, by field; empty for a valid one."""
    missing = [name for name in DATASET.required if value.get(name) is None]
    if missing:
        return [Fault("missing_column", name, f"{name} is missing") for name in missing]
    wrong = [
        Fault("mixed_types", name, f"{name} is a {json_type(value[name])}, not a string")
        for name in _TEXTS
        if not isinstance(value[name], str)
    ]
    wrong += [
        Fault("empty_side", name, f"{name} is empty")
        for name in _TEXTS
        if isinstance(value[name], str) and not value[name].strip()
    ]
    return wrong or [Fault("session_record_invalid", field, message) for field, message in _broken_rules(value)]


def _broken_rules(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    original, hinted, target = value["original_context"], value["hinted_context"], value["target_text"]
    hint, span, metadata, index = (
        value["hint_text"],
        value["target_span"],
        value["source_metadata"],
        value["step_index"],
    )
    told = rf"(?<!\w){re.escape(target.strip())}(?!\w)"
    failed = metadata.get("failed_action") if isinstance(metadata, dict) else None
    rules = [
        ("record_id", re.fullmatch(r"[0-9a-f]{24}", value["record_id"]) is not None, "is not 24 hex digits"),
        ("hinted_context", original != hinted, "equals original_context: a hint that changes nothing teaches nothing"),
        ("original_context", TAG not in original, f"holds the tag {TAG}, which belongs into hinted_context alone"),
        ("hinted_context", hint in hinted.partition(TAG)[2], f"does not hold the tag {TAG} followed by hint_text"),
        ("target_text", TAG not in target and hint not in target, "holds the hint: the model would learn to write it"),
        ("target_text", target != failed, "is the action that failed, not its recovery"),
        ("hint_text", re.search(told, hint) is None, "gives the whole target away"),
        ("target_type", value["target_type"] in TARGET_TYPES, f"is not one of {', '.join(TARGET_TYPES)}"),
        ("target_span", span == {"start": 0, "end": len(target)}, f"is not all of target_text, 0 to {len(target)}"),
        (
            "loss_mask",
            value["loss_mask"] == {"policy": MASK_POLICY, "target_span": span},
            f"is not the policy {MASK_POLICY} with the row's target_span",
        ),
        ("step_index", type(index) is int and index >= 0, "is not the number of a step, from 0"),
        ("source_metadata", isinstance(metadata, dict), "is not an object"),
        *((name, _is_share(value[name]), "is not a number from 0 to 1") for name in _SHARES),
        *((name, len(value[name]) <= limit, f"has more than {limit} characters") for name, limit in _LIMITS.items()),
    ]
    return [(field, f"{field} {message}") for field, holds, message in rules if not holds]


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1


def check_record(number: int, value: Mapping[str, Any], collector: Collector) -> Record | None:
    """The row, or None after errors that name what is wrong with it."""
    found = faults(value)
    for code, field, message in found:
        collector.error(code, message, number, field)
    if found:
        return None
    return Record(
        number,
        value["session_id"],
        value["original_context"],
        value["hinted_context"],
        value["hint_text"],
        value["target_text"],
        value["target_type"],
        float(value["reader_confidence"]),
        str(value["source_metadata"].get("split") or ""),
    )


def scan_records(scan: Scan, collector: Collector) -> Iterator[Record]:
    """The valid rows of a pass over a file, in order."""
    for batch in scan:
        for index, (number, value) in enumerate(zip(batch.numbers, batch.values, strict=True)):
            if index in batch.odd:
                textchecks.check(number, value, collector)
            record = check_record(number, value, collector)
            if record is not None:
                yield record


def confident(path: Path, min_confidence: float) -> Iterator[Record]:
    """The valid rows whose reader was at least so sure. Raises `dataset_*`."""
    collector = Collector([])
    for record in scan_records(Scan(path, collector), collector):
        if record.confidence >= min_confidence:
            yield record
