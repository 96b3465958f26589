"""Group arithmetic: contrast, telemetry, drawn prompts, and the penalty of length."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.training.groups import REFILL_ROUNDS, Tally, draw_rows, has_contrast, overlong_penalty, population_std

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)
NAN = math.nan


@given(REWARDS)
def test_the_spread_is_the_population_one(rewards):
    assert population_std(rewards) == pytest.approx(statistics.pstdev(rewards), abs=1e-9)


@given(REWARDS, st.integers(0, 3))
def test_answers_without_a_verdict_do_not_count(rewards, missing):
    assert population_std([*rewards, *[NAN] * missing]) == population_std(rewards)


@given(st.floats(-10, 10), st.integers(2, 64))
def test_equal_rewards_have_no_contrast_whatever_they_are(reward, size):
    assert not has_contrast([reward] * size)


@pytest.mark.parametrize("rewards", [[], [1.0], [NAN, NAN], [1.0, NAN]])
def test_fewer_than_two_verdicts_have_no_contrast(rewards):
    assert not has_contrast(rewards)


@pytest.mark.parametrize(("gap", "contrast"), [(1e-9, False), (1e-7, True)])
def test_the_threshold_is_1e_8(gap, contrast):
    assert has_contrast([0.0, gap]) is contrast


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 0.5, NAN]), min_size=4, max_size=4), max_size=20))
def test_every_walked_group_is_kept_or_dropped(groups):
    tally = Tally(requested=4)
    kept = sum(tally.add(group) for group in groups)
    told = tally.metrics()
    assert told["effective_prompt_groups"] == kept
    assert told["candidate_prompt_groups"] == kept + told["zero_std_groups_dropped"] == len(groups)
    assert told["all_zero_groups_dropped"] + told["all_one_groups_dropped"] <= told["zero_std_groups_dropped"]
    assert told["active_sampling_refills"] == max(0, len(groups) - 4)
    assert told["maintained_batch"] == (kept >= 4)


def test_groups_of_zeros_ones_and_nothing_are_told_apart():
    tally = Tally(requested=5)
    for group in ([0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [NAN, NAN, NAN], [0, NAN, 0]):
        assert not tally.add(group)
    assert (tally.dropped, tally.all_zero, tally.all_one) == (5, 2, 1)


KEYS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 10**6), st.integers(1, REFILL_ROUNDS))


@given(st.integers(1, 50), st.integers(1, 80), KEYS, st.sets(st.integers(0, 49)))
def test_drawn_rows_exist_and_repeat_only_when_all_are_used(rows, count, key, without):
    without = {row for row in without if row < rows}
    drawn = draw_rows(rows, count, key, without)
    assert len(drawn) == count and set(drawn) <= set(range(rows))
    assert drawn == draw_rows(rows, count, key, without)
    fresh = rows - len(without)
    assert not set(drawn[:fresh]) & without and len(set(drawn[:rows])) == min(count, rows)


def test_draws_differ_by_seed_step_and_round():
    keys = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]
    assert len({tuple(draw_rows(1000, 8, key)) for key in keys}) == 4


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (96, 0), (97, -0.03125), (112, -0.5), (128, -1), (200, -1)])
def test_the_penalty_of_length_is_eq_13_of_dapo(length, expected):
    assert overlong_penalty(length, 128, 32, 1.0) == expected


@given(st.integers(0, 500), st.integers(1, 200), st.integers(1, 200), st.floats(0, 5))
def test_the_penalty_never_rises_with_length(length, limit, buffer, penalty):
    buffer = min(buffer, limit)
    here, next_ = (overlong_penalty(n, limit, buffer, penalty) for n in (length, length + 1))
    assert -penalty <= next_ <= here <= 0
