"""Tool calls in a model's text: whole ones are read, everything else stays text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.inference.tool_text import read_tool_calls

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
READ = {"name": "bash", "arguments": {"command": "ls"}}


@pytest.mark.parametrize(
    ("text", "before", "calls"),
    [
        (CALL, "", [READ]),
        (f"I look.\n{CALL}", "I look.", [READ]),
        (f"{CALL}\n{CALL}", "", [READ, READ]),
        (CALL.removesuffix("</tool_call>"), "", [READ]),
        ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', "", [{"name": "f", "arguments": {}}]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [{"name": "f", "arguments": {}}]),
        ('<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>', "", [READ]),
        (
            '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>',
            "",
            [{"name": "f", "arguments": {"x": "</tool_call>"}}],
        ),
    ],
)
def test_whole_calls(text, before, calls):
    assert read_tool_calls(text) == (before, calls)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ls",
        "<tool_call>",
        "<tool_call>ls</tool_call>",
        '<tool_call>{"name": "f", "arguments": {</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "ls"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} and more',
        "<tool_call>[]</tool_call>",
        "<tool_call>" + "[" * 100_000,
        f"{CALL}<tool_call>nonsense",
    ],
)
def test_anything_else_stays_text(text):
    assert read_tool_calls(text) == (text, [])


PIECES = ["<tool_call>", "</tool_call>", '{"name": "f"', ', "arguments": {}', "}", " ", "x"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_read_without_an_error(text):
    before, calls = read_tool_calls(text)
    assert calls or before == text
