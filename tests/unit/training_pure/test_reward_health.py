"""The rules that watch rewards: each speaks for its fault, once, and for nothing else."""

import pytest

from bashgym.training.health import RULES, RewardHealth

GOOD = {
    "frac_reward_zero_std": 0.2,
    "reward": 0.5,
    "verifier_error_rate": 0.0,
    "kl": 0.01,
    "entropy": 2.0,
    "completions/mean_length": 40.0,
    "completions/clipped_ratio": 0.1,
}


def codes(points, health=None):
    health = health or RewardHealth()
    return [alarm.code for point in points for alarm in health.add({**GOOD, **point})]


def test_a_healthy_run_is_left_alone():
    assert codes([{}] * 100) == []


@pytest.mark.parametrize(
    ("code", "points"),
    [
        ("no_reward_contrast", [{}] * 3 + [{"frac_reward_zero_std": 0.97}] * 5),
        ("verifier_errors", [{"verifier_error_rate": 0.3}] * 5),
        ("kl_drift", [{}] * 10 + [{"kl": 3.0}] * 5),
        ("entropy_collapse", [{}] * 10 + [{"entropy": 0.1}] * 5),
        ("length_blow_up", [{}] * 10 + [{"completions/mean_length": 130.0}] * 5),
        ("answers_cut", [{"completions/clipped_ratio": 0.95, "reward": 0.0}] * 3),
    ],
)
def test_each_fault_raises_its_alarm_once(code, points):
    assert codes([*points, *[points[-1]] * 20]) == [code]


def test_every_rule_is_tested_above():
    assert set(RULES) == {
        "no_reward_contrast",
        "verifier_errors",
        "kl_drift",
        "entropy_collapse",
        "length_blow_up",
        "answers_cut",
    }


@pytest.mark.parametrize(
    "points",
    [
        [{"frac_reward_zero_std": 1.0}] * 4,
        [{"frac_reward_zero_std": 1.0}, {}] * 10,
        [{"verifier_error_rate": 1.0}, {}, {}, {}, {}] * 4,
        [{}] * 10 + [{"kl": 0.9}] * 10,
        [{"completions/clipped_ratio": 0.95, "reward": 0.2}] * 10,
        [{}] * 10 + [{"completions/clipped_ratio": 0.95, "reward": 0.0}] * 10,
        [{"entropy": None, "kl": None}] * 20,
    ],
)
def test_what_is_short_of_a_fault_raises_none(points):
    assert codes(points) == []


def test_the_message_on_cut_answers_names_the_field():
    health = RewardHealth()
    found = [a for _ in range(3) for a in health.add({**GOOD, "completions/clipped_ratio": 1.0, "reward": 0.0})]
    assert "max_completion_length" in found[0].message


def test_evaluations_and_summaries_are_no_steps():
    health = RewardHealth()
    assert [alarm for _ in range(20) for alarm in health.add({"eval_reward": 0.0, "train_runtime": 3.0})] == []


def test_a_run_that_reads_its_points_again_judges_the_same():
    points = [{**GOOD, "entropy": max(0.01, 2.0 - 0.3 * i)} for i in range(14)]
    whole, resumed = RewardHealth(), RewardHealth()
    spoken = [[a.code for a in whole.add(point)] for point in points]
    for point in points[:7]:
        resumed.add(point)
    assert [[a.code for a in resumed.add(point)] for point in points[7:]] == spoken[7:]
    assert any(spoken[7:])
