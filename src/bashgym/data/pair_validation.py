"""Preference pairs as evidence: not only trainable, but identified, of known origin, and of one stated split.

Owns the codes of `bashgym.preference_pair_validation.v1`. Reads rows and columns exactly as the trainer does
(`preferences`), so that what passes here is what trains.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import canonical_json, digest_bytes
from bashgym.core.errors import BashGymError, fail
from bashgym.data import preferences
from bashgym.data.findings import Collector
from bashgym.data.formats import PROBE_ROWS
from bashgym.data.preferences import PairWatch, PromptRow, Side, side_text
from bashgym.data.readers import Scan
from bashgym.data.types import Severity

SCHEMA = "bashgym.preference_pair_validation.v1"
_IDS = ("pair_id", "id", "example_id")
_METADATA: dict[str, tuple[str, ...]] = {
    "missing_saved_prompt_hash": ("prompt_hash",),
    "missing_pair_generation_method": ("pair_generation_method", "preference_source"),
    "missing_chosen_trace_provenance": ("chosen_trace_id", "gold_trace_id", "gold_trace", "source_trace"),
    "missing_rejected_trace_provenance": ("rejected_trace_id", "failed_trace_id", "failed_trace", "source_trace"),
    "missing_label_strength": ("label_strength", "preference_strength", "label_source"),
    "missing_quality_scores": (
        "quality_score",
        "chosen_quality_score",
        "rejected_quality_score",
        "chosen_verification_score",
        "rejected_verification_score",
        "score_delta",
    ),
    "missing_domain_or_task_family": ("domain", "task_family"),
    "missing_split_metadata": ("split", "split_id", "split_policy"),
    "missing_decontamination_metadata": (
        "decontamination_status",
        "decontamination_manifest",
        "contamination_checked",
        "split_manifest",
    ),
}
"""Code -> the keys, of the row or of its `metadata`, of which one has to be there. A failure in strict mode only."""


def prompt_hash(prompt: Side) -> str:
    """The first 16 hex digits of sha256 over the prompt: a text's UTF-8, or the canonical JSON of a conversation."""
    return digest_bytes(prompt.encode() if isinstance(prompt, str) else canonical_json(prompt))[:16]


def validate_pairs(path: Path, *, strict: bool = False, max_length_ratio: float = 3.0) -> dict[str, Any]:
    """The report of a file: findings `{code, level, message, rows, count}`, rows 1-based; `ok` if none is a failure.

    `max_length_ratio`: characters of the longer answer over those of the shorter. Raises `dataset_missing`,
    `dataset_empty`, `dataset_unreadable` where there is nothing to judge.
    """
    if not max_length_ratio >= 1:
        raise fail(
            "invalid_field", f"max_length_ratio is {max_length_ratio}; it is at least 1", "", ["max_length_ratio"]
        )
    collector, pairs = Collector([]), PairWatch()
    scan = Scan(path, collector)
    columns: dict[str, str] = {}
    valid = 0
    for batch in scan:
        columns = columns or _columns(batch.values[:PROBE_ROWS], path)
        for number, value in zip(batch.numbers, batch.values, strict=True):
            _check_metadata(number, value, collector, strict)
            errors = collector.errors
            row = preferences.check_row("dpo", columns, number, value, collector)
            if row is not None:
                _check_pair(row, columns, pairs, collector, max_length_ratio)
            valid += collector.errors == errors
    collector.flush()
    findings = [as_finding(f) for f in msgspec.to_builtins(collector.out) if f["severity"] != Severity.INFO]
    levels = [finding["level"] for finding in findings]
    return {
        "schema_version": SCHEMA,
        "ok": "fail" not in levels,
        "path": str(path),
        "sha256": scan.sha256,
        "strict": strict,
        "max_length_ratio": max_length_ratio,
        "total_records": scan.rows,
        "trainable_records": valid,
        "fail_count": levels.count("fail"),
        "warn_count": levels.count("warn"),
        "findings": findings,
    }


def _columns(rows: list[dict[str, Any]], path: Path) -> dict[str, str]:
    """As the trainer finds them; where it would refuse the file, the best guess, so that each row names what it lacks."""
    try:
        return preferences.resolve("dpo", rows, None, path)
    except BashGymError:
        found = {key for row in rows for key in row}
        names = ("prompt", "chosen", "rejected")
        return {name: next((alias for alias in preferences.ALIASES[name] if alias in found), name) for name in names}


def _check_metadata(number: int, value: dict[str, Any], collector: Collector, strict: bool) -> None:
    if given(value, _IDS) is None:
        collector.error("missing_pair_id", f"none of {', '.join(_IDS)} is given", number, "pair_id")
    for code, keys in _METADATA.items():
        if given(value, keys) is None:
            severity = Severity.ERROR if strict else Severity.WARNING
            collector.add(code, severity, f"none of {', '.join(keys)} is given", row=number, field=keys[0])


def _check_pair(
    row: PromptRow, columns: dict[str, str], pairs: PairWatch, collector: Collector, max_length_ratio: float
) -> None:
    number = row.number
    if pairs.add(number, row):
        collector.error("identical_chosen_rejected", "chosen and rejected say the same", number, "rejected")
    shorter, longer = sorted(len(side_text(row.sides[name])) for name in ("chosen", "rejected"))
    if longer > max_length_ratio * shorter:
        text = f"one answer has more than {max_length_ratio:g} times the characters of the other"
        collector.warn("extreme_length_ratio", text, number, "rejected")
    stored = given(row.value, ("prompt_hash",))
    written = row.value.get(columns.get("prompt", ""))
    if stored is not None and stored != prompt_hash(written if isinstance(written, str) else row.prompt):
        text = "the stored prompt_hash is not that of the prompt (sha256, first 16 hex digits)"
        collector.error("prompt_hash_mismatch", text, number, "prompt_hash")


def given(value: dict[str, Any], keys: tuple[str, ...]) -> object:
    """The first value that says something, in the row or in its metadata."""
    nested = value.get("metadata")
    places = (value, nested) if isinstance(nested, dict) else (value,)
    return next((place[key] for place in places for key in keys if place.get(key) not in (None, "", [], {})), None)


def as_finding(found: dict[str, Any]) -> dict[str, Any]:
    """A finding of the reader or of a row under the code that this report has for it."""
    code, name = found["code"], found.get("field", "")
    if code in ("missing_column", "empty_side") and name in ("prompt", "chosen", "rejected"):
        code = f"missing_{name}"
    elif code == "row_not_object":
        code = "invalid_record_type"
    level = "fail" if found["severity"] == Severity.ERROR else "warn"
    kept = {"message": found["message"], "rows": list(found.get("rows", ())), "count": found.get("count", 0)}
    return {"code": code, "level": level, **kept}
