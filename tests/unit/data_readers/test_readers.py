"""Rows: numbering, faults by line, memory, and that no bytes at all can crash the reader."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.core.errors import BashGymError
from bashgym.data.readers import iter_rows
from bashgym.data.splitter import MAX_ROW_BYTES, Splitter
from bashgym.data.types import Severity

from .support import fuzz, raw, read

GOOD = b'{"a":"x"}'


def test_blank_lines_are_skipped_and_still_counted(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, b"\n" + GOOD + b"\n\n  \n" + GOOD + b"\n"))
    assert [number for number, _ in rows] == [2, 5]
    assert not findings


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000])
def test_numbers_that_json_cannot_hold_are_errors_by_line(tmp_path: Path, text: str) -> None:
    rows, findings = read(raw(tmp_path, GOOD + b'\n{"a":' + text.encode() + b"}\n" + GOOD))
    assert [number for number, _ in rows] == [1, 3]
    assert findings["nan_or_infinity"].rows == (2,)
    assert "line 2" in findings["nan_or_infinity"].message


def test_the_word_nan_in_a_text_is_fine(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, b'{"a":"NaN, Infinity and 1e999"}'))
    assert rows
    assert not findings


def test_a_lone_surrogate_is_an_error_and_a_pair_is_an_emoji(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, b'{"a":"\\ud83d x"}\n{"a":"\\ud83d\\ude00"}\n{"\\udc00":1}\n'))
    assert [value for _, value in rows] == [{"a": "😀"}]
    assert findings["lone_surrogate"].rows == (1, 3)


def test_nul_is_a_warning_and_an_escaped_backslash_before_u_is_not(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, b'{"a":"x\\u0000y"}\n{"a":"x\\\\u0000y"}\n'))
    assert len(rows) == 2
    assert findings["nul_character"].rows == (1,)
    assert findings["nul_character"].severity is Severity.WARNING


def test_integers_over_64_bits_are_named_and_not_altered(tmp_path: Path) -> None:
    digits = "123456789012345678901234567890"
    limits = f'{{"a":{2**64 - 1},"b":{-(2**63)}}}'
    rows, findings = read(raw(tmp_path, f'{{"a":{digits}}}\n{limits}\n{{"a":{2**64}}}\n'.encode()))
    assert rows[0][1]["a"] == int(digits)
    assert findings["integer_over_64_bit"].rows == (1, 3)


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1,"a":2}',
        b'{"a" :1,"a":":"}',
        b'{"a":1,"\\u0061":2}',
        b'{"b":"\\u0022","a":{"c":1,"c":2}}',
        b'{"b":[{"k":"\\\\","k":"\\""}]}',
    ],
)
def test_a_doubled_key_is_an_error_however_it_hides(tmp_path: Path, line: bytes) -> None:
    rows, findings = read(raw(tmp_path, GOOD + b"\n" + line))
    assert len(rows) == 1
    assert findings["duplicate_key"].rows == (2,)


@fuzz(60)
@given(
    st.dictionaries(
        st.text(max_size=5), st.text(max_size=8) | st.integers() | st.lists(st.text(max_size=4)), max_size=4
    )
)
def test_a_row_without_doubled_keys_is_never_accused(tmp_path: Path, value: dict[str, object]) -> None:
    for ascii_only in (True, False):
        rows, findings = read(raw(tmp_path, json.dumps(value, ensure_ascii=ascii_only).encode()))
        assert rows == [(1, value)]
        assert findings.keys() <= {"nul_character", "integer_over_64_bit"}


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_ten_thousand_levels_are_an_error_not_a_crash(tmp_path: Path, opening: bytes) -> None:
    _, findings = read(raw(tmp_path, GOOD + b"\n" + b'{"a":' + opening * 10_000))
    assert [finding.severity for finding in findings.values()] == [Severity.ERROR]


def test_a_torn_last_line_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, GOOD + b"\n" + GOOD + b'\n{"a":"cut in the mid'))
    assert len(rows) == 2
    assert findings["torn_last_line"].rows == (3,)


def test_a_broken_line_in_the_middle_names_its_character(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, GOOD + b'\n{"a":"x",}\n' + GOOD + b"\n"))
    assert [number for number, _ in rows] == [1, 3]
    assert "line 2" in findings["json_invalid"].message


@pytest.mark.parametrize("line", [b"1", b'"text"', b"null", b"true", b"[1]"])
def test_a_line_that_is_no_object_is_an_error(tmp_path: Path, line: bytes) -> None:
    rows, findings = read(raw(tmp_path, GOOD + b"\n" + line + b"\n"))
    assert len(rows) == 1
    assert findings["row_not_object"].rows == (2,)


def test_a_long_row_is_read_and_named(tmp_path: Path) -> None:
    long = b'{"a":"' + b"x" * (2 << 20) + b'"}'
    rows, findings = read(raw(tmp_path, GOOD + b"\n" + long + b"\n" + GOOD))
    assert len(rows) == 3
    assert "row 2" in findings["row_very_long"].message
    assert "length" in findings["row_very_long"].message


def test_a_hundred_megabyte_line_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as out:
        out.write(GOOD + b'\n{"a":"')
        for _ in range(100):
            out.write(b"x" * (1 << 20))
        out.write(b'"}\n' + GOOD + b"\n")
    tracemalloc.start()
    rows, findings = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [number for number, _ in rows] == [1, 3]
    assert findings["line_too_long"].rows == (2,)
    assert peak < MAX_ROW_BYTES + (8 << 20)


def test_a_small_gzip_that_unpacks_to_a_huge_line_is_skipped_too(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"a":"' + b"x" * (MAX_ROW_BYTES + 10) + b'"}\n' + GOOD, 1)
    rows, findings = read(raw(tmp_path, packed, "rows.jsonl.gz"))
    assert [number for number, _ in rows] == [2]
    assert "line_too_long" in findings


def test_an_array_numbers_its_elements(tmp_path: Path) -> None:
    rows, _ = read(raw(tmp_path, b'[\n {"a": "x, ]}{"},\n\n {"a": "\\""}, {"a":[{}]} ]\n', "rows.json"))
    assert rows == [(1, {"a": "x, ]}{"}), (2, {"a": '"'}), (3, {"a": [{}]})]


def test_one_object_over_several_lines_is_one_row(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, json.dumps({"a": [1, {"b": 2}]}, indent=2).encode(), "row.json"))
    assert rows == [(1, {"a": [1, {"b": 2}]})]
    assert not findings


@pytest.mark.parametrize(
    "data", [b'[{"a":1} {"a":2}]', b'[{"a":1},{"a":2}', b'[{"a":1},,{"a":2}]', b'[{"a":1}]{"a":2}', b'[{"a":1},{"a":']
)
def test_a_broken_array_is_an_error_after_the_rows_before_it(tmp_path: Path, data: bytes) -> None:
    rows, findings = read(raw(tmp_path, data, "rows.json"))
    assert rows[0] == (1, {"a": 1})
    assert findings["json_invalid"].severity is Severity.ERROR


@fuzz(60)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=4), st.text(max_size=9) | st.lists(st.integers(), max_size=3), max_size=3),
        max_size=6,
    ),
    st.integers(1, 9),
    st.sampled_from([None, 0, 2]),
)
def test_the_splitter_does_not_care_where_chunks_end(values: list[object], size: int, indent: int | None) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=False).encode()
    splitter = Splitter()
    elements = [element for start in range(0, len(data), size) for element in splitter.feed(data[start : start + size])]
    elements += splitter.finish()
    assert splitter.fault == ""
    assert [json.loads(element) for element in elements] == values


def test_the_first_error_does_not_end_the_file_and_findings_stay_few(tmp_path: Path) -> None:
    lines = [b'{"a":%d,}' % number * (1 + number % 50) for number in range(5000)]
    _, findings = read(raw(tmp_path, b"\n".join(lines) + b"\n" + GOOD))
    assert sum(len(finding.rows) for finding in findings.values()) <= 50 * len(findings)
    assert len(findings) <= 5


def test_stopping_early_still_delivers_the_findings(tmp_path: Path) -> None:
    findings: list[object] = []
    rows = iter_rows(raw(tmp_path, b"\xef\xbb\xbf" + GOOD + b"\n" + GOOD), findings)  # type: ignore[arg-type]
    next(rows)
    rows.close()
    assert findings


_FRAGMENTS = st.sampled_from(
    b'{ } [ ] " \\ , : < NaN 1e999 null PAR1 \\ud800 \\u0000 {"text":"a"} {"messages":[]}'.split(b" ")
    + list(b"\n|\r\n|\x00|\xff|\xef\xbb\xbf|\xff\xfe|\x1f\x8b|\xed\xa0\x80| ".split(b"|"))
)


@fuzz(200)
@given(st.binary(max_size=60) | st.lists(_FRAGMENTS, max_size=14).map(b"".join))
def test_no_bytes_crash_the_reader(tmp_path: Path, data: bytes) -> None:
    path = raw(tmp_path, data, "fuzz.jsonl")
    try:
        rows, findings = read(path)
    except BashGymError as error:
        assert error.code in ("dataset_empty", "dataset_unreadable")
    else:
        assert rows or any(finding.severity is Severity.ERROR for finding in findings.values())
        json.dumps([value for _, value in rows], allow_nan=False).encode()
