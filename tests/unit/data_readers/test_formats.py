"""Known shapes become canonical examples; unknown ones are refused with what was found and needed."""

from pathlib import Path

import pytest

from bashgym.data.formats import detect
from bashgym.data.types import Severity

from .support import CHAT, call, examples, jsonl, one, raw, refused, turn


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (CHAT, "messages"),
        ({"prompt": "a", "completion": "b"}, "prompt_completion"),
        ({"text": "a"}, "text"),
        ({"instruction": "a", "input": "", "output": "b"}, "alpaca"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "sharegpt"),
        ({"question": "a", "answer": "b"}, "prompt_completion"),
        ({"query": "a", "response": "b"}, "prompt_completion"),
    ],
)
def test_the_format_is_told_from_the_columns(row: dict[str, object], name: str) -> None:
    assert detect([row]) == name


def test_alpaca_becomes_turns_and_an_empty_input_leaves_no_blank(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Add", "input": "1 2", "output": "3"},
        {"instruction": "Say hi", "input": "", "output": "Hi"},
    ]
    found, findings = examples(jsonl(tmp_path, *rows))
    assert found[0].prompt == [turn("user", "Add\n\n1 2")]
    assert found[1].prompt == [turn("user", "Say hi")]
    assert found[1].completion == [turn("assistant", "Hi")]
    assert "instruction+input -> prompt" in findings["columns_mapped"].message
    assert "output -> completion" in findings["columns_mapped"].message


def test_alpaca_system_and_history_become_turns(tmp_path: Path) -> None:
    row = {"instruction": "And 2?", "output": "Two.", "system": "Count.", "history": [["And 1?", "One."]]}
    found, _ = one(tmp_path, row)
    assert found is not None
    assert [t["role"] for t in found.prompt or []] == ["system", "user", "assistant", "user"]  # type: ignore[index]


def test_a_mapping_overrides_and_is_taken_literally(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "a", "prompt": "not this", "completion": "nor this"}
    found, findings = one(tmp_path, row, column_mapping={"prompt": "question", "completion": "answer"})
    assert found is not None
    assert (found.prompt, found.completion) == ("q", "a")
    assert "question -> prompt" in findings["columns_mapped"].message


@pytest.mark.parametrize(
    "mapping", [{"prompt": "qestion", "completion": "answer"}, {"promt": "question"}, {"prompt": "question"}]
)
def test_a_mapping_that_does_not_fit_is_refused(tmp_path: Path, mapping: dict[str, str]) -> None:
    error = refused(jsonl(tmp_path, {"question": "q", "answer": "a"}), column_mapping=mapping)
    assert error.code == "dataset_format"
    assert "question" in error.message


def test_an_unknown_shape_lists_found_and_needed_and_guesses(tmp_path: Path) -> None:
    error = refused(jsonl(tmp_path, {"promt": "a", "complection": "b"}))
    assert error.code == "dataset_format"
    assert "complection, promt" in error.message
    assert "prompt+completion" in error.message
    assert "did you mean 'promt' for 'prompt'?" in error.hint


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "answer": "a", "query": "q", "response": "r"},
        {"input": "i", "output": "o"},
        {"prompt": "p", "chosen": "c", "rejected": "r"},
        {"data": [CHAT]},
        {},
    ],
)
def test_ambiguous_and_foreign_shapes_are_not_guessed(tmp_path: Path, row: dict[str, object]) -> None:
    assert refused(jsonl(tmp_path, row)).code == "dataset_format"


def test_a_named_format_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused(jsonl(tmp_path, CHAT), dataset_format="alpaca").code == "dataset_format"
    assert refused(jsonl(tmp_path, CHAT), dataset_format="parquet").code == "dataset_format"


def test_sharegpt_roles_and_tool_calls_are_mapped(tmp_path: Path) -> None:
    row = {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "u"},
            {"from": "function_call", "value": '{"name": "look", "arguments": {"at": 1}}'},
            {"from": "observation", "value": "seen"},
            {"from": "gpt", "value": "done"},
        ],
        "tools": '[{"name": "look", "parameters": {}}]',
    }
    found, findings = one(tmp_path, row)
    assert found is not None
    assert [message["role"] for message in found.messages or []] == ["system", "user", "assistant", "tool", "assistant"]
    assert (found.messages or [])[2] == {"role": "assistant", "content": None, "tool_calls": [call("look", {"at": 1})]}
    assert found.tools == [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    message = findings["columns_mapped"].message
    assert all(
        word in message
        for word in ("human -> user", "gpt -> assistant", "observation -> tool", "conversations -> messages")
    )


def test_content_parts_of_both_dialects_and_loss_weights(tmp_path: Path) -> None:
    row = {
        "messages": [
            turn("user", [{"type": "text", "value": "a"}, {"type": "text", "text": "b"}], loss_weight=0.0),
            turn("assistant", [{"type": "text", "text": "c"}], loss_weight=1.0),
            turn("user", "d"),
            turn("assistant", "e", weight=0),
        ]
    }
    found, _ = one(tmp_path, row)
    assert found is not None
    assert [message["content"] for message in found.messages or []] == ["ab", "c", "d", "e"]
    assert found.weights == [0.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("weight", [-1, "1", True, 1e300])
def test_a_senseless_loss_weight_is_an_error(tmp_path: Path, weight: object) -> None:
    found, findings = one(tmp_path, {"messages": [turn("user"), turn("assistant", "x", weight=weight)]})
    assert found is None
    assert "loss_weight_invalid" in findings


def test_extra_columns_are_named(tmp_path: Path) -> None:
    _, findings = one(tmp_path, {**CHAT, "source_id": 7})
    assert "source_id" in findings["columns_ignored"].message
    assert findings["columns_ignored"].severity is Severity.INFO


def test_rows_without_the_column_are_named_and_skipped(tmp_path: Path) -> None:
    found, findings = examples(jsonl(tmp_path, CHAT, {"text": "stray"}, {"messages": None}, CHAT))
    assert [example.row for example in found] == [1, 4]
    assert findings["missing_column"].rows == (2, 3)


def test_conversational_prompt_and_completion_stay_apart(tmp_path: Path) -> None:
    found, _ = one(tmp_path, {"prompt": [turn("user", "q")], "completion": turn("assistant", "a")})
    assert found is not None
    assert (found.prompt, found.completion) == ([turn("user", "q")], [turn("assistant", "a")])


@pytest.mark.parametrize("completion", [[turn("user", "x")], []])
def test_a_completion_without_assistant_trains_nothing(tmp_path: Path, completion: object) -> None:
    found, findings = one(tmp_path, {"prompt": [turn("user"), turn("assistant")], "completion": completion})
    assert found is None
    assert "assistant" in findings["no_assistant_turn"].message


@pytest.mark.parametrize("value", [3, True, ["x"], {"a": 1}])
def test_a_prompt_that_is_no_text_is_an_error(tmp_path: Path, value: object) -> None:
    found, findings = examples(
        jsonl(tmp_path, {"prompt": "p", "completion": "c"}, {"prompt": value, "completion": "c"})
    )
    assert len(found) == 1
    assert findings["mixed_types"].rows == (2,)


@pytest.mark.parametrize("text", ["", "  \n", 5, None])
def test_blank_or_wrong_text_rows_are_errors(tmp_path: Path, text: object) -> None:
    found, findings = examples(jsonl(tmp_path, {"text": "fine"}, {"text": text}))
    assert len(found) == 1
    assert findings["text_invalid"].rows == (2,)


def test_a_column_of_a_hostile_name_is_shown_escaped(tmp_path: Path) -> None:
    error = refused(raw(tmp_path, b'{"\\u001b[31mred":1}'))
    assert "\x1b" not in error.message
