"""An instruction is found however it was copied into the training data, and common phrases are no copies."""

import json

import pytest

from bashgym.core.errors import BashGymError
from bashgym.evals.contamination import contaminated

LONG = (
    "Find every log file below var that grew by more than ten megabytes since Monday, compress each of them with "
    "gzip, and write the names of the archives, sorted by size, into report.txt"
)
HELD = {
    "long": LONG,
    "short": "Fix the bug",
    "other": "Count the words of each paragraph in notes.md and print the sum",
}


def rows(tmp_path, *made):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return path


def user(text):
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ls"}]}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (user(LONG), "exact"),
        (user(f"Please help.\n\n{LONG.upper()}!\n\nThanks"), "exact"),
        ({"prompt": "hi", "chosen": f"You said: {LONG}", "rejected": "no"}, "exact"),
        ({"prompt": " ".join(LONG.split()[5:18]), "completion": "x"}, "13gram_overlap"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": LONG}]}], "answer": "x"}, "exact"),
    ],
)
def test_a_copy_is_found_in_any_column_whole_in_part_or_nearly(tmp_path, row, found):
    path = rows(tmp_path, user("Something else entirely"), row)
    assert contaminated(HELD, path) == {"long": {"kind": found, "row": 2}}


def test_a_short_instruction_with_another_last_word_is_nearly_the_same(tmp_path):
    path = rows(tmp_path, user("Count the words of each paragraph in notes.md and print the mean"))
    assert contaminated(HELD, path) == {"other": {"kind": "3gram_jaccard", "row": 1}}
    assert contaminated(HELD, rows(tmp_path, user("Count the words of each file and print the mean"))) == {}


def test_twelve_words_and_common_phrases_are_no_copy(tmp_path):
    path = rows(tmp_path, user(" ".join(LONG.split()[5:17])), user("Please fix the bug in parser.py"), user(""))
    assert contaminated(HELD, path) == {}
    assert contaminated(HELD, rows(tmp_path, user(" fix THE  bug. "))) == {"short": {"kind": "exact", "row": 1}}


def test_an_instruction_without_words_is_not_found_in_an_empty_text(tmp_path):
    assert contaminated({"odd": "???"}, rows(tmp_path, user(""), user("!!!"))) == {}


def test_a_dataset_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BashGymError) as caught:
        contaminated(HELD, tmp_path / "none.jsonl")
    assert caught.value.code == "dataset_missing"


def test_seven_tenths_of_the_phrases_are_a_copy_and_less_is_none(tmp_path):
    held = {"a": "one two three four five six seven eight nine"}  # seven phrases of three words
    # Of one with ten phrases that holds these seven, 7 of 10 are common; of one with eleven, 7 of 11.
    seven = "zero one two three four five six seven eight nine ten eleven"
    assert contaminated(held, rows(tmp_path, user(f"{seven}"))).keys() == {"a"}
    shorter = {"a": "one two three four five six seven eight nine".replace("six", "sechs")}
    assert contaminated(shorter, rows(tmp_path, user(seven))) == {}


def test_a_text_is_found_at_any_depth_that_is_looked_at(tmp_path):
    from bashgym.evals.contamination import _MAX_DEPTH, _texts

    def nested(depth):
        value = "x"
        for _ in range(depth):
            value = [value]
        return value

    assert list(_texts(nested(_MAX_DEPTH))) == ["x"] and list(_texts(nested(_MAX_DEPTH + 1))) == []


def test_six_words_in_a_row_are_a_quotation_and_five_are_a_phrase(tmp_path):
    held = {"six": "sort the log by its date", "five": "sort the log by date"}
    text = user(
        "First of all please do this: sort the log by its date, or else sort the log by date, and then stop. " * 1
    )
    assert contaminated(held, rows(tmp_path, text)).keys() == {"six"}
