"""The tracking context and the safe-payload rule. No database."""

import json
from pathlib import Path

import pytest
from ledger_cases import CONFIG, DATA, context

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError, Invalid
from bashgym.ledger.safe import MAX_BYTES, encode, redact, scrub
from bashgym.ledger.tracking import FIELDS, TrackingContext, check_measured, init_context, load_context, parse_context

MODEL = {"name": "bashgym/tiny-qwen2", "path": "/m", "revision": "r1", "config_digest": CONFIG, "digest": "0" * 64}


def init(dataset: Path, **given: object) -> dict:
    arguments = {
        "workspace_id": "w",
        "project_id": "p",
        "experiment_id": "e",
        "objective": "o",
        "task_type": "terminal",
        "model": MODEL,
        "environment": {"digest": "e" * 64, "hardware": {"cpus": 2}},
        "dataset_path": dataset,
    }
    return init_context(**{**arguments, **given})


def test_fields_are_those_of_the_record() -> None:
    assert list(FIELDS) == list(TrackingContext.__dataclass_fields__)


def test_init_measures_and_its_file_parses_back(tmp_path: Path) -> None:
    data, output = tmp_path / "my corpus (v1).jsonl", tmp_path / "tracking.json"
    data.write_text('{"text": "x"}\n')
    made = init(data, output=output, tags=["t"])
    assert made["dataset_content_digest"] == digest_file(data)
    assert load_context(output).as_dict() == made
    assert made["dataset_id"] == "my-corpus-v1"
    data.write_text('{"text": "y"}\n')
    changed = init(data)
    assert changed["dataset_id"] == made["dataset_id"]
    assert changed["dataset_version_id"] != made["dataset_version_id"]


def test_init_refuses_stated_digests_and_missing_data(tmp_path: Path) -> None:
    with pytest.raises(BashGymError) as caught:
        init(tmp_path / "none.jsonl")
    assert caught.value.code == "dataset_missing"
    data = tmp_path / "d.jsonl"
    data.touch()
    with pytest.raises(Invalid, match="measured here"):
        init(data, dataset_content_digest="0" * 64)


def test_every_fault_of_a_context_is_named_at_once() -> None:
    good = context().as_dict()
    bad = {**good, "workspce_id": "w", "tags": "x", "dataset_content_digest": "XYZ", "dataset_row_counts": {"a": -1}}
    del bad["objective"]
    with pytest.raises(Invalid) as caught:
        parse_context(bad)
    assert caught.value.code == "training_tracking_invalid"
    assert set(caught.value.fields) == {
        "workspce_id",
        "tags",
        "dataset_content_digest",
        "dataset_row_counts",
        "objective",
    }
    assert "did you mean workspace_id?" in caught.value.message


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_a_context_is_an_object(value: object) -> None:
    with pytest.raises(Invalid):
        parse_context(value)


def test_a_context_carries_no_secret() -> None:
    with pytest.raises(Invalid) as caught:
        context(metadata={"deep": [{"wandb_api_key": "x"}]})
    assert caught.value.fields == ["metadata"]


def test_measured_digests_must_agree_and_unmeasured_ones_stay_declared() -> None:
    origin = check_measured(context(), dataset_digest=DATA, model_config_digest=None, environment_digest=None)
    assert origin["dataset_content_digest"] == "measured"
    assert origin["model_config_digest"] == "declared"
    with pytest.raises(Invalid) as caught:
        check_measured(context(), dataset_digest="1" * 64, model_config_digest="2" * 64, environment_digest=None)
    assert caught.value.fields == ["dataset_content_digest", "model_config_digest"]
    assert DATA in caught.value.message
    assert "1" * 64 in caught.value.message


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-" + "aB3_" * 10,
        "sk-ant-api03-" + "aB3-" * 10,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2" * 10,
        "hf_" + "aBcD" * 9,
        "AKIA" + "ABCD1234" * 2,
        "xoxb-" + "1234567890-abcdef",
        "-----BEGIN RSA PRIVATE KEY-----",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123456",
        "https://user:hunter22@host/repo",
        "Authorization: Bearer abcdefghijklmnop1234",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12Zz",
    ],
)
def test_secret_shapes_are_found_inside_text(secret: str) -> None:
    text = f"failed with {secret} at step 3"
    assert scrub(text) != text
    with pytest.raises(Invalid):
        encode({"note": [text]}, "payload")


@pytest.mark.parametrize(
    "plain",
    [
        "d" * 64,
        "0123456789abcdef" * 4,
        "Qwen/Qwen2.5-Coder-7B-Instruct-GPTQ-Int4",
        "/home/me/data/models/run_20261201_021059_ab12cd34/checkpoint-400/adapter_model.safetensors",
        "https://huggingface.co/org/model/resolve/main/config.json",
        "The loss went from 2.31 to 0.75 in 400 steps.",
        "git@github.com:org/repo.git",
        "a" * 5000,
    ],
)
def test_ordinary_text_is_left_alone(plain: str) -> None:
    assert scrub(plain) == plain
    assert json.loads(encode({"note": plain}, "payload")) == {"note": plain}


@pytest.mark.parametrize("key", ["token", "Api-Key", "hf_token", "openai_api_key", "db_password", "examples", "SECRET"])
def test_secret_keys(key: str) -> None:
    with pytest.raises(Invalid):
        encode({"a": {key: "x"}}, "payload")
    assert redact({key: "x"}) == {key: "[redacted]"}


@pytest.mark.parametrize("key", ["eos_token", "pad_token", "num_tokens", "max_new_tokens", "tokens_per_second"])
def test_tokenizer_keys_are_no_secrets(key: str) -> None:
    assert json.loads(encode({key: "<|im_end|>"}, "payload")) == {key: "<|im_end|>"}


def test_the_size_limit_is_in_bytes() -> None:
    encode({"x": "é" * ((MAX_BYTES - 8) // 2)}, "payload")
    with pytest.raises(Invalid, match="131"):
        encode({"x": "é" * (MAX_BYTES // 2)}, "payload")
