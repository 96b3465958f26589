"""Rows of the right columns and arbitrary contents: findings or a typed error, never a crash, for every method."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.core.errors import BashGymError
from bashgym.data.contracts import METHODS, check_dataset
from bashgym.data.convert import convert
from bashgym.data.duplicates import overlap
from bashgym.data.types import Severity

from .support import CHAT, fuzz, jsonl, raw

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
_TEXTS = st.sampled_from(
    ["user", "assistant", "tool", "function_call", "gpt", "text", "{", '{"name":"f"}', "[]", "", " "]
)
_KEYS = st.sampled_from(
    [
        "role",
        "from",
        "content",
        "value",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "type",
        "text",
        "id",
        "loss_weight",
    ]
)
_VALUES = st.recursive(
    _SCALARS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_COLUMNS = st.sampled_from(
    ["messages", "conversations", "prompt", "completion", "instruction", "output", "text", "tools", "system", "history"]
) | st.sampled_from(["chosen", "rejected", "answer", "tests", "teacher_response", "question"])
_TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "function_call"]), "content": _VALUES},
        optional={"tool_calls": _VALUES, "tool_call_id": _TEXTS, "loss_weight": _SCALARS},
    ),
    max_size=4,
)
_ROWS = st.lists(st.dictionaries(_COLUMNS, _VALUES | _TURNS, max_size=4), min_size=1, max_size=4)


@fuzz(50)
@given(_ROWS, st.sampled_from(METHODS))
def test_no_row_crashes_a_contract(tmp_path: Path, rows: list[dict[str, Any]], method: str) -> None:
    try:
        report = check_dataset(jsonl(tmp_path, *rows), method)
    except BashGymError as error:
        assert error.code == "dataset_format"
        return
    assert report.total_examples == len(rows)
    assert report.valid_examples <= len(rows)
    assert report.is_valid == (
        report.valid_examples == len(rows) and all(f.severity is not Severity.ERROR for f in report.findings)
    )


@fuzz(50)
@given(_ROWS)
def test_what_can_be_converted_is_canonical_and_is_its_own_duplicate(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    path, out = jsonl(tmp_path, *rows), tmp_path / "out.jsonl"
    try:
        result = convert(path, out, overwrite=True)
    except BashGymError as error:
        assert error.code in ("dataset_format", "dataset_empty")
        return
    lines = [json.loads(line) for line in out.read_text().split("\n") if line]
    assert len(lines) == result["rows_written"]
    assert check_dataset(out).valid_examples == len(lines)
    assert sum(finding.count for finding in overlap(path, out) if finding.code == "eval_duplicate_exact") == len(lines)


def test_the_digest_is_of_the_whole_file_even_where_reading_stopped(tmp_path: Path) -> None:
    import hashlib

    data = b"[" + json.dumps(CHAT).encode() + b",,{}]" + b" " * 600_000 + b"end"
    assert check_dataset(raw(tmp_path, data)).sha256 == hashlib.sha256(data).hexdigest()


def test_a_sample_of_a_faulty_row_does_not_show_a_key(tmp_path: Path) -> None:
    report = check_dataset(raw(tmp_path, b'{"key": "AKIA' + b"W" * 16 + b'", }'))
    assert report.issues[0].sample.startswith('{"key"')
    assert "WWWW" not in repr(report)


@pytest.mark.parametrize("size", [1, 5])
def test_a_file_of_bad_rows_only_is_a_report_not_a_crash(tmp_path: Path, size: int) -> None:
    report = check_dataset(raw(tmp_path, b"{]\n" * size))
    assert (report.total_examples, report.valid_examples, report.is_valid) == (size, 0, False)
