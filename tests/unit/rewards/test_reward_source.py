"""Source that is parsed in our own process: it may be anything, and never ends us."""

import pytest

from bashgym.data.python_source import MAX_CHARS, fault_of_tests, parse
from bashgym.envs.rewards import RewardItem, RewardStatus
from bashgym.envs.rewards.code import syntax


def judged(completion):
    return syntax(RewardItem("p", completion, {}))


def test_code_that_parses_is_one_and_other_code_zero():
    assert judged("```python\ndef f():\n    return 1\n```").reward == 1
    assert judged("def f(:").reward == 0
    assert judged("def f(:").status is RewardStatus.FAILED


@pytest.mark.parametrize("nothing", ["", "  \n", "```python\n\n```"])
def test_no_code_is_not_code_that_parses(nothing):
    assert (judged(nothing).reward, judged(nothing).status) == (0, RewardStatus.FORMAT_ERROR)


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        "[",
        "-",
        "not ",
        "a.",
        "f()",
        "+1",
        "lambda:",
        "1 if 1 else ",
        "**1",
        "{",
        "await ",
        "x=",
        "if 1:\n ",
        "f'{",
    ],
)
@pytest.mark.parametrize("times", [500, 30_000])
def test_endless_nesting_is_answered(piece, times):
    parse((piece * times)[:MAX_CHARS])


@pytest.mark.parametrize(
    "source", ["x = 1\0", "\ud800", "# coding: latin-9\nx", "x" * (MAX_CHARS + 1), "\x0c", "é = 1"]
)
def test_odd_characters_are_answered(source):
    module, reason = parse(source)
    assert (module is None) == bool(reason)


def test_tests_that_judge_nothing_are_told_apart():
    assert fault_of_tests("from solution import f\ndef test_f():\n    assert f(1)\n") == ("", "")
    assert fault_of_tests("import solution as s\nclass TestF:\n    def test_f(self): assert s.f(1)\n") == ("", "")
    assert fault_of_tests("def test_f():\n    import solution\n    assert solution.f()\n") == ("", "")
    assert fault_of_tests("def test_f(")[0] == "error"
    assert "no test function" in fault_of_tests("from solution import f\nassert f(1)\n")[1]
    assert "import from solution" in fault_of_tests("def test_f():\n    assert True\n")[1]
