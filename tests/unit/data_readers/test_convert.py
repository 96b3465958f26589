"""The converted file reads back as the same examples, and is whole or absent."""

import json
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.convert import convert

from .support import CHAT, call, examples, jsonl, raw, turn

ROWS = [
    [{"instruction": "Add", "input": "1 2", "output": "3"}],
    [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}],
    [{"messages": [turn("user", "a", loss_weight=0), turn("assistant", "🙂\n\u2028", loss_weight=1)]}],
    [
        {
            "messages": [
                turn("user"),
                turn("assistant", None, tool_calls=[call("f", '{"n": 123456789012345678901234}')]),
            ],
            "tools": '[{"name":"f"}]',
        }
    ],
    [{"prompt": "p", "completion": " c"}],
    [{"text": "t\r\n"}],
]


@pytest.mark.parametrize("rows", ROWS)
def test_the_output_reads_back_the_same(tmp_path: Path, rows: list[object]) -> None:
    path = jsonl(tmp_path, *rows)
    result = convert(path, tmp_path / "out.jsonl")
    before, _ = examples(path)
    after, findings = examples(tmp_path / "out.jsonl")
    assert after == before
    assert "columns_mapped" not in findings
    assert (result["rows_read"], result["rows_written"], result["rows_skipped"]) == (1, 1, 0)


def test_bad_rows_are_left_out_and_reported(tmp_path: Path) -> None:
    good = json.dumps(CHAT).encode()
    path = raw(tmp_path, good + b'\n{"messages":[],"score":NaN}\n{"messages":[]}\n' + good)
    result = convert(path, tmp_path / "out.jsonl")
    assert (result["rows_read"], result["rows_written"], result["rows_skipped"]) == (4, 2, 2)
    assert {finding.code for finding in result["findings"]} >= {"nan_or_infinity", "messages_not_list"}
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [CHAT, CHAT]


def test_an_existing_file_is_kept_unless_told(tmp_path: Path) -> None:
    path, out = jsonl(tmp_path, CHAT), raw(tmp_path, b"precious", "out.jsonl")
    with pytest.raises(BashGymError) as caught:
        convert(path, out)
    assert caught.value.code == "file_exists"
    assert out.read_bytes() == b"precious"
    convert(path, out, overwrite=True)
    assert json.loads(out.read_text()) == CHAT


def test_the_dataset_itself_is_never_the_output(tmp_path: Path) -> None:
    path = jsonl(tmp_path, CHAT)
    before = path.read_bytes()
    with pytest.raises(BashGymError):
        convert(path, path, overwrite=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "data", [b'{"messages":[]}', b'{"messages":[{"role":"user","content":"a"}]}\n' + b'{"x":"\xff"}']
)
def test_a_failed_conversion_leaves_nothing(tmp_path: Path, data: bytes) -> None:
    path = raw(tmp_path, data)
    with pytest.raises(BashGymError):
        convert(path, tmp_path / "out.jsonl")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(BashGymError) as caught:
        convert(jsonl(tmp_path, CHAT), tmp_path / "nowhere" / "out.jsonl")
    assert caught.value.code == "directory_unwritable"
