"""The terminal suite as data: splits that do not share values, determinism, sizes, and how a command is found."""

import json
import re
import time
from collections import Counter

import pytest

from bashgym.core.errors import BashGymError
from bashgym.envs import terminal
from bashgym.envs.terminal import FAMILIES, Category, Split
from bashgym.envs.terminal.base import words

ROWS = 6_000


def rows(seed=7, n=ROWS):
    return list(terminal.training_rows(seed, n))


def names(text):
    """The generated words of a text: four letters, consonant and vowel in turn."""
    return set(re.findall(r"[a-z]+", text)) & {*words(True), *words(False)}


def test_every_category_has_families_and_some_are_held_out():
    split = Counter(family.split for family in FAMILIES.values())
    assert split[Split.TRAIN] >= 18 and split[Split.HELDOUT_FAMILIES] >= 3
    assert {family.category for family in FAMILIES.values() if family.split is Split.TRAIN} == set(Category)


def test_the_value_pools_are_disjoint():
    assert not set(words(True)) & set(words(False))
    assert len(words(True)) > 300 and len(words(False)) > 1_000


def test_no_training_row_shows_a_held_out_value():
    seen = names(" ".join(message["content"] for row in rows() for message in row["messages"]))
    assert len(seen) > 500 and not any(terminal.is_heldout(word) for word in seen)


@pytest.mark.parametrize("split", ["heldout_values", "heldout_families"])
def test_held_out_tasks_have_held_out_values_only(split):
    for task in terminal.build(split, 3, 5):
        files = [text for path, text in task.spec.files.items() if path != "verify.sh"]
        found = names(" ".join([task.instruction, task.solution, *task.spec.files, *files]))
        assert found and all(terminal.is_heldout(word) for word in found)


def test_no_held_out_instruction_is_trained_on_whatever_the_seeds():
    trained = {row["messages"][0]["content"] for seed in (1, 2) for row in rows(seed)}
    held = {
        task.instruction for split in ("heldout_values", "heldout_families") for task in terminal.build(split, 1, 10)
    }
    assert not trained & held


def test_held_out_families_are_never_trained_on():
    trained = {row["metadata"]["task_family"] for row in rows()}
    held = {task.family for task in terminal.build("heldout_families", 1, 1)}
    assert not trained & held
    assert trained == {task.family for task in terminal.build("heldout_values", 1, 1)}


def test_rows_are_conversations_with_their_source():
    row = rows(n=1)[0]
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    assert row["metadata"]["split"] == "train" and row["metadata"]["source_id"] == "terminal-7-0"
    assert json.loads(json.dumps(row)) == row


def test_rows_are_balanced_and_never_repeat_an_instruction():
    made = rows()
    per_family = Counter(row["metadata"]["task_family"] for row in made)
    assert max(per_family.values()) - min(per_family.values()) <= 1
    assert len({row["messages"][0]["content"] for row in made}) == ROWS


def test_rows_are_short_enough_for_a_tiny_model():
    made = rows(n=2_000)
    lengths = [sum(len(message["content"]) for message in row["messages"]) for row in made]
    assert sum(lengths) / len(lengths) < 70 and max(lengths) < 110


def test_the_demos_corpus_takes_seconds():
    begin = time.perf_counter()
    assert sum(1 for _ in terminal.training_rows(7, 25_600)) == 25_600
    assert time.perf_counter() - begin < 10


@pytest.mark.parametrize("split", list(Split))
def test_a_build_is_a_function_of_its_arguments(split):
    once, again, other = (terminal.build(split, seed, 3) for seed in (4, 4, 5))
    assert once == again and terminal.suite_digest(once) == terminal.suite_digest(again)
    assert terminal.suite_digest(once) != terminal.suite_digest(other)


def test_a_larger_build_begins_with_the_smaller_one():
    small, large = (terminal.build("heldout_values", 4, n) for n in (2, 5))
    assert {task.task_id for task in small} <= {task.task_id for task in large}


def test_tasks_are_different_and_evenly_spread():
    tasks = terminal.build("heldout_values", 9, 20)
    assert len({task.instruction for task in tasks}) == len({task.task_id for task in tasks}) == len(tasks)
    assert set(Counter(task.family for task in tasks).values()) == {20}


def test_the_suite_digest_does_not_depend_on_order_but_on_every_task():
    tasks = terminal.build("train", 1, 2)
    assert terminal.suite_digest(tasks) == terminal.suite_digest(tasks[::-1])
    assert terminal.suite_digest(tasks) != terminal.suite_digest(tasks[1:])


@pytest.mark.parametrize(
    "task", terminal.build("train", 2, 1) + terminal.build("heldout_families", 2, 1), ids=lambda t: t.family
)
def test_the_model_is_shown_no_solution(task):
    withheld = task.spec.withheld()
    assert "verify.sh" in withheld
    shown = [text for path, text in task.spec.files.items() if path not in withheld]
    assert all(task.solution not in text for text in [task.instruction, *shown])
    assert len(task.wrong) >= 2 and task.solution not in task.wrong


def test_an_unknown_split_is_refused_with_the_known_ones():
    with pytest.raises(BashGymError) as refused:
        terminal.build("test", 1, 1)
    assert refused.value.code == "suite_unknown" and "heldout_values" in refused.value.hint


@pytest.mark.parametrize(
    ("completion", "command"),
    [
        ("ls -l", "ls -l"),
        ("  ls -l\n", "ls -l"),
        ("```sh\nls -l\n```", "ls -l"),
        ("Here it is:\n```bash\nls\nwc x\n```\nBye", "ls\nwc x"),
        ("```\nls\n```", "ls"),
        ("`ls -l`", "ls -l"),
        ("echo `date`", "echo `date`"),
        ("", None),
        ("  \n ", None),
        ("```sh\n```", None),
        ("First do this\nthen that", None),
    ],
)
def test_the_command_of_a_completion(completion, command):
    assert terminal.extract_command(completion) == command


def test_a_completion_without_a_command_is_a_format_error_and_runs_nothing():
    result = terminal.judge(terminal.build("train", 1, 1)[0], "I would\nrather not")
    assert (result.passed, result.verifier_status, result.steps[0].exit_code) == (False, "format_error", 2)
