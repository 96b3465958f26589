"""A row as the trainer sees it, and that view in a terminal that its data cannot take over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Make
from model_folder import MARKED, write_model

from bashgym.core.errors import BashGymError
from bashgym.data.preview import MAX_TOKENS, mask_view, render_terminal, token_texts, visible

TEXT = "Grüße 🙂 你好, it's  two\n\nlines \ufffd end"


def dataset(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "d.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.mark.parametrize("byte_level", [True, False])
def test_token_texts_join_to_the_decoded_row(make: Make, byte_level: bool) -> None:
    bundle = make(byte_level=byte_level)
    ids = bundle.encode(TEXT)
    assert "".join(token_texts(bundle, ids)) == bundle.decode(ids)


def test_a_row_cut_inside_a_character_still_shows(make: Make) -> None:
    bundle = make()
    for n in range(1, 12):
        ids = bundle.encode("🙂🙂🙂")[:n]
        assert "".join(token_texts(bundle, ids)) == bundle.decode(ids)


def test_the_view_shows_what_is_trained(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", MARKED)
    view = mask_view(dataset(tmp_path, chat("a", "b"), chat("why?", TEXT)), 2, model, max_seq_length=512)
    assert "".join(t["text"] for t in view["tokens"] if t["trained"]) == TEXT + "<|im_end|>"
    assert view["rendered"].startswith("<|im_start|>user\nwhy?")
    assert (view["row"], view["kind"], view["truncated"]) == (2, "messages", False)
    assert view["n_tokens"] == len(view["tokens"]) == view["full_length"]
    assert view["n_trained"] == sum(t["trained"] for t in view["tokens"])


def test_the_view_is_truncated_like_training(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", MARKED)
    view = mask_view(dataset(tmp_path, chat("why? " * 40, "b")), 1, model, max_seq_length=16)
    assert (view["n_tokens"], view["n_trained"], view["truncated"]) == (16, 0, True)


def test_a_view_is_bounded(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", MARKED)
    view = mask_view(dataset(tmp_path, chat("q", "ü" * 9000)), 1, model, max_seq_length=9000)
    assert len(view["tokens"]) == MAX_TOKENS
    assert view["omitted"] == 9000 - MAX_TOKENS
    assert f"{view['omitted']} more tokens" in render_terminal(view)


def test_a_row_that_is_not_there_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", MARKED)
    for row in (0, 3):
        with pytest.raises(BashGymError) as caught:
            mask_view(dataset(tmp_path, chat("a", "b"), chat("c", "d")), row, model)
        assert caught.value.code == "invalid_field"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BashGymError) as caught:
        mask_view(tmp_path / "none.jsonl", 1, write_model(tmp_path / "m"))
    assert caught.value.code == "dataset_missing"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\b\x00\u202eabc\u2066\u200b\x7f\x85"


@pytest.mark.parametrize("color", [True, False])
def test_content_cannot_reach_the_terminal(tmp_path: Path, color: bool) -> None:
    model = write_model(tmp_path / "m", MARKED)
    shown = render_terminal(mask_view(dataset(tmp_path, chat(HOSTILE, HOSTILE)), 1, model), color)
    ours = shown.replace("\x1b[1;32m", "").replace("\x1b[0m", "")
    assert all(c.isprintable() or c == "\n" for c in ours)
    assert "\\u001b]0;owned" in ours
    assert color == ("\x1b" in shown)


def test_trained_tokens_stand_out_without_color(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", MARKED)
    shown = render_terminal(mask_view(dataset(tmp_path, chat("q", "answer")), 1, model), color=False)
    assert "⟦answer<|im_end|>⟧" in shown


def test_color_never_leaks_past_the_view(make: Make, tmp_path: Path) -> None:
    path = dataset(tmp_path, {"text": "all of it"})
    shown = render_terminal(mask_view(path, 1, write_model(tmp_path / "m")))
    assert shown.rindex("\x1b[0m") > shown.rindex("\x1b[1;32m")


@pytest.mark.parametrize(
    ("text", "shown"), [("a\nb", "a⏎\nb"), ("\t", "\\u0009"), ("é你🙂", "é你🙂"), ("\ud800", "\\ud800")]
)
def test_what_does_not_print_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown
