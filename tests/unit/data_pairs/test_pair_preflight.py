"""What preflight says of preference pairs: figures, rows left out, data of another kind."""

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.preflight import DatasetQuery, blocking, check


def turn(role, content):
    return {"role": role, "content": content}


def pair(i, **changes):
    return {"prompt": f"case {i}: ", "chosen": f"yes {i}", "rejected": f"no {i}", **changes}


@pytest.fixture
def preflight(write, model):
    def run(*rows, length=256, **options):
        return check(DatasetQuery(write(*rows), "dpo", model, length, options=options))

    return run


def codes(report):
    return {finding.code: finding for finding in report.findings}


def test_figures_are_those_of_the_pairs_that_are_trained(preflight, encode):
    rows = [pair(i) for i in range(5)]
    pairs, _ = encode(*rows)
    report = preflight(*rows)
    answers = sum(len(p.chosen_ids) + len(p.rejected_ids) for p in pairs)
    assert report.valid_rows == 5 and not report.blocking
    assert report.tokens.supervised == answers
    assert report.tokens.total == answers + 2 * sum(len(p.prompt_ids) for p in pairs)
    assert report.tokens.max == max(p.full_length for p in pairs)
    assert (report.tokens.truncated_rows, report.tokens.zero_supervised_rows) == (0, 0)


def test_wrapping_is_counted(preflight):
    assert preflight(pair(1), wrap_prompts=True).tokens.total > preflight(pair(1)).tokens.total


def test_pairs_that_do_not_fit_are_counted_out_and_block_when_none_is_left(preflight):
    long = pair(1, chosen="word " * 60)
    some = preflight(long, pair(2), length=24)
    found = codes(some)["answers_do_not_fit"]
    assert some.valid_rows == 1 and found.rows == (1,) and found.severity == "warning"
    assert "1 of 2" in found.message
    none = preflight(long, length=24)
    assert none.valid_rows == 0 and "answers_do_not_fit" in none.blocking
    needed = int("".join(filter(str.isdigit, found.mend)))
    assert "answers_do_not_fit" not in codes(preflight(long, length=needed))
    assert "answers_do_not_fit" in codes(preflight(long, length=needed - 1))


def test_truncated_prompts_are_named(preflight):
    report = preflight(pair(1), pair(2, prompt="word " * 60), length=24)
    assert codes(report)["prompts_truncated"].rows == (2,)
    assert report.valid_rows == 2 and report.tokens.truncated_rows == 1


def test_identical_pairs_are_counted_by_kind(preflight):
    rows = [pair(1, chosen="a b", rejected="a b"), pair(2, chosen="a b", rejected=" a  b\n"), pair(3)]
    found = codes(preflight(*rows))["chosen_equals_rejected"]
    assert found.rows == (1, 2) and "identical in 2 of 3 rows (1 exactly, 1 but for white space)" in found.message


def test_identical_conversations_differ_if_their_tool_calls_do(preflight):
    def call(name):
        return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": {}}}]}

    row = {"prompt": [turn("user", "go")], "chosen": [call("walk")], "rejected": [call("run")]}
    assert "chosen_equals_rejected" not in codes(preflight(row))
    assert "chosen_equals_rejected" in codes(preflight({**row, "rejected": [call("walk")]}))


def test_empty_and_missing_sides_are_named_by_row(preflight):
    lacking = {"prompt": "p", "chosen": "c"}
    report = preflight(pair(1), pair(2, rejected=""), lacking, pair(4, chosen=" "), pair(5, chosen=None))
    assert report.valid_rows == 1
    said = {(f.code, f.field): f.rows for f in report.findings}
    assert said["empty_side", "rejected"] == (2,) and said["missing_column", "rejected"] == (3,)
    assert said["empty_side", "chosen"] == (4,) and said["missing_column", "chosen"] == (5,)


def test_an_answer_without_an_assistant_turn_is_refused(preflight):
    row = {"prompt": [turn("user", "q")], "chosen": [turn("user", "me")], "rejected": [turn("assistant", "no")]}
    assert codes(preflight(row))["no_assistant_turn"].field == "chosen"


def test_conversations_that_share_no_first_turn_are_refused(preflight):
    row = {
        "chosen": [turn("user", "a"), turn("assistant", "x")],
        "rejected": [turn("user", "b"), turn("assistant", "y")],
    }
    assert "no_shared_prompt" in preflight(row).blocking


def test_broken_tools_are_refused_and_tools_of_plain_text_are_pointed_out(preflight):
    assert "tools_invalid" in preflight(pair(1, tools="[{")).blocking
    tools = [{"name": "f", "parameters": {}}]
    assert codes(preflight(pair(1, tools=tools)))["tools_not_rendered"].rows == (1,)
    assert "tools_not_rendered" not in codes(preflight(pair(1, tools=tools), wrap_prompts=True))


def test_one_side_that_is_always_the_longer_one_is_pointed_out(preflight):
    rows = [pair(i, chosen=f"yes {i} because it is so and not otherwise") for i in range(30)]
    assert codes(preflight(*rows))["length_tells_the_sides"].field == "chosen"
    mixed = rows[:15] + [pair(i, rejected=f"no {i} because it is so and not otherwise") for i in range(15)]
    assert "length_tells_the_sides" not in codes(preflight(*mixed))


def test_columns_of_other_tools_are_mapped_in_the_open(preflight):
    report = preflight({"question": "q: ", "response_j": "a", "response_k": "b"})
    assert report.valid_rows == 1
    message = codes(report)["columns_mapped"].message
    assert "question -> prompt, response_j -> chosen, response_k -> rejected" in message


def test_a_code_of_this_pass_can_be_forced(preflight):
    assert not blocking(preflight(pair(1, chosen="word " * 60), length=24), ["answers_do_not_fit", "too_few_rows"])


UNPAIRED = [{"prompt": f"q{i}", "completion": f"a{i}"} for i in range(12)]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([True] * 12, ["12 true, 0 false", "every label is true"]),
        ([True] * 11 + [False], ["11 true, 1 false (11:1)", "undesirable_weight would be 8.25 to 11"]),
        ([False] * 8 + [True] * 4, ["4 true, 8 false (1:2)", "desirable_weight would be 2 to 2.67"]),
        (["true", "false"] * 6, ["not true or false but 12 x string", "rows 1, 2, 3"]),
        ([True, False] * 5 + [None, 1], ["5 true, 5 false", "1 x null, 1 x number in rows 11, 12"]),
    ],
)
def test_labelled_single_answers_are_refused_with_their_balance(preflight, labels, said):
    with pytest.raises(BashGymError) as caught:
        preflight(*({**row, "label": label} for row, label in zip(UNPAIRED, labels, strict=True)))
    assert caught.value.code == "dataset_format"
    text = f"{caught.value.message} {caught.value.hint}"
    assert "unpaired" in text and "chosen" in text
    for part in said:
        assert part in text


def test_labelled_conversations_are_refused_too(preflight):
    with pytest.raises(BashGymError, match=r"unpaired preferences.*1 true, 1 false \(1:1\)"):
        chat = [turn("user", "q"), turn("assistant", "a")]
        preflight({"messages": chat, "label": True}, {"messages": chat, "label": False})


def test_a_label_beside_both_answers_is_no_reason_to_refuse(preflight):
    assert preflight(pair(1, label=True)).valid_rows == 1
