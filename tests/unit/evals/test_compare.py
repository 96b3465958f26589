"""The gate: it finds what is there, and refuses what cannot be said."""

import json

import msgspec
import numpy as np
import pytest

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.evals.compare import compare, compare_counts, pass_at, pass_rate
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


def test_different_suite_digests_are_refused():
    full = scores([1] * 100)
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


@pytest.mark.parametrize(("base", "tuned", "n"), [(5, 7, 30), (297, 294, 500)])
def test_counts_that_differ_within_noise_are_inconclusive_and_the_text_says_n_and_the_interval(base, tuned, n):
    found = compare_counts({"n": n, "correct": base}, {"n": n, "correct": tuned})
    assert found["verdict"] == "inconclusive" and found["ci_low"] < 0 < found["ci_high"]
    assert f"n={n}" in found["summary"] and "interval" in found["summary"]


def test_counts_that_differ_beyond_noise_are_told_apart():
    assert compare_counts({"n": 500, "correct": 200}, {"n": 500, "correct": 300})["verdict"] == "improved"
    assert compare_counts({"n": 500, "correct": 300}, {"n": 500, "correct": 200})["verdict"] == "regressed"


def test_counts_of_different_benchmarks_and_impossible_counts_are_refused():
    for a, b in [
        ({"n": 3, "correct": 1, "benchmark": "x"}, {"n": 3, "correct": 1, "benchmark": "y"}),
        ({"n": 3, "correct": 4}, {"n": 3, "correct": 1}),
        ({"n": 0, "correct": 0}, {"n": 3, "correct": 1}),
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
