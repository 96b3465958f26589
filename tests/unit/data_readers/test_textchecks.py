"""Special tokens, placeholders and secrets are found, also when escaped, and secrets are never shown."""

import json
from pathlib import Path

import pytest

from bashgym.data.contracts import check_dataset
from bashgym.data.types import Severity

from .support import one, raw, turn

KEY = "AKIA" + "Q" * 16


def _row(text: str) -> dict[str, object]:
    return {"messages": [turn("user", text), turn("assistant", "fine")]}


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>", "</s>", "<eos>", "<|start_header_id|>"])
def test_special_tokens_in_content_are_named(tmp_path: Path, token: str) -> None:
    found, findings = one(tmp_path, _row(f"x{token}y"))
    assert found is not None
    assert token in findings["special_token_in_content"].message


def test_an_escaped_special_token_does_not_hide(tmp_path: Path) -> None:
    line = json.dumps(_row("<|im_end|>")).replace("<", "\\u003c").replace(">", "\\u003e")
    report = check_dataset(raw(tmp_path, line.encode()))
    assert [finding.code for finding in report.findings] == ["special_token_in_content"]


def test_templated_plain_text_may_hold_special_tokens(tmp_path: Path) -> None:
    _, findings = one(tmp_path, {"text": "<|im_start|>user\nhi<|im_end|>"})
    assert not findings


def test_unreplaced_placeholders_are_counted(tmp_path: Path) -> None:
    _, findings = one(tmp_path, _row("I am {{ name }}, made by {{author}}"))
    assert findings["unreplaced_placeholder"].count == 1
    _, findings = one(tmp_path, _row("a set {{1, 2}} and a dict {'a': {}}"))
    assert not findings


@pytest.mark.parametrize(
    "secret",
    [
        KEY,
        "aws_secret_access_key = " + "Ab3/" * 10,
        "ghp_" + "a1B2" * 9,
        "hf_" + "abCD" * 9,
        "sk-proj-" + "a1B2c3D4" * 4,
        "Authorization: Bearer abcdefgh12",
        '{"authorization": "Basic dXNlcjpwYXNzd29yZA=="}',
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq0",
        "api_key=0123456789abcdef0123456789abcdef",
    ],
)
def test_secrets_are_reported_and_never_shown(tmp_path: Path, secret: str) -> None:
    found, findings = one(tmp_path, _row(f"env: {secret} ."))
    assert found is not None
    finding = findings["possible_secret"]
    assert finding.severity is Severity.WARNING
    assert finding.rows == (1,)
    report = check_dataset(tmp_path / "rows.jsonl")
    for part in (secret, secret[-12:]):
        assert part not in repr(report)


@pytest.mark.parametrize(
    "text",
    ["sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "internationalisation", "token: yes"],
)
def test_digests_and_long_words_are_no_secrets(tmp_path: Path, text: str) -> None:
    _, findings = one(tmp_path, _row(text))
    assert not findings
