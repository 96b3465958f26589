"""Splits: the same everywhere, never empty, never everything, groups whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.core.errors import BashGymError
from bashgym.data.splits import eval_indices, grouped_eval_indices

from .support import fuzz


def test_a_split_is_what_it_always_was() -> None:
    assert sorted(eval_indices(20, 0.2, 42)) == [0, 4, 5, 10]
    assert eval_indices(20, 0.2, 43) != eval_indices(20, 0.2, 42)


@fuzz(60)
@given(st.integers(2, 500), st.floats(0.0001, 0.9999), st.integers(0, 9))
def test_both_sides_get_rows(rows: int, fraction: float, seed: int) -> None:
    held_out = eval_indices(rows, fraction, seed)
    assert 1 <= len(held_out) < rows
    assert held_out <= set(range(rows))
    assert abs(len(held_out) - rows * fraction) <= 1


@pytest.mark.parametrize(("rows", "fraction"), [(0, 0.5), (1, 0.5), (50, 0.0)])
def test_nothing_to_split_gives_nothing(rows: int, fraction: float) -> None:
    assert eval_indices(rows, fraction, 1) == set()


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, float("nan")])
def test_a_share_out_of_bounds_is_refused(fraction: float) -> None:
    with pytest.raises(BashGymError):
        eval_indices(10, fraction, 1)


@fuzz(60)
@given(st.lists(st.sampled_from("abcdefg"), min_size=2, max_size=60), st.floats(0.01, 0.9), st.integers(0, 5))
def test_a_group_is_never_torn(keys: list[str], fraction: float, seed: int) -> None:
    if len(set(keys)) == 1:
        with pytest.raises(BashGymError):
            grouped_eval_indices(keys, fraction, seed)
        return
    held_out = grouped_eval_indices(keys, fraction, seed)
    assert 0 < len(held_out) < len(keys)
    assert {keys[index] for index in held_out}.isdisjoint(
        keys[index] for index in range(len(keys)) if index not in held_out
    )
