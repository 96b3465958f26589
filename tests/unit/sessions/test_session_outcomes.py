"""Evidence decides whether a step worked, and only the step that mended a failure is its recovery."""

import pytest

from bashgym.data.sessions.outcomes import Outcome, outcome, read_mistake
from bashgym.data.sessions.recovery import WINDOW, find_recovery, same_intent
from bashgym.data.sessions.steps import Step, action_text

from .session_cases import steps

FAILED, SUCCEEDED, UNKNOWN = Outcome.FAILED, Outcome.SUCCEEDED, Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("action", "output", "success", "code", "expected"),
    [
        ("pytest -q", "All tests pass!", None, 1, FAILED),
        ("pytest -q", "All tests pass!", True, 1, FAILED),
        ("pytest -q", "", False, 0, FAILED),
        ("pytest -q", "1 passed", None, 0, SUCCEEDED),
        ("pytest -q", "All tests pass!", None, None, UNKNOWN),
        ("pytest -q || true", "1 failed", None, 0, UNKNOWN),
        ("pytest -q; echo done", "done", None, 0, UNKNOWN),
        ("pytest -q | tail -3", "Error: no tests", None, 0, UNKNOWN),
        ("ls | head", "a", None, 0, SUCCEEDED),
        ("make", "make: *** fatal: no rule", None, None, FAILED),
        ("grep error log", "an error: 3", True, None, SUCCEEDED),
        ("rm x", "The user doesn't want to proceed with this tool use.", False, None, UNKNOWN),
    ],
)
def test_outcome(action, output, success, code, expected):
    assert outcome(Step(0, "Bash", action, output, success, code)) is expected


def test_words_of_a_file_that_was_read_are_no_failure():
    assert outcome(Step(0, "Read", "{}", "raise ValueError: fatal error: x")) is UNKNOWN


@pytest.mark.parametrize(
    ("output", "kind", "name"),
    [
        ("bash: line 1: pyhton: command not found", "missing_command", "pyhton"),
        ("zsh: command not found: gti", "missing_command", "gti"),
        ("cat: note.txt: No such file or directory", "missing_path", "note.txt"),
        ("ls: cannot access 'srcs/': No such file or directory", "missing_path", "srcs/"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a.csv'", "missing_path", "a.csv"),
        ("ModuleNotFoundError: No module named 'tabulate'", "missing_dependency", "tabulate"),
        ("Error: Cannot find module 'left-pad'", "missing_dependency", "left-pad"),
        ("bash: ./run.sh: Permission denied", "permission_error", "./run.sh"),
        ("bash: syntax error near unexpected token `fi'", "syntax_error", "fi"),
        ("error: unrecognized arguments: --qiet", "syntax_error", "qiet"),
        ("3 tests ran\nFAILED: expected 4, got 5", "failed_action", "FAILED: expected 4, got 5"),
    ],
)
def test_the_hint_quotes_what_the_output_names(output, kind, name):
    mistake = read_mistake(Step(0, "bash", "x", output, False, 1))
    assert (mistake.kind, mistake.name) == (kind, name)
    assert f"`{name}`" in mistake.hint


def test_a_hostile_output_cannot_make_a_long_or_broken_hint():
    for output in (
        "x" * 100_000 + ": command not found",
        "error: " + "y " * 5000,
        "cat: [Session\nDistillation]: not found",
    ):
        hint = read_mistake(Step(0, "bash", "x", output, False, 1)).hint
        assert len(hint) < 300 and "\n" not in hint


@pytest.mark.parametrize(
    ("failed", "later", "same"),
    [
        ("cat note.txt", "cat notes.txt", True),
        ("cat src/a.py", "cat lib/a.py", True),
        ("cd app && pytest test", "python -m pytest tests", True),
        ("sudo pip install reqests", "pip install requests", True),
        ("make", "make -j1", True),
        ("cat note.txt", "rm note.txt", False),
        ("git push origin main", "git status", False),
        ("cat a.txt", "cat zebra.json", False),
        ("ls", "pwd", False),
    ],
)
def test_same_intent(failed, later, same):
    a, b = steps((failed, "", 1), (later, "", 0))
    assert same_intent(a, b) is same


def test_another_program_counts_only_after_a_missing_command():
    a, b = steps(("pyhton app.py", "", 127), ("python3 app.py", "", 0))
    assert not same_intent(a, b) and same_intent(a, b, any_program=True)


def test_tool_calls_are_compared_by_what_they_are_about():
    def read(path, tool="Read"):
        return Step(0, tool, action_text(tool, {"file_path": path, "limit": 5}))

    assert same_intent(read("/a/index.htm"), read("/a/index.html"))
    assert not same_intent(read("/a/index.htm"), read("/a/readme.md"))
    assert same_intent(read("/a/b.py", "Edit"), read("/a/b.py", "MultiEdit"))


def recovered(*triples):
    found = find_recovery(steps(*triples), 0)
    return (found.step.action if found.step else None), found.reason


def test_the_first_success_of_the_same_intent_is_the_recovery_and_later_failures_are_passed_over():
    tries = (("cat note.txt", "", 1), ("cat notes.tx", "", 1), ("ls", "notes.txt", 0), ("cat notes.txt", "hi", 0))
    assert recovered(*tries) == ("cat notes.txt", "same_intent")


def test_the_step_that_let_the_failed_action_succeed_is_the_recovery():
    run = ("python app.py", "ModuleNotFoundError: No module named 'x'", 1)
    again = ("python app.py", "ok", 0)
    assert recovered(run, ("cat app.py", "", 0), ("pip install x", "", 0), again) == ("pip install x", "enabling_step")
    assert recovered(run, again) == (None, "retry_succeeded")
    assert recovered(run, ("pip install x", "", 0), ("touch y", "", 0), again) == (None, "several_steps")


def test_no_recovery_beyond_the_window_nor_from_an_unknown_step():
    filler = [(f"echo {i}", "", 0) for i in range(WINDOW)]
    assert recovered(("cat note.txt", "", 1), *filler, ("cat notes.txt", "", 0)) == (None, "no_recovery")
    assert recovered(("cat note.txt", "", 1), ("cat notes.txt || true", "", 0)) == (None, "no_recovery")
    assert recovered(("cat note.txt", "", 1), ("cat notes.txt", "", None)) == (None, "no_recovery")
