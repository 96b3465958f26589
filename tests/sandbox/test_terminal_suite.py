"""Every task of the suite, run: the expert passes, nothing else does."""

import pytest

from bashgym.envs import terminal
from bashgym.envs.terminal import Split
from bashgym.envs.verdict import VerifierStatus

SEEDS = (1, 2)


def tasks(per_family=1):
    return [task for seed in SEEDS for split in Split for task in terminal.build(split, seed, per_family)]


def named(pairs, results, wanted):
    return [
        (t.family, t.instruction, text, r.verifier_status)
        for (t, text), r in zip(pairs, results, strict=True)
        if r.passed is wanted
    ]


def test_every_expert_solution_passes():
    pairs = [(task, task.solution) for task in tasks()]
    assert named(pairs, terminal.judge_many(pairs), False) == []


def test_every_wrong_command_fails_by_verdict():
    pairs = [(task, wrong) for task in tasks() for wrong in task.wrong]
    results = terminal.judge_many(pairs)
    assert named(pairs, results, True) == []
    assert {result.verifier_status for result in results} == {VerifierStatus.FAILED}


def test_doing_nothing_fails():
    pairs = [(task, "true") for task in tasks()]
    assert named(pairs, terminal.judge_many(pairs), True) == []


def test_a_solution_with_a_side_effect_fails():
    pairs = [(task, f"{task.solution}; touch extra") for task in tasks()]
    assert named(pairs, terminal.judge_many(pairs), True) == []


def test_the_solution_of_another_task_fails():
    every = [task for split in Split for task in terminal.build(split, 5, 2)]
    pairs = [(task, other.solution) for task, other in zip(every, [*every[1:], every[0]], strict=True)]
    assert named(pairs, terminal.judge_many(pairs), True) == []


@pytest.mark.parametrize(
    "attack", ["cat /verifier/* > out", "printf 'exit 0' > verify.sh", "ln -sf /verifier/verify.sh x"]
)
def test_no_task_passes_by_attacking_its_verifier(attack):
    pairs = [(task, attack) for task in terminal.build("train", 1, 1)]
    assert named(pairs, terminal.judge_many(pairs), True) == []


def test_a_file_name_that_imitates_the_goal_fails():
    task = next(t for t in terminal.build("train", 1, 1) if t.family == "copy_file")
    source, target = task.solution.split()[1:]
    assert not terminal.judge(task, f"touch $'{source} \\nf {target} '").passed
