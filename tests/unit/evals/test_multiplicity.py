"""Holm against statsmodels, boundaries against published tables, and the error rate over many candidates by simulation."""

import math

import numpy as np
import pytest
from scipy.stats import norm
from statsmodels.stats.multitest import multipletests

from bashgym.core.errors import BashGymError
from bashgym.evals.multiplicity import boundaries, candidate_alpha, holm, least_clusters, spent


def test_holm_is_that_of_statsmodels():
    draw = np.random.default_rng(0)
    for n in range(1, 13):
        p_values = list(draw.choice([0.0, 1.0, *draw.random(8), *(draw.random(8) / 20)], n))
        assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-12)


def test_holm_of_nothing_is_nothing_and_impossible_p_are_refused():
    assert holm([]) == []
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(BashGymError) as caught:
            holm([0.5, bad])
        assert caught.value.code == "invalid_field"


# Two-sided .05, evenly spaced looks, alpha spending functions: Jennison & Turnbull (2000), and DeMets & Lan (1994).
PUBLISHED = {
    ("obrien_fleming", 2): [2.963, 1.969],
    ("obrien_fleming", 5): [4.877, 3.357, 2.680, 2.290, 2.031],
    ("pocock", 2): [2.157, 2.201],
    ("pocock", 5): [2.438, 2.427, 2.410, 2.397, 2.386],
}


@pytest.mark.parametrize(("kind", "looks"), PUBLISHED)
def test_boundaries_are_the_published_ones(kind, looks):
    found = boundaries([(i + 1) / looks for i in range(looks)], kind)
    assert [look.z for look in found] == pytest.approx(PUBLISHED[kind, looks], abs=2e-3)
    assert found[-1].spent == pytest.approx(0.05)
    assert [look.alpha for look in found] == pytest.approx([2 * norm.sf(look.z) for look in found])


def test_one_look_is_the_ordinary_test():
    (only,) = boundaries([1.0])
    assert only.z == pytest.approx(norm.ppf(0.975), abs=1e-6) and only.alpha == pytest.approx(0.05)


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.8, 0.5], [0.0, 1.0], [0.5, 1.2], [math.nan]])
def test_shares_that_do_not_rise_are_refused(shares):
    with pytest.raises(BashGymError) as caught:
        boundaries(shares)
    assert caught.value.code == "invalid_field"


def test_an_unknown_spending_function_is_refused():
    with pytest.raises(BashGymError, match="pococ"):
        spent(0.5, "pococ")


@pytest.mark.parametrize("kind", ["obrien_fleming", "pocock"])
def test_looking_five_times_at_growing_data_errs_one_time_in_twenty(kind):
    draw = np.random.default_rng(11)
    path = draw.normal(size=(40_000, 5)).cumsum(axis=1) / np.sqrt(np.arange(1, 6))
    bounds = np.array([look.z for look in boundaries([0.2, 0.4, 0.6, 0.8, 1.0], kind)])
    assert (np.abs(path) > bounds).any(axis=1).mean() == pytest.approx(0.05, abs=0.004)
    assert (np.abs(path) > 1.96).any(axis=1).mean() > 0.13, "without spending, one in seven"


def test_the_first_candidate_is_judged_as_if_alone_and_all_of_them_err_one_time_in_twenty():
    alphas = [candidate_alpha(look) for look in range(1, 2001)]
    assert alphas[0] == 0.05 and alphas == sorted(alphas, reverse=True)
    assert sum(alphas) / 2 == pytest.approx(0.05, abs=1e-4), "one side"
    draw = np.random.default_rng(3)
    # Forty candidates that are no better share the baseline's luck, as they do in life.
    z = (draw.normal(size=(20_000, 1)) + draw.normal(size=(20_000, 40))) / math.sqrt(2)
    limits = norm.ppf(1 - np.array(alphas[:40]) / 2)
    assert (z > limits).any(axis=1).mean() <= 0.05
    assert (z > 1.96).any(axis=1).mean() > 0.2, "judged as if alone, one in five"
    with pytest.raises(BashGymError, match="from 1"):
        candidate_alpha(0)


@pytest.mark.parametrize(("alpha", "least"), [(0.05, 6), (0.025, 7), (0.05 / 6, 8), (0.5, 3)])
def test_the_least_clusters_are_the_first_whose_unanimity_is_rarer_than_alpha(alpha, least):
    assert least_clusters(alpha) == least
    assert 2 / 2**least < alpha <= 2 / 2 ** (least - 1)
