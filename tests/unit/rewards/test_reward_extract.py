"""What counts as the code and as the answer of a completion."""

import pytest

from bashgym.envs.rewards.extract import as_number, code_block, final_answer, same_answer


def test_the_last_python_block_is_the_code():
    text = "First:\n```python\na = 1\n```\nno, better:\n```py\na = 2\n```\nDone."
    assert code_block(text) == "a = 2\n"


def test_a_block_without_a_language_counts_and_one_in_another_language_does_not():
    assert code_block("```\nx = 1\n```\n```bash\nrm x\n```") == "x = 1\n"


def test_without_a_block_all_of_it_is_code():
    assert code_block("x = 1\n") == "x = 1\n"


def test_an_open_fence_is_no_block():
    cut = "```python\ndef f():\n    return"
    assert code_block(cut) == cut


def test_a_fence_inside_a_string_of_the_code_does_not_end_it():
    assert code_block('```python\nx = "```"\n```') == 'x = "```"\n'


@pytest.mark.parametrize(
    ("completion", "reference"),
    [
        ("It is 18.", "18"),
        ("3 + 4 is 7, no, wait:\n#### 18", "18"),
        ("#### 18\nBut first 99 apples", "18"),
        ("so \\boxed{18}.", "18"),
        ("#### 3\nno: \\boxed{18}", "18"),
        ("\\boxed{3} no:\n#### 18", "18"),
        ("18.0", "18"),
        ("$1,000", "1000"),
        ("1,234,567.50", "1234567.5"),
        ("The price drops by 20%.", "20"),
        ("it is -5", "-5"),
        ("it is \N{MINUS SIGN}5", "-5"),
        ("10-5 = 5", "5"),
        ("Reasoning about eggs.\nanswer 18", "She has 16 + 2 = 18 eggs.\n#### 18"),
        ("I think\n  LIMA. ", "Lima"),
        ("\\boxed{\\frac{1}{2}}", "\\boxed{\\frac{1}{2}}"),
        ("007", "007"),
        ("1e3", "1e3"),
        ("true", "True"),
    ],
)
def test_right_answers(completion, reference):
    assert same_answer(completion, reference)


@pytest.mark.parametrize(
    ("completion", "reference"),
    [
        ("7", "007"),
        ("007", "7"),
        ("1000", "1e3"),
        ("18 or 19", "18"),
        ("#### 19\n18", "18"),
        ("", "18"),
        ("", ""),
        ("####", "18"),
        ("It is Lima, I think", "Lima"),
        ("x18", "18"),
        ("1.2.3", "3"),
        ("18" * 1000, "18"),
        ("a" * 2000, "a" * 2000),
        ("\\boxed{18", "19"),
        ("180", "18"),
        ("1,8", "18"),
    ],
)
def test_wrong_answers(completion, reference):
    assert not same_answer(completion, reference)


def test_a_marker_wins_over_the_last_number():
    assert final_answer("#### 5\nbecause 7", number=True) == "5"


def test_numbers_are_decimals_and_not_floats():
    assert as_number("0.1") != as_number("0.1000000000000000055511151231257827")
    assert as_number("100000000000000000001") != as_number("100000000000000000000")


def test_a_hostile_answer_is_compared_in_no_time():
    same_answer("1," * 200_000 + "\\boxed{" * 50_000 + "#" * 100_000, "3")
    code_block("```" * 100_000)
