"""Conversations: roles, order, contents, tools. Each test holds one rule by breaking it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.data.findings import Collector
from bashgym.data.messages import check, normalise, plain_sizes
from bashgym.data.types import Severity

from .support import CHAT, call, examples, fuzz, jsonl, one, turn

TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {}}}]


@pytest.mark.parametrize("role", ["prompter", "chatgpt", "Assistant", "", None, 3])
def test_an_unknown_role_is_named_and_not_guessed(tmp_path: Path, role: object) -> None:
    found, findings = one(tmp_path, {"messages": [turn("user"), {"role": role, "content": "x"}]})
    assert found is None
    assert findings["unknown_role"].rows == (1,)
    if isinstance(role, str):
        assert repr(role) in findings["unknown_role"].message


def test_no_assistant_turn_is_an_error(tmp_path: Path) -> None:
    found, findings = one(tmp_path, {"messages": [turn("system"), turn("user")]})
    assert found is None
    assert "assistant" in findings["no_assistant_turn"].message


@pytest.mark.parametrize(
    ("roles", "code"),
    [
        (["assistant"], "starts_with_assistant"),
        (["system", "assistant", "user", "assistant"], "starts_with_assistant"),
        (["user", "user", "assistant"], "consecutive_user_turns"),
        (["user", "system", "assistant"], "late_system_turn"),
    ],
)
def test_odd_orders_are_warnings_and_the_row_stays(tmp_path: Path, roles: list[str], code: str) -> None:
    found, findings = one(tmp_path, {"messages": [turn(role) for role in roles]})
    assert found is not None
    assert findings[code].severity is Severity.WARNING


@pytest.mark.parametrize("content", ["", " \n ", "\u00a0"])
def test_an_empty_assistant_turn_is_reported(tmp_path: Path, content: str) -> None:
    found, findings = one(tmp_path, {"messages": [turn("user"), turn("assistant", content)]})
    assert found is not None
    assert findings["empty_assistant_turn"].rows == (1,)


@pytest.mark.parametrize(
    "content",
    [None, 5, {"a": 1}, [], [{"type": "image", "url": "x"}], [{"type": "text"}], [None], [{"type": "text", "text": 5}]],
)
def test_content_that_is_no_text_is_an_error(tmp_path: Path, content: object) -> None:
    found, findings = one(tmp_path, {"messages": [turn("user"), turn("assistant", content)]})
    assert found is None
    assert "content_not_text" in findings


@pytest.mark.parametrize("messages", [[], "text", {"role": "user"}, [["user", "x"]], [None]])
def test_messages_of_the_wrong_type_are_errors(tmp_path: Path, messages: object) -> None:
    found, findings = examples(jsonl(tmp_path, CHAT, {"messages": messages}))
    assert [example.row for example in found] == [1]
    assert any(finding.severity is Severity.ERROR and finding.rows == (2,) for finding in findings.values())


def test_content_null_is_fine_beside_tool_calls_and_string_arguments_become_objects(tmp_path: Path) -> None:
    messages = [
        turn("user"),
        turn("assistant", None, tool_calls=[call("read", '{"path": "a", "n": 1}', "c1")]),
        turn("tool", "x", tool_call_id="c1"),
        turn("assistant", "done"),
    ]
    found, _ = one(tmp_path, {"messages": messages, "tools": TOOLS})
    assert found is not None
    assert (found.messages or [])[1]["tool_calls"] == [call("read", {"path": "a", "n": 1}, "c1")]
    assert found.tools == TOOLS


def test_each_row_keeps_its_own_tools_and_no_null_is_invented(tmp_path: Path) -> None:
    def row(name: str, arguments: dict[str, object]) -> dict[str, object]:
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}}]
        return {"messages": [turn("user"), turn("assistant", None, tool_calls=[call(name, arguments)])], "tools": tools}

    found, findings = examples(
        jsonl(tmp_path, row("read", {"path": "a"}), row("bash", {"command": "ls", "timeout": 5}))
    )
    assert [e.tools[0]["function"]["name"] for e in found if e.tools] == ["read", "bash"]
    assert [(e.messages or [])[1]["tool_calls"][0]["function"]["arguments"] for e in found] == [
        {"path": "a"},
        {"command": "ls", "timeout": 5},
    ]
    assert "arguments" in findings["tool_arguments_vary"].message
    assert "null" in findings["tool_arguments_vary"].message


def test_nulls_that_a_loader_left_in_arguments_are_named(tmp_path: Path) -> None:
    message = turn("assistant", None, tool_calls=[call("read", {"path": "a", "timeout": None})])
    _, findings = one(tmp_path, {"messages": [turn("user"), message]})
    assert findings["tool_arguments_null"].severity is Severity.WARNING


def _calls(*rest: dict[str, object], name: str = "read", arguments: object = "{}") -> dict[str, object]:
    return {
        "messages": [turn("user"), turn("assistant", None, tool_calls=[call(name, arguments, "call_7")]), *rest],
        "tools": TOOLS,
    }


@pytest.mark.parametrize(
    ("row", "code", "word"),
    [
        (_calls(turn("assistant")), "tool_call_without_result", "call_7"),
        (_calls(turn("user"), turn("assistant")), "tool_call_without_result", "call_7"),
        (_calls(turn("tool", tool_call_id="call_8"), turn("assistant")), "tool_result_unknown", "call_8"),
        (
            _calls(turn("tool", tool_call_id="call_7"), turn("tool", tool_call_id="call_7")),
            "tool_result_unknown",
            "call_7",
        ),
        ({"messages": [turn("user"), turn("tool"), turn("assistant")]}, "tool_result_unknown", "without a tool call"),
        (_calls(arguments='{"path": '), "tool_arguments_invalid", "arguments"),
        (_calls(arguments="[1]"), "tool_arguments_invalid", "arguments"),
        (_calls(arguments='{"n": NaN}'), "tool_arguments_invalid", "arguments"),
        (_calls(name="rm"), "tool_unknown", "rm"),
    ],
)
def test_tool_turns_that_do_not_pair_are_errors_with_their_reason(
    tmp_path: Path, row: dict[str, object], code: str, word: str
) -> None:
    found, findings = one(tmp_path, row)
    assert found is None
    assert word in findings[code].message


def test_calls_in_the_last_turn_need_no_result(tmp_path: Path) -> None:
    found, findings = one(tmp_path, _calls())
    assert found is not None
    assert not findings


def test_parallel_calls_may_be_answered_in_any_order(tmp_path: Path) -> None:
    calls = [call("read", {}, "a"), call("read", {}, "b")]
    results = [turn("tool", "x", tool_call_id="b"), turn("tool", "y", tool_call_id="a")]
    found, _ = one(
        tmp_path, {"messages": [turn("user"), turn("assistant", None, tool_calls=calls), *results, turn("assistant")]}
    )
    assert found is not None


@pytest.mark.parametrize("tools", ["[{", "[1]", [{"type": "function"}], [{"function": {"name": 3}}]])
def test_tools_that_are_no_tools_are_errors(tmp_path: Path, tools: object) -> None:
    found, findings = one(tmp_path, {**CHAT, "tools": tools})
    assert found is None
    assert "tools_invalid" in findings


@pytest.mark.parametrize("tools", [None, [], "", "[]", "null"])
def test_no_tools_in_any_spelling_is_none(tmp_path: Path, tools: object) -> None:
    found, _ = one(tmp_path, {**CHAT, "tools": tools})
    assert found is not None
    assert found.tools is None


def test_arguments_nested_too_deeply_are_an_error(tmp_path: Path) -> None:
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"a": deep}
    found, findings = one(tmp_path, _calls(arguments=deep))
    assert found is None
    assert "tool_arguments_invalid" in findings


def test_observations_in_user_turns_are_said_to_stay_untrained(tmp_path: Path) -> None:
    messages = [turn("user"), turn("assistant"), turn("user", "OBSERVATION:\nok"), turn("assistant")]
    found, findings = one(tmp_path, {"messages": messages})
    assert found is not None
    assert findings["observations_as_user"].severity is Severity.INFO


_ROLES = st.sampled_from(["user", "assistant", "system", "tool", "human", "x"])
_CONTENTS = st.sampled_from(["a", "", " ", "\u2003", None, 3, "OK"])
_TURNS = st.lists(st.fixed_dictionaries({"role": _ROLES, "content": _CONTENTS}), max_size=4)


@fuzz(60)
@given(st.lists(_TURNS, min_size=1, max_size=3))
def test_the_fast_look_never_accepts_what_the_slow_one_remarks_on(conversations: list[list[dict[str, object]]]) -> None:
    if plain_sizes(conversations) is None:
        return
    for conversation in conversations:
        collector = Collector([])
        normal = normalise(conversation, 1, collector)
        assert normal is not None
        check(normal.messages, None, 1, collector)
        collector.flush()
        assert collector.out == []
        assert normal.messages == conversation
