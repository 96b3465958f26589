"""The contract's figures and verdicts, for every method."""

import hashlib
import json
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.contracts import check_dataset
from bashgym.data.types import Severity

from .support import CHAT, jsonl, raw, report, turn


def test_a_clean_file_is_valid_with_its_figures(tmp_path: Path) -> None:
    rows = [{"messages": [turn("user", "x" * n), turn("assistant", "y" * 2 * n)]} for n in (1, 2, 6)]
    result, _ = report(tmp_path, *rows)
    assert (result.total_examples, result.valid_examples, result.is_valid) == (3, 3, True)
    assert (result.error_count, result.warning_count, result.issues, result.findings) == (0, 0, [], [])
    assert result.summary_stats["role_counts"] == {"user": 3, "assistant": 3}
    assert result.summary_stats["prompt_length"] == {"min": 1, "median": 2.0, "max": 6, "mean": 3.0}
    assert result.summary_stats["completion_length"]["max"] == 12
    assert result.sha256 == hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest()


def test_every_unreadable_and_every_invalid_row_counts_against_the_total(tmp_path: Path) -> None:
    good = json.dumps(CHAT).encode()
    data = b"\n".join([good, b"{", b"7", b'{"messages":[]}', b'{"a":1,"a":2}', b'{"messages":NaN}', good, good[:-5]])
    result = check_dataset(raw(tmp_path, data))
    assert (result.total_examples, result.valid_examples, result.is_valid) == (8, 2, False)
    assert (
        sorted({issue.line for issue in result.issues})
        == [2, 3, 4, 5, 6, 8, *([7] if result.warning_count > 1 else [])][:6]
    )


def test_issues_stop_at_fifty_and_counts_do_not(tmp_path: Path) -> None:
    result, findings = report(tmp_path, CHAT, *[{"messages": [turn("user")]}] * 120)
    assert len(result.issues) == 50
    assert result.error_count == 120
    assert findings["no_assistant_turn"].count == 120
    assert len(findings["no_assistant_turn"].rows) == 50
    assert result.issues[0].line == 2


def test_plain_and_odd_rows_are_counted_alike(tmp_path: Path) -> None:
    odd = {"messages": [turn("user", "see <b>"), turn("assistant", "1234567")]}
    result, _ = report(tmp_path, {"messages": [turn("user", "see (b)"), turn("assistant", "1234567")]}, odd)
    assert result.summary_stats["prompt_length"] == {"min": 7, "median": 7.0, "max": 7, "mean": 7.0}
    assert result.summary_stats["role_counts"] == {"user": 2, "assistant": 2}
    assert result.valid_examples == 2


def test_repeated_rows_are_counted_once_each(tmp_path: Path) -> None:
    other = {"messages": [turn("user", "other"), turn("assistant", "row")]}
    result, findings = report(tmp_path, CHAT, other, CHAT, CHAT)
    assert findings["duplicate_rows"].rows == (3, 4)
    assert findings["duplicate_rows"].count == result.summary_stats["duplicate_rows"] == 2
    assert result.is_valid


def test_an_unknown_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BashGymError) as caught:
        check_dataset(jsonl(tmp_path, CHAT), "sfft")
    assert caught.value.code == "unknown_strategy"


def test_identical_pairs_are_an_error_with_their_share(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "chosen": "same", "rejected": ["same", "same ", "other"][n % 3]} for n in range(6)]
    result, findings = report(tmp_path, *rows, method="dpo")
    assert "identical in 4 of 6 rows (2 exactly, 2 but for white space)" in findings["chosen_equals_rejected"].message
    assert findings["chosen_equals_rejected"].rows == (1, 2, 4, 5)
    assert result.valid_examples == 2


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": "a", "rejected": ""},
        {"chosen": None, "rejected": "b"},
        {"chosen": "a"},
        {"chosen": "a", "rejected": 3},
    ],
)
def test_a_pair_without_one_side_is_an_error(tmp_path: Path, row: dict[str, object]) -> None:
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    result, findings = report(tmp_path, good, {"prompt": "p", **row}, method="dpo")
    assert result.valid_examples == 1
    assert any(finding.rows == (2,) and finding.severity is Severity.ERROR for finding in findings.values())


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "p", "chosen": "a", "rejected": "b"},
        {"question": "p", "response_j": "a", "response_k": "b"},
        {
            "conversations": [{"from": "human", "value": "p"}],
            "chosen": {"from": "gpt", "value": "a"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        {
            "chosen_messages": [turn("user", "p"), turn("assistant", "a")],
            "rejected_messages": [turn("user", "p"), turn("assistant", "b")],
        },
    ],
)
def test_pairs_of_other_tools_are_mapped_and_shown(tmp_path: Path, row: dict[str, object]) -> None:
    result, findings = report(tmp_path, row, method="dpo")
    assert result.is_valid
    assert result.summary_stats["prompt_length"]["max"] == 1
    assert "prompt" in findings["columns_mapped"].message


def test_pairs_that_share_no_prompt_are_errors(tmp_path: Path) -> None:
    sides = {"chosen": [turn("user", "p"), turn("assistant")], "rejected": [turn("user", "q"), turn("assistant")]}
    _, findings = report(tmp_path, sides, method="dpo")
    assert findings["no_shared_prompt"].rows == (1,)


def test_a_ground_truth_of_mixed_types_is_an_error_naming_the_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "answer": answer} for answer in ("007", "1e3", 7, "true", True, None)]
    result, findings = report(tmp_path, *rows, method="grpo")
    assert findings["mixed_types"].rows == (3, 5)
    assert findings["mixed_types"].severity is Severity.ERROR
    assert all(word in findings["mixed_types"].message for word in ("answer", "mixed", "string", "number"))
    assert not result.is_valid


def test_prompts_without_a_ground_truth_are_a_warning(tmp_path: Path) -> None:
    result, findings = report(tmp_path, {"prompt": [turn("user", "q")]}, method="grpo")
    assert result.is_valid
    assert "no_ground_truth" in findings


@pytest.mark.parametrize(
    ("method", "row"),
    [
        ("rlvr", {"prompt": "p", "answer": "a"}),
        ("distillation", {"prompt": "p", "response": "a"}),
        ("grpo", {"input": "i", "output": "o"}),
        ("dpo", {"prompt": "p", "chosen": "c"}),
    ],
)
def test_missing_columns_are_refused_with_found_and_needed(tmp_path: Path, method: str, row: dict[str, object]) -> None:
    with pytest.raises(BashGymError) as caught:
        report(tmp_path, row, method=method)
    assert caught.value.code == "dataset_format"
    assert all(column in caught.value.message for column in row)


@pytest.mark.parametrize(
    ("method", "row"),
    [
        ("rlvr", {"prompt": "p", "tests": "assert True"}),
        ("distillation", {"prompt": "p", "teacher_response": "a"}),
        ("grpo", {"messages": [turn("user", "q")], "ground_truth": "3"}),
    ],
)
def test_rows_of_each_method_are_valid(tmp_path: Path, method: str, row: dict[str, object]) -> None:
    result, _ = report(tmp_path, row, method=method)
    assert result.is_valid


def test_blank_required_texts_are_errors(tmp_path: Path) -> None:
    result, findings = report(
        tmp_path,
        {"prompt": "p", "teacher_response": " "},
        {"prompt": "", "teacher_response": "x"},
        method="distillation",
    )
    assert result.valid_examples == 0
    assert findings["empty_side"].severity is Severity.ERROR
