"""The arithmetic of DPPO: bounds, symmetry of the mask, agreement with scipy, refusals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr

from bashgym.core.errors import BashGymError
from bashgym.data import dppo
from bashgym.data.dppo import MaskReason, binary_kl, binary_tv, judge_token, judge_tokens, probability, telemetry

LOGPROB = st.floats(-60, 0)
MODERATE = st.floats(-15, -1e-4)


@given(LOGPROB, LOGPROB)
def test_divergences_are_bounded_zero_at_equality_and_tv_is_symmetric(p, q):
    assert 0 <= binary_tv(p, q) < 1 and binary_tv(p, q) == binary_tv(q, p)
    assert binary_kl(p, q) >= 0 and math.isfinite(binary_kl(p, q))
    assert binary_tv(p, p) == binary_kl(p, p) == 0


@given(MODERATE, MODERATE)
def test_kl_is_that_of_behaviour_to_training_over_two_outcomes(train, behaviour):
    p, q = math.exp(train), math.exp(behaviour)
    expected = rel_entr(q, p) + rel_entr(1 - q, 1 - p)
    assert binary_kl(train, behaviour) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(LOGPROB, LOGPROB)
def test_pinsker_relates_the_two(p, q):
    assert binary_tv(p, q) <= math.sqrt(binary_kl(p, q) / 2) + 1e-7


@pytest.mark.parametrize(
    ("logprob", "value"), [(0.0, 1 - 1e-12), (5.0, 1 - 1e-12), (-1e9, 1e-12), (-1.0, math.exp(-1))]
)
def test_probabilities_are_capped_and_clamped(logprob, value):
    assert probability(logprob) == value


UP, DOWN, NEAR = (math.log(0.6), math.log(0.2)), (math.log(0.2), math.log(0.6)), (math.log(0.30), math.log(0.25))


@pytest.mark.parametrize(
    ("logprobs", "advantage", "reason"),
    [
        (UP, 1.0, MaskReason.POSITIVE),
        (DOWN, -1.0, MaskReason.NEGATIVE),
        (UP, -1.0, MaskReason.INSIDE),  # the update brings it back
        (DOWN, 1.0, MaskReason.INSIDE),
        (UP, 0.0, MaskReason.INSIDE),
        (NEAR, 1.0, MaskReason.INSIDE),
    ],
)
@pytest.mark.parametrize("divergence", ["binary_tv", "binary_kl"])
def test_only_what_would_go_further_out_is_masked(logprobs, advantage, reason, divergence):
    found = judge_token(*logprobs, advantage, divergence, dppo.THRESHOLDS[divergence])
    assert found.reason is reason and found.masked is (reason is not MaskReason.INSIDE)


def test_a_divergence_of_exactly_the_threshold_is_inside():
    tv = binary_tv(*UP)
    assert not judge_token(*UP, 1.0, "binary_tv", tv).masked
    assert judge_token(*UP, 1.0, "binary_tv", math.nextafter(tv, 0)).masked


@given(LOGPROB, LOGPROB, st.floats(-5, 5), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_radius_never_masks_more(p, q, advantage, a, b):
    low, high = sorted((a, b))
    assert (
        judge_token(p, q, advantage, "binary_tv", high).masked <= judge_token(p, q, advantage, "binary_tv", low).masked
    )


@given(st.lists(st.tuples(LOGPROB, LOGPROB, st.floats(-2, 2)), min_size=1, max_size=30))
def test_telemetry_counts_every_token_once(tokens):
    updates = judge_tokens(*map(list, zip(*tokens, strict=True)))
    seen = telemetry(updates, divergence="binary_tv", threshold=0.15)
    assert seen["n_tokens"] == sum(seen["reasons"].values()) == len(tokens)
    assert seen["masked_updates"] == len(tokens) - seen["reasons"]["inside_trust_region"]
    for name in ("binary_tv", "binary_kl", "abs_logprob_diff", "abs_policy_mismatch"):
        assert 0 <= seen[f"mean_{name}"] <= seen[f"max_{name}"] * (1 + 1e-12)
    assert seen["collapse_warning"] is False  # fewer than 200


@pytest.mark.parametrize(("masked", "tokens", "collapsed"), [(190, 200, True), (189, 200, False), (199, 199, False)])
def test_collapse_takes_200_tokens_of_which_95_percent_are_masked(masked, tokens, collapsed):
    updates = judge_tokens([UP[0]] * tokens, [UP[1]] * tokens, [1.0] * masked + [-1.0] * (tokens - masked))
    assert telemetry(updates, divergence="binary_tv", threshold=0.15)["collapse_warning"] is collapsed


def test_no_tokens_give_zeros():
    seen = telemetry([], divergence="binary_tv", threshold=0.15)
    assert seen["masked_fraction"] == seen["max_binary_kl"] == 0 and seen["collapse_warning"] is False


@given(st.dictionaries(st.text(max_size=3), st.lists(st.floats(-9, 9), min_size=1, max_size=6), min_size=1))
def test_group_statistics_are_mean_and_population_spread(groups):
    found = dppo.group_statistics((name, r) for name, rewards in groups.items() for r in rewards)
    for name, rewards in groups.items():
        mean, std = found[name]
        assert mean == pytest.approx(sum(rewards) / len(rewards), abs=1e-9)
        assert std**2 == pytest.approx(sum((r - mean) ** 2 for r in rewards) / len(rewards), abs=1e-9)


@pytest.mark.parametrize(
    ("divergence", "threshold", "field"),
    [("tv", None, "divergence"), ("binary_tv", -0.1, "threshold"), ("binary_kl", math.nan, "threshold")],
)
def test_an_unknown_divergence_or_a_bad_radius_is_refused(divergence, threshold, field):
    with pytest.raises(BashGymError) as caught:
        judge_tokens([-1.0], [-1.0], [1.0], divergence=divergence, threshold=threshold)
    assert caught.value.code == "invalid_field" and caught.value.fields == [field]


def test_lengths_that_differ_are_refused():
    with pytest.raises(BashGymError) as caught:
        judge_tokens([-1.0, -2.0], [-1.0], [1.0])
    assert caught.value.code == "replay_invalid"
