"""Rows of held-out traces and the metrics of tool calls."""

import json

import pytest

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.evals.heldout_rows import UNKNOWN, read_rows
from bashgym.evals.tool_metrics import arg_f1, score


def tool_call(name="run_command", arguments='{"command": "ls"}'):
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def row(i, calls=None, **more):
    asked, answer = (
        {"role": "user", "content": f"List {i}"},
        {"role": "assistant", "tool_calls": calls or [tool_call()]},
    )
    return {"session_id": f"s{i}", "messages": [asked, answer], **more}


@pytest.fixture()
def write(tmp_path):
    def write(*rows):
        path = tmp_path / "d.jsonl"
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
        return path

    return write


def with_messages(*messages):
    return {**row(1), "messages": list(messages)}


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("{bad", "not JSON"),
        ("[1]", "no object"),
        ('{"messages": []}', "no object"),
        ('{"messages": "x"}', "no object"),
        (with_messages(1), "not an object"),
        (with_messages({"role": "oracle", "content": "x"}), "unknown role"),
        (with_messages({"role": "user", "content": None}), "content"),
        (with_messages({"role": "assistant", "tool_calls": [tool_call()]}), "no question"),
        (with_messages(USER, {"role": "user", "content": "", "tool_calls": [tool_call()]}), "no assistant's"),
        (with_messages(USER, {"role": "assistant", "tool_calls": [{"function": {}}]}), "tool call"),
        (with_messages(USER, {"role": "assistant", "tool_calls": [tool_call("")]}), "no name"),
        (with_messages(USER, {"role": "assistant", "tool_calls": [tool_call(arguments="{")]}), "arguments"),
        (with_messages(USER, {"role": "assistant", "tool_calls": [tool_call(arguments="[1]")]}), "arguments"),
        ({**row(1), "tools": [{"description": "no name"}]}, "a tool is not"),
    ],
)
def test_a_bad_line_is_named_not_skipped(write, second, said):
    with pytest.raises(BashGymError) as caught:
        read_rows(write(row(0), second, row(2)))
    assert caught.value.code == "dataset_unreadable" and "line 2: " in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], "dataset_empty"),
        ([{"session_id": "a", "messages": [USER]}], "dataset_empty"),
        ([row(0), {**row(1), "session_id": "s0"}], "too_few_clusters"),
        ([{**row(0), "session_id": None}, {**row(1), "session_id": ""}], "too_few_clusters"),
    ],
)
def test_what_nothing_can_be_said_about_is_refused(write, rows, code):
    with pytest.raises(BashGymError) as caught:
        read_rows(write(*rows))
    assert caught.value.code == code


def test_only_what_stands_before_the_first_call_is_asked(write):
    system, more = {"role": "system", "content": "Be terse."}, [{"role": "tool", "content": 7}, "whatever comes later"]
    talk = [{"role": "assistant", "content": "Shall I?", "reasoning_content": "hm"}, {"role": "user", "content": "yes"}]
    first = row(0, [tool_call(), tool_call("stop", "{}")])
    first["messages"] = [system, first["messages"][0], *talk, first["messages"][1], *more]
    held = read_rows(write(first, row(1)))
    assert [m["role"] for m in held.rows[0].messages] == ["system", "user", "assistant", "user"]
    assert all(set(message) == {"role", "content"} for message in held.rows[0].messages)
    assert held.rows[0].gold == ("run_command", {"command": "ls"}) and held.facts["n_more_calls"] == 1
    assert held.rows[0].question == "List 0"


def test_tools_are_those_of_the_row_else_derived_without_the_answer(write):
    tools = [{"type": "function", "function": {"name": "a"}}, {"type": "function", "function": {"name": "run_command"}}]
    held = read_rows(write({**row(0), "tools": tools}, row(1)))
    assert held.rows[0].tools == tools
    derived = held.rows[1].tools[0]["function"]
    assert derived["name"] == "run_command" and list(derived["parameters"]["properties"]) == ["command"]
    assert "ls" not in json.dumps(derived)


def test_sessions_traces_and_rows_without_either(write):
    held = read_rows(write({**row(0), "session_id": 0}, {**row(1), "session_id": None, "trace_id": "t"},
                           {**row(2), "session_id": None}, {**row(3), "session_id": None}))  # fmt: skip
    assert [r.cluster for r in held.rows] == ["0", "t", UNKNOWN, UNKNOWN] and held.facts["n_without_session"] == 2


def test_a_row_given_twice_is_named_and_counts_once(write):
    path = write(row(0), row(1), {**row(0), "session_id": "other"}, {"messages": [USER]}, row(2))
    held = read_rows(path)
    assert [r.number for r in held.rows] == [1, 2, 5] and held.facts["duplicates"] == [[3, 1]]
    assert (held.facts["n_rows"], held.facts["n_duplicates"], held.facts["n_without_call"]) == (5, 1, 1)
    assert held.sha256 == digest_file(path)
    few = read_rows(path, limit=2)
    assert len(few.rows) == 2 and few.sha256 == held.sha256, "bound to the whole file"


def test_other_dialects_of_calls(write):
    legacy = with_messages(USER, {"role": "assistant", "function_call": {"name": "f", "arguments": {"a": 1}}})
    shared = with_messages(
        {"from": "human", "value": "y"}, {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}
    )
    held = read_rows(write({**legacy, "session_id": "a"}, {**shared, "session_id": "b"}))
    assert [r.gold for r in held.rows] == [("f", {"a": 1}), ("f", {})]


@pytest.mark.parametrize(
    ("ours", "gold", "f1"),
    [
        ({}, {}, 1.0),
        ({}, {"a": 1}, 0.0),
        ({"a": 1}, {}, 0.0),
        ('{"a": " X "}', {"a": "x"}, 1.0),
        ({"a": 1, "b": 2}, {"a": 1}, 2 / 3),
        ({"a": True}, {"a": 1}, 0.0),
        ({"a": 1.0}, {"a": 1}, 1.0),
        ("{", {"a": 1}, 0.0),
        ("{", "{", 0.0),
        ("[]", {}, 0.0),
        ("", {}, 1.0),
        (None, {}, 1.0),
        ({"a": {"b": ["X"]}}, {"a": {"b": ["x"]}}, 1.0),
        ('{"a": NaN}', {"a": 1}, 0.0),
        ('{"a":' * 900 + "1" + "}" * 900, {"a": 1}, 0.0),
        ('{"a":' * 100_000, {"a": 1}, 0.0),
        ('{"a": ' + "9" * 10_000 + "}", {"a": 1}, 0.0),
    ],
)
def test_argument_f1(ours, gold, f1):
    assert arg_f1(ours, gold) == pytest.approx(f1)


def test_the_four_metrics():
    gold = ("f", {"a": 1, "b": 2})
    names = ("exact_match", "name_match", "arg_f1", "soft")
    assert [score(m, ("f", {"a": 1}), gold) for m in names] == [0, 1, pytest.approx(2 / 3), pytest.approx(0.8)]
    assert [score(m, ("g", gold[1]), gold) for m in names] == [0, 0, 1, 0]
    assert [score(m, gold, gold) for m in names] == [1, 1, 1, 1]
    assert [score(m, None, gold) for m in names] == [0, 0, 0, 0]
    assert score("name_match", ("", {}), ("", {})) == 0.0 == score("name_match", ("F", {}), ("f", {}))
