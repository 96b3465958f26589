"""Doubles within a file, and between train and eval."""

import random
from pathlib import Path

import pytest

from bashgym.data import duplicates
from bashgym.data.duplicates import RowHashes, overlap
from bashgym.data.types import Finding

from .support import jsonl, turn


def _chat(question: str, answer: str) -> dict[str, object]:
    return {"messages": [turn("user", question), turn("assistant", answer)]}


def _overlap(folder: Path, train: list[object], held_out: list[object]) -> dict[str, Finding]:
    findings = overlap(jsonl(folder, *train, name="train.jsonl"), jsonl(folder, *held_out, name="eval.jsonl"))
    return {finding.code: finding for finding in findings}


def test_each_kind_names_its_eval_rows_once(tmp_path: Path) -> None:
    train = [_chat("Who?", "Me."), _chat("Where?", "Here."), _chat("Why?", "So.")]
    reordered = {
        "id": 9,
        "messages": [{"content": "Where?", "role": "user"}, {"content": "Here.", "role": "assistant"}],
    }
    held_out = [
        _chat("When?", "Now."),
        _chat("Who?", "Me."),
        reordered,
        _chat("  WHO? ", "me."),
        _chat("why?", "No idea."),
    ]
    found = _overlap(tmp_path, train, held_out)
    assert {code: finding.rows for code, finding in found.items()} == {
        "eval_duplicate_exact": (2, 3),
        "eval_duplicate_normalised": (4,),
        "eval_same_prompt": (5,),
    }
    assert all(word in finding.message for finding in found.values() for word in ("eval", "train", "duplicate"))


def test_clean_files_have_no_overlap(tmp_path: Path) -> None:
    assert not _overlap(tmp_path, [_chat("a", "b")], [_chat("c", "b")])


def test_a_shared_system_prompt_alone_is_no_overlap(tmp_path: Path) -> None:
    def row(question: str) -> dict[str, object]:
        return {"messages": [turn("system", "Be brief."), turn("user", question), turn("assistant", "ok")]}

    assert not _overlap(tmp_path, [row("a")], [row("b")])


def test_files_of_different_shape_are_still_compared(tmp_path: Path) -> None:
    pair = {"prompt": "p", "chosen": "c", "rejected": "r"}
    assert set(_overlap(tmp_path, [pair], [{**pair, "rejected": "s"}])) == {"eval_same_prompt"}
    assert set(_overlap(tmp_path, [{"text": "Same text"}], [{"text": "same  text"}])) == {"eval_duplicate_normalised"}


def test_rows_left_out_do_not_shift_the_numbers() -> None:
    hashes = RowHashes()
    hashes.add([2, 5, 6], [b"a", b"b", b"a"])
    hashes.add([9], [b"b"])
    assert hashes.repeats() == (2, [6, 9])


def test_the_large_path_agrees_with_the_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    rows = [b"%d" % rng.randrange(700) for _ in range(1000)]
    small, large = RowHashes(), RowHashes()
    small.add(range(1, 1001), rows)
    expected = small.repeats()
    monkeypatch.setattr(duplicates, "_BUFFER_ROWS", 64)
    monkeypatch.setattr(duplicates, "_PART_ROWS", 100)
    for start in range(0, 1000, 50):
        large.add(range(start + 1, start + 51), rows[start : start + 50])
    assert large.repeats() == expected
    assert expected[0] > 100
