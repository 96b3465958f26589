"""The gate: it finds what is there, and refuses what cannot be said."""

import json

import msgspec
import numpy as np
import pytest

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.evals import stats
from bashgym.evals.compare import compare, compare_counts, gate_interval, judge, pass_at, pass_rate
from bashgym.evals.files import compare_files, read_scores, write_scores
from bashgym.evals.suites import Score


def scores(passed, *, per_cluster=10, attempts=1, prompt="do {}"):
    """One score per value, item by item and attempt by attempt; None was not observed."""
    made = []
    for i, value in enumerate(passed):
        item, attempt = divmod(i, attempts)
        made.append(
            Score(
                item_id=f"item-{item}",
                cluster=f"family-{item // per_cluster}",
                attempt=attempt,
                seed=i,
                passed=value if value is None else bool(value),
                score=None if value is None else float(value),
                status="error" if value is None else "passed" if value else "failed",
                prompt=[{"role": "user", "content": prompt.format(item)}],
                completion="true",
            )
        )
    return made


def refused(*args, **kwargs):
    with pytest.raises(BashGymError) as caught:
        compare(*args, **kwargs)
    return caught.value.code


def test_a_clear_gain_in_all_families_is_improved_and_its_mirror_regressed():
    none, most = scores([0] * 100), scores([i % 10 != 0 for i in range(100)])
    up, down = compare(most, none), compare(none, most)
    assert (up["verdict"], down["verdict"]) == ("improved", "regressed")
    assert up["effect"] == pytest.approx(0.9) and down["effect"] == pytest.approx(-0.9)
    assert up["mcnemar"] == {"b": 0, "c": 90, "p_value": pytest.approx(0, abs=1e-9)}
    assert len(up["flips"]["gained"]) == 90 == len(down["flips"]["lost"])
    assert up["significant"] and up["method"] == "cluster_bootstrap" and not up["reasons"]


def test_a_model_against_itself_is_inconclusive():
    same = scores([i % 3 == 0 for i in range(100)])
    found = compare(same, same)
    assert found["verdict"] == "inconclusive" and found["effect"] == 0
    assert found["ci_low"] < 0 < found["ci_high"]
    assert not found["flips"]["gained"] + found["flips"]["lost"]


def test_a_gain_in_one_family_only_is_not_shown_to_hold_for_families():
    found = compare(scores([i < 20 for i in range(200)], per_cluster=20), scores([0] * 200, per_cluster=20))
    assert found["mcnemar"]["p_value"] < 0.001
    assert found["intervals"]["item_bootstrap_stratified"]["ci_low"] > 0
    assert found["verdict"] == "inconclusive" and "includes zero" in found["reasons"][0]


def test_five_families_cannot_reach_a_verdict_however_large_the_gain():
    found = compare(scores([i % 10 != 0 for i in range(50)]), scores([0] * 50))
    assert found["verdict"] == "inconclusive" and "5 clusters" in found["reasons"][0]


def test_one_family_is_refused():
    assert refused(scores([1] * 10), scores([0] * 10)) == "too_few_clusters"


def test_a_gain_below_twice_the_noise_of_the_baseline_seeds_is_inconclusive():
    # Each baseline seed passes all or nothing; the candidate is a little better on every item.
    base = scores([attempt == 0 for _ in range(100) for attempt in range(3)], attempts=3)
    better = scores([attempt != 0 for _ in range(100) for attempt in range(3)], attempts=3)
    found = compare(better, base)
    assert found["ci_low"] > 0 and found["mcnemar"] is None
    assert found["verdict"] == "inconclusive" and "sigma" in found["reasons"][0]
    assert found["noise_floor"] == {"sigma": pytest.approx(3**-0.5), "n_seeds": 3}


def test_unobserved_attempts_are_dropped_in_pairs_and_are_no_misses():
    base = scores([0] * 100)
    found = compare(scores([None, None] + [1] * 98), base)
    assert found["n"] == 98 and found["effect"] == 1 and found["verdict"] == "improved"
    assert found["missing"] == {"candidate": ["item-0", "item-1"], "baseline": []}


@pytest.mark.parametrize("side", [0, 1])
def test_more_than_two_per_cent_unobserved_is_invalid_even_if_all_the_rest_is_gain(side):
    pair = [scores([1] * 100), scores([0] * 100)]
    pair[side] = scores([None] * 3 + [1 - side] * 97)
    found = compare(*pair)
    assert found["verdict"] == "invalid" and not found["significant"]


def test_a_dead_baseline_ships_nothing():
    found = compare(scores([1] * 100), scores([None] * 100))
    assert (found["verdict"], found["n"], found["effect"]) == ("invalid", 0, None)


def test_items_of_one_side_only_doubled_items_and_no_items_are_refused():
    full = scores([1] * 100)
    for broken in (full[:-1], [*full, full[3]], []):
        assert refused(broken, full) == "eval_incomplete"
        assert refused(full, broken) == "eval_incomplete"


def test_other_questions_under_the_same_ids_are_refused():
    assert refused(scores([1] * 100), scores([1] * 100, prompt="make {}")) == "eval_incomplete"


GATE = {"alpha": 0.05, "ci_low": 0.1, "ci_high": 0.3}
FOUND = {"n": 60, "missing_rate": 0.02, "effect": 0.2, "n_clusters": 6, "mcnemar": {"p_value": 0.049}}
FOUND |= {"noise_floor": {"sigma": 0.1}, "gate": GATE}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "improved"),
        ({"effect": -0.2, "gate": {**GATE, "ci_low": -0.3, "ci_high": -0.1}}, "regressed"),
        ({"missing_rate": 0.0201}, "invalid"),
        ({"n": 0}, "invalid"),
        ({"n_clusters": 5}, "inconclusive"),
        ({"mcnemar": {"p_value": 0.05}}, "inconclusive"),
        ({"mcnemar": None, "noise_floor": None}, "improved"),
        ({"noise_floor": {"sigma": 0.101}}, "inconclusive"),
        ({"gate": {**GATE, "ci_low": 0.0}}, "inconclusive"),
        ({"gate": {**GATE, "alpha": 0.04}}, "inconclusive"),
        ({"gate": None, "ci_low": 0.1, "ci_high": 0.3}, "improved"),
        ({"gate": None, "ci_low": -0.1, "ci_high": 0.3}, "inconclusive"),
    ],
)
def test_the_rules_of_the_gate_hold_at_their_edges(change, verdict):
    found, reasons = judge({**FOUND, **change})
    assert found == verdict and bool(reasons) == (verdict in ("inconclusive", "invalid"))


def test_the_gate_interval_is_the_cluster_bootstrap_at_the_alpha_of_the_look_with_draws_enough_for_its_tails():
    draw = np.random.default_rng(0)
    values, clusters = list(draw.choice([-1.0, 0.0, 1.0], 60)), [f"f{i % 10}" for i in range(60)]
    for looks, alpha, draws in ((1, 0.05, 150), (2, 0.025, 800), (3, 0.05 / 6, 2400)):
        found = gate_interval(values, clusters, n_resamples=150, seed=4, looks=looks)
        expected = stats.cluster_bootstrap(values, clusters, n_resamples=draws, seed=4, confidence=1 - alpha)
        assert (found["ci_low"], found["ci_high"]) == expected
        assert (found["looks"], found["alpha"], found["confidence"]) == (looks, pytest.approx(alpha), 1 - alpha)
    assert gate_interval(values, clusters, n_resamples=150, seed=4)["looks"] == 1


def test_different_suite_digests_are_refused():
    full = scores([1] * 100)
    assert compare(full, full, suite_digests=("a" * 64, ""))["verdict"] == "inconclusive", "only one is known"
    assert refused(full, full, suite_digests=("a" * 64, "b" * 64)) == "eval_incomplete"


def test_the_effect_is_the_item_mean_of_attempt_means():
    candidate, base = scores([1, 1, 0, 0] * 30, attempts=2), scores([1, 0, 0, 0] * 30, attempts=2)
    found = compare(candidate, base)
    assert found["effect"] == pytest.approx(0.25) and found["n"] == 60
    assert pass_rate(candidate)["value"] == 0.5
    assert pass_at(base) == {"1": pytest.approx(0.25), "2": pytest.approx(0.5)}


def null_rates(p_of, sims, spread):
    """How often two equal models are told apart; `spread` is how far families move, without a mean."""
    draw, wrong = np.random.default_rng(5), 0
    for sim in range(sims):
        p = p_of(draw)
        shift = draw.normal(0, spread, 15).repeat(10)
        a, b = draw.random(150) < np.clip(p + shift, 0, 1), draw.random(150) < np.clip(p - shift, 0, 1)
        found = compare(scores(a), scores(b), n_resamples=500, seed=sim)
        wrong += found["verdict"] != "inconclusive"
    return wrong / sims


@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_equal_models_are_told_apart_at_most_five_times_in_a_hundred(spread):
    sims = 200
    rate = null_rates(lambda draw: draw.uniform(0.2, 0.8, 15).repeat(10), sims, spread)
    assert rate <= 0.05 + 2 * (0.05 * 0.95 / sims) ** 0.5


def test_the_third_candidate_needs_more_than_the_first():
    base = scores([0] * 70)
    # Every family gains a little: seven families speak at .05, but eight are needed for the third candidate.
    better = scores([i % 10 < 4 for i in range(70)])
    first, third = compare(better, base), compare(better, base, looks=3)
    assert first["verdict"] == "improved" and first["alpha"] == 0.05 and first["gate"]["ci_low"] == first["ci_low"]
    assert third["verdict"] == "inconclusive" and third["alpha"] == pytest.approx(0.05 / 6)
    assert third["reasons"] == ["7 clusters would all move one way by chance with p = 0.0156; 8 are needed"]
    assert "candidate 3 on these items" in third["summary"] and "candidate" not in first["summary"]
    assert "candidate 2 on these items" in compare(better, base, looks=2)["summary"]
    assert third["gate"]["ci_low"] <= third["ci_low"] == first["ci_low"], "the 95 % interval stays what it is"


def test_an_interval_and_a_mcnemar_test_that_hold_for_one_candidate_can_fail_for_a_later_one():
    base = scores([0] * 120)
    barely = scores([i % 10 == 0 and i < 70 for i in range(120)])
    assert compare(barely, base)["verdict"] == "improved"
    reasons = " ".join(compare(barely, base, looks=9)["reasons"])
    assert "McNemar" in reasons and "not below 0.000694" in reasons
    assert "99.93 % interval" in reasons


def test_six_equal_candidates_are_called_improved_at_most_five_times_in_a_hundred():
    draw, wrong, naive, sims = np.random.default_rng(8), 0, 0, 30
    for sim in range(sims):
        p = draw.uniform(0.2, 0.8, 15).repeat(8)
        base = scores(draw.random(120) < p, per_cluster=8)
        found = []
        for look in range(1, 7):
            other = scores(draw.random(120) < p, per_cluster=8)
            found.append(compare(other, base, n_resamples=400, seed=sim, looks=look))
        wrong += any(one["verdict"] == "improved" for one in found)
        naive += any(one["ci_low"] > 0 and one["mcnemar"]["p_value"] < 0.05 for one in found)
    assert wrong / sims <= 0.05 + 2 * (0.05 * 0.95 / sims) ** 0.5
    assert naive > wrong, "judged one by one, luck is found"


def test_items_that_half_of_the_attempts_pass_count_as_passed_in_flips():
    half, none, all_ = scores([1, 0] * 60, attempts=2), scores([0, 0] * 60, attempts=2), scores([1, 1] * 60, attempts=2)
    assert len(compare(half, none)["flips"]["gained"]) == 60 == len(compare(none, half)["flips"]["lost"])
    assert compare(all_, half)["flips"] == {"gained": [], "lost": []} == compare(half, all_)["flips"]


def test_the_summary_and_the_smallest_effect_are_those_of_the_counts():
    found = compare(scores([i % 10 != 0 for i in range(100)]), scores([0] * 100))
    assert found["summary"].startswith("n=100 in 10 clusters: 0.0% -> 90.0%, +90.0 points, 95 % interval +")
    low, high = f"{100 * found['ci_low']:+.1f}", f"{100 * found['ci_high']:+.1f}"
    assert found["summary"].endswith(f"95 % interval {low} to {high}: improved")
    assert found["minimum_detectable_effect"] == stats.minimum_detectable_effect(100, 91 / 102)
    assert found["items_needed"] == stats.items_needed(0.9, 91 / 102)
    counts = compare_counts({"n": 30, "correct": 5}, {"n": 40, "correct": 7})
    assert counts["minimum_detectable_effect"] == stats.minimum_detectable_difference(30, 40, 13 / 72)


def test_a_report_says_how_many_items_its_effect_would_need():
    base = scores([i % 2 for i in range(100)])
    found = compare(scores([i % 2 or i == 0 for i in range(100)]), base)
    assert found["verdict"] == "inconclusive" and found["items_needed"] > 100
    assert compare(base, base)["items_needed"] is None
    assert (
        found["intervals"]["cluster_bca"]["ci_low"] <= found["effect"] <= found["intervals"]["cluster_bca"]["ci_high"]
    )


@pytest.mark.parametrize(("base", "tuned", "n"), [(5, 7, 30), (297, 294, 500)])
def test_counts_that_differ_within_noise_are_inconclusive_and_the_text_says_n_and_the_interval(base, tuned, n):
    found = compare_counts({"n": n, "correct": base}, {"n": n, "correct": tuned})
    assert found["verdict"] == "inconclusive" and found["ci_low"] < 0 < found["ci_high"]
    assert f"n={n}" in found["summary"] and "interval" in found["summary"]


def test_counts_are_told_apart_only_if_interval_and_test_agree():
    found = compare_counts({"n": 10, "correct": 0}, {"n": 15, "correct": 6})
    assert found["ci_low"] > 0 and found["fisher"]["p_value"] > 0.05 and found["verdict"] == "inconclusive"
    said = "n=10 and n=15: 0/10 -> 6/15, +40.0 points, 95 % interval +5.7 to +64.3, p = 0.0508: inconclusive."
    assert found["summary"].startswith(said) and (found["n"], found["looks"]) == (10, 1)
    same = compare_counts({"n": 10, "correct": 0}, {"n": 10, "correct": 10})
    assert same["verdict"] == "improved" and same["summary"].startswith("n=10: 0/10 -> 10/10, +100.0 points")


def test_counts_that_differ_beyond_noise_are_told_apart():
    assert compare_counts({"n": 500, "correct": 200}, {"n": 500, "correct": 300})["verdict"] == "improved"
    assert compare_counts({"n": 500, "correct": 300}, {"n": 500, "correct": 200})["verdict"] == "regressed"


def test_counts_of_different_benchmarks_and_impossible_counts_are_refused():
    for a, b in [
        ({"n": 3, "correct": 1, "benchmark": "x"}, {"n": 3, "correct": 1, "benchmark": "y"}),
        ({"n": 3, "correct": 4}, {"n": 3, "correct": 1}),
        ({"n": 0, "correct": 0}, {"n": 3, "correct": 1}),
        ({"n": "3", "correct": 1}, {"n": 3, "correct": 1}),
        ({"n": 3, "correct": None}, {"n": 3, "correct": 1}),
    ]:
        with pytest.raises(BashGymError):
            compare_counts(a, b)


def test_score_files_compare_as_the_scores_do(tmp_path):
    a, b = scores([i % 4 > 0 for i in range(100)]), scores([i % 4 == 0 for i in range(100)])
    write_scores(tmp_path / "a.jsonl", a)
    write_scores(tmp_path / "b.jsonl", b)
    assert compare_files(tmp_path / "a.jsonl", tmp_path / "b.jsonl") == compare(a, b)
    assert read_scores(tmp_path / "a.jsonl") == a


def test_a_torn_score_file_is_no_comparison(tmp_path):
    write_scores(tmp_path / "a.jsonl", scores([1] * 100))
    (tmp_path / "b.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes()[:-20])
    with pytest.raises(BashGymError) as caught:
        compare_files(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert caught.value.code == "eval_incomplete"


def test_score_files_of_two_suites_or_edited_after_their_report_are_refused(tmp_path):
    paths = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "scores-candidate.jsonl"
        write_scores(path, scores([1] * 100))
        report = {
            "suite": {"digest": name * 64},
            "scores": {"candidate": {"path": str(path), "sha256": digest_file(path)}},
        }
        (folder / "report.json").write_text(json.dumps(report))
        paths.append(path)
    with pytest.raises(BashGymError) as caught:
        compare_files(*paths)
    assert caught.value.code == "eval_incomplete"
    with paths[0].open("ab") as handle:
        handle.write(msgspec.json.encode(scores([1])[0]) + b"\n")
    with pytest.raises(BashGymError) as caught:
        compare_files(paths[0], paths[0])
    assert caught.value.code == "digest_mismatch"
