"""The three id lists of a preference pair, token by token."""

import json

import pytest

USER, BOT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>"
PLAIN = {"prompt": "list hidden files:\n", "chosen": "ls -A", "rejected": "ls"}
TOOLS = [{"type": "function", "function": {"name": "reader_of_files", "parameters": {"type": "object"}}}]


def turn(role, content):
    return {"role": role, "content": content}


def text(bundle, ids):
    return bundle.decode(ids)


def test_plain_strings_are_plain_text_and_each_answer_ends_with_one_eos(bundle, encode):
    (pair,), _ = encode(PLAIN)
    assert pair.prompt_ids == bundle.encode(PLAIN["prompt"])
    assert pair.chosen_ids == [*bundle.encode("ls -A"), bundle.eos_id]
    assert pair.rejected_ids == [*bundle.encode("ls"), bundle.eos_id]


def test_an_answer_that_ends_with_the_eos_gets_no_second_one(bundle, encode):
    (pair,), _ = encode({**PLAIN, "rejected": "ls" + bundle.eos_token})
    assert pair.rejected_ids.count(bundle.eos_id) == 1


def test_wrapped_strings_are_one_user_and_one_assistant_turn(bundle, encode):
    (pair,), _ = encode(PLAIN, wrap=True)
    whole = text(bundle, pair.prompt_ids)
    assert whole.endswith(f"{USER}{PLAIN['prompt']}{END}\n{BOT}")
    assert text(bundle, pair.chosen_ids).strip() == f"ls -A{END}"
    assert text(bundle, pair.rejected_ids).strip() == f"ls{END}"


def test_an_implicit_prompt_is_what_both_conversations_begin_with(bundle, encode):
    begun = [turn("system", "Be brief."), turn("user", "hi"), turn("assistant", "yes?"), turn("user", "list")]
    row = {"chosen": [*begun, turn("assistant", "ls -A")], "rejected": [*begun, turn("assistant", "ls")]}
    (implicit,), _ = encode(row)
    (explicit,), _ = encode({"prompt": begun, "chosen": row["chosen"][4:], "rejected": row["rejected"][4:]})
    assert implicit == explicit
    assert text(bundle, implicit.prompt_ids).endswith(f"{USER}list{END}\n{BOT}")


def test_conversations_that_part_early_keep_all_later_turns_as_the_answer(bundle, encode):
    chosen = [turn("user", "q"), turn("assistant", "good"), turn("user", "more"), turn("assistant", "end")]
    (pair,), _ = encode({"chosen": chosen, "rejected": [turn("user", "q"), turn("assistant", "bad")]})
    assert text(bundle, pair.prompt_ids).endswith(f"{USER}q{END}\n{BOT}")
    assert "more" in text(bundle, pair.chosen_ids) and text(bundle, pair.rejected_ids).strip() == f"bad{END}"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "list", "chosen": [turn("assistant", "ls -A")], "rejected": [turn("assistant", "ls")]},
        {"prompt": [turn("user", "list")], "chosen": "ls -A", "rejected": "ls"},
        {"prompt": "list", "chosen": [turn("assistant", "ls -A")], "rejected": "ls"},
        {
            "prompt": "list",
            "chosen": [turn("user", "list"), turn("assistant", "ls -A")],
            "rejected": [turn("user", "list"), turn("assistant", "ls")],
        },
        {
            "prompt": [{"from": "human", "value": "list"}],
            "chosen": {"from": "gpt", "value": "ls -A"},
            "rejected": {"from": "gpt", "value": "ls"},
        },
    ],
)
def test_all_mixtures_of_text_and_turns_mean_the_same_conversation(encode, row):
    pairs, problems = encode({"prompt": "list", "chosen": "ls -A", "rejected": "ls"}, wrap=True)
    assert not problems
    assert encode(row)[0] == pairs


def test_a_prompt_given_twice_keeps_its_system_turn_once(bundle, encode):
    asked = [turn("system", "Be brief."), turn("user", "list")]
    (pair,), _ = encode(
        {
            "prompt": asked,
            "chosen": [turn("user", "list"), turn("assistant", "ls -A")],
            "rejected": [turn("user", "list"), turn("assistant", "ls")],
        }
    )
    whole = text(bundle, pair.prompt_ids)
    assert whole.count("Be brief.") == 1 and whole.count("list") == 1


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS)], ids=["list", "string"])
def test_tools_stand_in_the_prompt(bundle, encode, tools):
    row = {**PLAIN, "tools": tools}
    (with_tools,), _ = encode(row, wrap=True)
    (without,), _ = encode(PLAIN, wrap=True)
    assert "reader_of_files" in text(bundle, with_tools.prompt_ids)
    assert with_tools.prompt_ids != without.prompt_ids and with_tools.chosen_ids == without.chosen_ids


def test_the_prompt_ends_where_the_earlier_of_both_answers_parts_from_it(bundle, encode):
    # Alone "list" is other tokens than before a letter that merges with its end.
    whole = bundle.encode("please list files")
    cut = next(
        at
        for at in range(2, len("please list files"))
        if bundle.encode("please list files"[:at]) != whole[: len(bundle.encode("please list files"[:at]))]
    )
    prompt, answer = "please list files"[:cut], "please list files"[cut:]
    (pair,), _ = encode({"prompt": prompt, "chosen": answer, "rejected": " ?"})
    assert pair.shifted
    assert pair.prompt_ids + pair.chosen_ids == [*whole, bundle.eos_id]
    assert pair.prompt_ids + pair.rejected_ids == [*bundle.encode(f"{prompt} ?"), bundle.eos_id]
    assert len(pair.prompt_ids) < len(bundle.encode(prompt))


def test_truncation_takes_the_oldest_prompt_tokens_and_none_of_the_answers(bundle, encode):
    row = {"prompt": "w x y z " * 20, "chosen": "a b c d e", "rejected": "f"}
    (whole,), _ = encode(row)
    for limit in range(len(whole.chosen_ids) + 1, whole.full_length + 3):
        (pair,), problems = encode(row, max_length=limit)
        assert not problems
        assert (pair.chosen_ids, pair.rejected_ids) == (whole.chosen_ids, whole.rejected_ids)
        kept = min(limit - len(whole.chosen_ids), len(whole.prompt_ids))
        assert pair.prompt_ids == whole.prompt_ids[-kept:]
        assert pair.length <= limit and pair.full_length == whole.full_length


def test_an_answer_that_leaves_no_prompt_token_is_left_out_with_the_length_that_would_do(encode):
    row = {"prompt": "p q r", "chosen": "a b c d e", "rejected": "f"}
    (whole,), _ = encode(row)
    pairs, (problem,) = encode(row, PLAIN, max_length=len(whole.chosen_ids))
    assert problem.code == "answers_do_not_fit" and problem.row == 1
    assert problem.needed == len(whole.chosen_ids) + 1
    assert [pair.row for pair in pairs] == [2] if len(whole.chosen_ids) > 4 else True
    assert encode(row, max_length=problem.needed)[0]


def test_answers_that_only_the_tokenizer_makes_equal_are_left_out(bundle, encode):
    pairs, (problem,) = encode({"prompt": "say: ", "chosen": "ls", "rejected": f"ls{bundle.eos_token}"})
    assert not pairs and problem.code == "answers_have_the_same_tokens"


def test_a_row_whose_template_fails_is_named_once_and_the_others_stay(encode):
    lost = {"prompt": "a\\ud800", "chosen": "b", "rejected": "c"}
    pairs, problems = encode(PLAIN, json.dumps(lost).replace("\\\\", "\\"), {**PLAIN, "chosen": "ls -la"})
    assert [pair.row for pair in pairs] == [1, 3] and not problems  # the reader has refused it already


def test_more_rows_than_a_batch_keep_their_order_and_their_sides(bundle, encode):
    rows = [{"prompt": f"case {i}:\n", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(700)]
    pairs, problems = encode(*rows)
    assert not problems and [pair.row for pair in pairs] == list(range(1, 701))
    for i in (0, 255, 256, 511, 512, 699):
        assert text(bundle, pairs[i].chosen_ids) == f"yes {i}{bundle.eos_token}"
        assert text(bundle, pairs[i].rejected_ids) == f"no {i}{bundle.eos_token}"
