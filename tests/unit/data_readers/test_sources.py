"""What is not a readable dataset is refused by name; what is readable in another encoding is read."""

import gzip
import os
from pathlib import Path

import pytest

from bashgym.data.types import Severity

from .support import CHAT, jsonl, raw, read, refused

TWO = b'{"text":"one"}\n{"text":"two"}\n'


def test_a_missing_file_is_named_with_its_neighbour(tmp_path: Path) -> None:
    jsonl(tmp_path, CHAT, name="train.jsonl")
    error = refused(tmp_path / "trian.jsonl")
    assert error.code == "dataset_missing"
    assert "train.jsonl" in error.hint


@pytest.mark.parametrize("data", [b"", b"   \n\n\t\n", b"[]", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_a_file_without_rows_is_empty(tmp_path: Path, data: bytes) -> None:
    assert refused(raw(tmp_path, data)).code == "dataset_empty"


def test_a_folder_is_refused_and_its_files_are_offered(tmp_path: Path) -> None:
    jsonl(tmp_path, CHAT, name="train.jsonl")
    error = refused(tmp_path)
    assert error.code == "dataset_unreadable"
    assert "train.jsonl" in error.hint


def test_a_dangling_link_names_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone.jsonl")
    error = refused(tmp_path / "link")
    assert error.code == "dataset_missing"
    assert "gone.jsonl" in error.message


def test_a_link_to_itself_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refused(tmp_path / "loop").code in ("dataset_unreadable", "dataset_missing")


def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").code == "dataset_unreadable"


def test_a_name_with_a_nul_is_missing_not_a_crash(tmp_path: Path) -> None:
    assert refused(tmp_path / "a\0b").code == "dataset_missing"


def test_an_lfs_pointer_says_how_large_the_real_file_is(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"7" * 64 + b"\nsize 4242\n"
    error = refused(raw(tmp_path, pointer))
    assert error.code == "dataset_unreadable"
    assert "Git LFS pointer: the real file (4242 bytes) was not downloaded" in error.message.replace("is a ", "")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"PAR1\x15\x04", "Parquet"),
        (b"ARROW1\0\0", "Arrow"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x28\xb5\x2f\xfdrest", "zstd"),
        (b"SQLite format 3\0rest", "SQLite"),
        (b"prompt,completion\na,b\n", "CSV"),
        (b"<!DOCTYPE html><p>Sign in", "HTML"),
    ],
)
def test_other_formats_are_named_with_a_way_to_convert(tmp_path: Path, data: bytes, word: str) -> None:
    error = refused(raw(tmp_path, data))
    assert error.code == "dataset_unreadable"
    assert word in error.message
    assert error.hint


def test_a_bom_leaves_no_trace_in_keys(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, b"\xef\xbb\xbf" + TWO))
    assert rows == [(1, {"text": "one"}), (2, {"text": "two"})]
    assert findings["utf8_bom"].severity is Severity.INFO


def test_crlf_and_a_missing_last_newline_are_silent(tmp_path: Path) -> None:
    rows, findings = read(raw(tmp_path, TWO.replace(b"\n", b"\r\n")[:-2]))
    assert [value["text"] for _, value in rows] == ["one", "two"]
    assert not findings


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_is_read_after_saying_so(tmp_path: Path, encoding: str) -> None:
    rows, findings = read(raw(tmp_path, '{"text":"zażółć 🙂"}\n{"text":"b"}'.encode(encoding)))
    assert [value["text"] for _, value in rows] == ["zażółć 🙂", "b"]
    assert "UTF-" in findings["utf16_read"].message


def test_half_a_utf16_character_is_refused(tmp_path: Path) -> None:
    assert refused(raw(tmp_path, '{"text":"a"}'.encode("utf-16") + b"\x00")).code == "dataset_unreadable"


def test_latin1_is_refused_with_line_and_byte(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + TWO + '{"text":"über"}\n'.encode("latin-1")
    error = refused(raw(tmp_path, data))
    assert error.code == "dataset_unreadable"
    assert "line 3" in error.message
    assert f"byte offset {data.index(0xFC)} " in error.message


def test_latin1_in_an_array_names_the_same_byte(tmp_path: Path) -> None:
    data = '[\n{"text":"a"},\n{"text":"é"}]'.encode("latin-1")
    error = refused(raw(tmp_path, data, "rows.json"))
    assert f"byte offset {data.index(0xE9)} " in error.message


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    rows, _ = read(raw(tmp_path, gzip.compress(TWO), "rows.jsonl"))
    assert len(rows) == 2


def test_torn_gzip_is_unreadable(tmp_path: Path) -> None:
    assert refused(raw(tmp_path, gzip.compress(TWO * 1000)[:-9])).code == "dataset_unreadable"
