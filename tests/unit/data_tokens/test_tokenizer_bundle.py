"""A model folder's tokenizer files: which count, and how their faults are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Make
from model_folder import write_model

from bashgym.core.errors import BashGymError
from bashgym.data.tokens import TokenizerBundle


def refused(folder: Path) -> BashGymError:
    with pytest.raises(BashGymError) as caught:
        TokenizerBundle.load(folder)
    assert caught.value.code == "model_incomplete"
    return caught.value


def test_a_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    assert "tokenizer.json" in refused(tmp_path).message


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"])
def test_a_git_lfs_pointer_is_named_as_such(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    error = refused(folder)
    assert name in error.message
    assert "LFS" in error.message


@pytest.mark.parametrize("content", ["{", "[]", '{"version": "1.0"}', "\x00"])
def test_a_tokenizer_that_is_none_is_refused_not_a_traceback(tmp_path: Path, content: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "tokenizer.json").write_text(content)
    refused(folder)


@pytest.mark.parametrize("data", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_configuration_is_refused(tmp_path: Path, data: bytes) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "tokenizer_config.json").write_bytes(data)
    refused(folder)


def test_special_tokens_and_ids_are_those_of_the_files(make: Make) -> None:
    bundle = make(bos_token="<s>")
    assert (bundle.eos_token, bundle.pad_token, bundle.bos_token) == ("<|im_end|>", "<|pad|>", "<s>")
    assert (bundle.eos_id, bundle.pad_id, bundle.bos_id) == (2, 4, 3)


def test_stop_ids_join_tokenizer_generation_config_and_config(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", model={"eos_token_id": [7, 8]})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert TokenizerBundle.load(folder).stop_ids == {0, 2, 7, 8}


@pytest.mark.parametrize("value", [True, "2", None, [None, "x"]])
def test_an_eos_id_that_is_no_number_is_ignored(tmp_path: Path, value: object) -> None:
    assert TokenizerBundle.load(write_model(tmp_path / "m", model={"eos_token_id": value})).stop_ids == {2}


def test_add_bos_is_measured_not_read(make: Make) -> None:
    assert make(bos_token="<s>", adds_bos=True, add_bos_token=False).add_bos
    assert not make(bos_token="<s>", add_bos_token=True).add_bos


def test_a_missing_eos_gets_no_new_id(make: Make) -> None:
    bundle = make(eos_token="<EOS_TOKEN>")
    assert bundle.eos_id is None
    assert bundle.tokenizer.token_to_id("<EOS_TOKEN>") is None


@pytest.mark.parametrize(("limit", "window"), [(100, 100), (1e30, 512), (None, 512), ("no", 512), (0, 512)])
def test_the_window_is_the_smaller_limit(make: Make, limit: object, window: int) -> None:
    assert make(model_max_length=limit).window == window


def test_truncation_inside_tokenizer_json_is_not_obeyed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    described = json.loads((folder / "tokenizer.json").read_text())
    described["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    assert len(TokenizerBundle.load(folder).encode("x y z w v u")) > 2


def test_named_templates_of_a_list_are_chosen_by_tools(make: Make) -> None:
    listed = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tooled"}, {"name": "broken"}]
    bundle = make(None, chat_template=listed)
    turns = [{"role": "user", "content": "x"}]
    assert (bundle.render(turns), bundle.render(turns, [{}])) == ("plain", "tooled")


def test_a_model_without_template_says_so(make: Make) -> None:
    with pytest.raises(BashGymError, match="no chat template"):
        make(None).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("text", ["plain text  here", "Grüße 🙂 你好", "a<|im_end|>\n<|im_start|>b", ""])
def test_byte_lengths_add_up_to_the_text(make: Make, text: str) -> None:
    bundle = make()
    assert sum(bundle.byte_lengths[i] for i in bundle.encode(text)) == len(text.encode())


def test_byte_lengths_are_not_claimed_for_another_kind_of_tokenizer(make: Make) -> None:
    assert make(byte_level=False).byte_lengths == []


def test_decode_gives_back_the_text(make: Make) -> None:
    bundle = make()
    text = "<|im_start|>user\nGrüße 🙂<|im_end|>"
    assert bundle.decode(bundle.encode(text)) == text
