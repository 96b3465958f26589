"""The environment gates refuse what must not ship, and say why."""

import json
import random

import pytest

from bashgym.core.errors import BashGymError
from bashgym.evals import gates, stats
from bashgym.evals.holdout import environment_hash
from bashgym.evals.wire import environments_of


def spec(i, families=8):
    return {
        "id": f"env_{i}",
        "instruction": f"Do task {i}",
        "domain": f"domain{i % families}",
        "metadata": {"task_family": f"family{i % families}"},
        "verifier": {"command": "test -e out"},
    }


def attempt(i, k, passed, **more):
    return {"environment_id": f"env_{i}", "attempt_index": k, "passed": passed, "reward": float(bool(passed)), **more}


def attempts(rate, n=24, k=4, seed=0):
    draw = random.Random(seed)
    return [attempt(i, j, draw.random() < rate) for i in range(n) for j in range(k)]


SPECS = [spec(i) for i in range(24)]


@pytest.fixture()
def settings(tmp_path, monkeypatch):
    from bashgym.core.settings import Settings

    monkeypatch.setenv("BASHGYM_DIR", str(tmp_path))
    monkeypatch.setenv("BASHGYM_MODELS_DIR", str(tmp_path / "data/models"))
    return Settings.from_env()


def holdout(settings, tries, **more):
    body = {"model_id": "m", "environments": SPECS, "attempts": tries, "record_to_registry": False, **more}
    return gates.holdout_gate(settings, body)["result"]


def comparison(settings, base, candidate, **more):
    body = {"environments": SPECS, "base_attempts": base, "candidate_attempts": candidate, "n_resamples": 2000, **more}
    return gates.comparison(settings, body)["result"]


def test_passk_is_the_unbiased_estimator_and_the_filtered_value_stands_apart(settings):
    tries = [attempt(i, j, j < c) for i, c in enumerate((0, 2, 4)) for j in range(4)]
    body = {
        "model_id": "m",
        "environments": SPECS[:3],
        "attempts": tries,
        "k_values": [1, 2, 4],
        "record_to_registry": False,
    }
    report = gates.passk(settings, body)["report"]
    assert report["pass_at_k"] == {
        "1": pytest.approx(0.5),
        "2": pytest.approx((0 + 5 / 6 + 1) / 3),
        "4": pytest.approx(2 / 3),
    }
    assert report["filtered"]["n_environments"] == 1 and report["filtered"]["pass_at_k"]["1"] == 0.5
    assert report["intervals"]["1"]["ci_low"] < 0.5 < report["intervals"]["1"]["ci_high"]


def test_an_attempt_that_was_not_observed_is_no_miss(settings):
    tries = [attempt(i, j, None if j == 3 else True) for i in range(3) for j in range(4)]
    body = {"model_id": "m", "environments": SPECS[:3], "attempts": tries, "k_values": [1], "record_to_registry": False}
    report = gates.passk(settings, body)["report"]
    assert report["pass_at_k"]["1"] == 1.0 and report["missing"]["rate"] == 0.25
    gate = holdout(settings, [attempt(i, j, None if j == 3 else True) for i in range(24) for j in range(4)])["gate"]
    assert gate["ship"] is False and "not observed" in " ".join(gate["reasons"])


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda b: b["attempts"].append(attempt(99, 0, True)), "attempts_invalid", "env_99"),
        (lambda b: b["attempts"].append(attempt(0, 0, True)), "attempts_invalid", "2 times"),
        (lambda b: b.update(k_values=[1, 8]), "attempts_invalid", "pass@8 needs 8"),
        (lambda b: b["attempts"][0].update(reward=float("nan")), "attempts_invalid", "not finite"),
        (lambda b: b["attempts"][0].update(tokens=-1), "attempts_invalid", "negative"),
        (lambda b: b["attempts"][0].update(pased=True), "unknown_field", "pased"),
        (lambda b: b.update(k_value=[1]), "unknown_field", "k_value"),
        (lambda b: b.update(k_values=[0]), "invalid_field", "k_values"),
        (lambda b: b.update(environments=[]), "environment_invalid", "no environment"),
        (lambda b: b["environments"].append(b["environments"][0]), "environment_invalid", "a second env_0"),
        (lambda b: b["environments"][1].update(instruction=""), "environment_invalid", "environments[1]"),
        (lambda b: b.pop("model_id"), "missing_field", "model_id"),
        (lambda b: b.update(model_id="\x00"), "invalid_field", "model_id"),
    ],
)
def test_bad_attempts_are_refused_by_name(settings, change, code, said):
    body = {
        "model_id": "m",
        "environments": json.loads(json.dumps(SPECS[:3])),
        "attempts": attempts(0.5, 3),
        "k_values": [1],
    }
    change(body)
    with pytest.raises(BashGymError) as caught:
        gates.passk(settings, body)
    assert caught.value.code == code and said in caught.value.message
    assert not list(settings.models_dir.parent.glob("evals/registry/*")), "nothing is recorded"


def test_the_nearest_name_is_given(settings):
    with pytest.raises(BashGymError) as caught:
        gates.passk(settings, {"model_id": "m", "environments": [], "attempts": [], "k_vals": [1]})
    assert caught.value.hint == "Did you mean k_values?"


def test_a_good_model_ships_and_a_dead_one_never_does(settings):
    assert holdout(settings, attempts(0.8))["gate"]["ship"] is True
    dead = holdout(settings, attempts(0.0), min_pass_at_1=0.0)
    assert dead["gate"]["ship"] is False and "does not exclude zero" in " ".join(dead["gate"]["reasons"])


def test_whole_groups_are_held_out_the_same_ones_for_the_same_seed(settings):
    one, two, other = (holdout(settings, attempts(0.8), seed=s)["split"] for s in (1, 1, 6))
    assert one == two and one["holdout_groups"] != other["holdout_groups"]
    held, train = set(one["holdout_ids"]), set(one["train_ids"])
    assert held | train == {s["id"] for s in SPECS} and not held & train
    assert {s["metadata"]["task_family"] for s in SPECS if s["id"] in held} == set(one["holdout_groups"])


def test_no_groups_nothing_left_to_train_on_and_bad_bounds_are_refused(settings):
    for more, field in (
        ({"split_by": "repo"}, "split_by"),
        ({"split_by": "colour"}, "split_by"),
        ({"holdout_fraction": 1.0}, "holdout_fraction"),
        ({"min_pass_at_1": 2}, "min_pass_at_1"),
    ):
        with pytest.raises(BashGymError) as caught:
            holdout(settings, attempts(0.8), **more)
        assert (caught.value.code, caught.value.fields) == ("invalid_field", [field])
    one_group = [{**s, "metadata": {"task_family": "same"}} for s in SPECS]
    with pytest.raises(BashGymError, match="nothing is left to train on"):
        holdout(settings, attempts(0.8), environments=one_group)


def test_contamination_is_found_in_the_halves_and_in_the_training_data(settings, tmp_path):
    held = holdout(settings, attempts(0.8))
    assert held["gate"]["warnings"] and not held["contamination"]["train_data_known"]
    one = held["split"]["holdout_ids"][0]
    for more in (
        {"train_environment_ids": [one]},
        {"train_hashes": [held["split"]["hashes"][one]]},
        {"train_dataset_path": str(_dataset(tmp_path, one))},
    ):
        found = holdout(settings, attempts(0.8), **more)
        assert found["contamination"]["n"] == 1 and found["gate"]["ship"] is False, more
        assert holdout(settings, attempts(0.8), require_no_contamination=False, **more)["gate"]["ship"] is True
    twin = [dict(s) for s in SPECS]
    train = held["split"]["train_ids"][0]
    source = next(s for s in SPECS if s["id"] == train)
    place = next(i for i, s in enumerate(twin) if s["id"] == one)
    twin[place] = {**source, "id": one, "metadata": twin[place]["metadata"]}
    assert environment_hash(environments_of([twin[place]])[0]) == held["split"]["hashes"][train]
    assert holdout(settings, attempts(0.8), environments=twin)["contamination"]["contaminated"] == {one: "hash"}
    with pytest.raises(BashGymError) as caught:
        holdout(settings, attempts(0.8), train_dataset_path=str(tmp_path / "none.jsonl"))
    assert caught.value.code == "dataset_missing"


def _dataset(tmp_path, one):
    path = tmp_path / "train.jsonl"
    text = next(s["instruction"] for s in SPECS if s["id"] == one)
    path.write_text(json.dumps({"messages": [{"role": "user", "content": f"  {text.upper()} "}]}) + "\n")
    return path


@pytest.mark.parametrize(("name", "status"), [("timeout_rate", "timeout"), ("tamper_rate", "tampered")])
def test_time_outs_and_tampering_stop_a_release(settings, name, status):
    tries = [
        {**a, "verifier_status": status, "passed": False} if a["attempt_index"] == 0 else {**a, "passed": True}
        for a in attempts(1.0)
    ]
    gate = holdout(settings, tries, max_timeout_rate=0.2)["gate"]
    assert gate["observed"][name] == 0.25 and gate["ship"] is False


def test_one_held_out_environment_is_too_few(settings):
    few = [spec(i, 4) for i in range(4)]
    body = {"environments": few, "attempts": attempts(1.0, 4)}
    gate = holdout(settings, body["attempts"], environments=few)["gate"]
    assert gate["ship"] is False and "2 are needed" in gate["reasons"][0]


def test_a_better_candidate_ships_and_equal_noise_dead_and_worse_ones_do_not(settings):
    base = attempts(0.3, seed=1)
    assert comparison(settings, base, attempts(0.9, seed=2))["gate"]["ship"] is True
    for name, candidate in (
        ("equal", base),
        ("noise", attempts(0.36, seed=3)),
        ("zero", attempts(0.0)),
        ("worse", attempts(0.1, seed=4)),
    ):
        assert comparison(settings, base, candidate)["gate"]["ship"] is False, name
    assert comparison(settings, base, base, require_ci_excludes_zero=False)["gate"]["ship"] is False


def test_a_dead_base_does_not_ship_the_candidate(settings):
    dead = [{**a, "passed": None} for a in attempts(0.5)]
    result = comparison(settings, dead, attempts(0.9))
    assert result["comparison"]["verdict"] == "invalid" and result["gate"]["ship"] is False
    half = [{**a, "passed": None if a["attempt_index"] % 2 else a["passed"]} for a in attempts(0.1)]
    assert comparison(settings, half, attempts(0.9))["gate"]["ship"] is False


def test_other_attempts_and_one_cluster_are_refused(settings):
    with pytest.raises(BashGymError) as caught:
        comparison(settings, attempts(0.5, k=5), attempts(0.5))
    assert caught.value.code == "attempts_invalid"
    with pytest.raises(BashGymError) as caught:
        comparison(settings, attempts(0.3), attempts(0.9), cluster_by="repo")
    assert caught.value.code == "too_few_clusters"


@pytest.mark.parametrize(
    "more",
    [{"min_delta": 0.9}, {"min_candidate_pass_at_1": 0.99}, {"max_candidate_tamper_rate": 0.0, "tamper": True}],
)
def test_each_limit_of_a_comparison_can_stop_it(settings, more):
    candidate = attempts(0.95, seed=2)
    if more.pop("tamper", False):
        candidate = [{**candidate[0], "verifier_status": "tampered", "passed": False}, *candidate[1:]]
    assert comparison(settings, attempts(0.2, seed=1), candidate, **more)["gate"]["ship"] is False


def test_pass_at_4_is_compared_as_such(settings):
    found = comparison(settings, attempts(0.1, seed=1), attempts(0.6, seed=2), compare_k=4)
    assert found["compare_k"] == 4 and found["comparison"]["effect"] > 0.4


def test_the_comparison_gate_errs_at_most_one_time_in_twenty_when_nothing_changed(settings):
    """Both sides draw from the same per-family rates, which differ between families as they do in life."""
    draw, shipped, trials = random.Random(7), 0, 200
    for _ in range(trials):
        rates = [draw.betavariate(2, 2) for _ in range(8)]
        base, candidate = ([attempt(i, 0, draw.random() < rates[i % 8]) for i in range(24)] for _ in range(2))
        shipped += comparison(settings, base, candidate, n_resamples=200)["gate"]["ship"]
    assert shipped <= trials * 0.05


def control(settings, tries, **more):
    body = {"environments": SPECS, "attempts": tries, **more}
    return gates.control(settings, body)["result"]


def test_the_spurious_control_needs_more_than_chance(settings):
    good = control(settings, attempts(0.6))
    assert good["gate"]["ship"] is True and good["control"]["p_value"] < 1e-6
    for rate in (0.0, 0.05):
        assert control(settings, attempts(rate, seed=3))["gate"]["ship"] is False
    assert control(settings, attempts(0.0), control_attempts=attempts(0.0))["gate"]["ship"] is False
    assert control(settings, attempts(0.9), control_attempts=attempts(0.1))["gate"]["ship"] is True
    assert control(settings, attempts(0.9), control_attempts=attempts(0.9, seed=5))["gate"]["ship"] is False


def test_the_spurious_control_says_when_it_cannot_tell(settings):
    one = {"environments": SPECS[:1], "attempts": [attempt(0, 0, True)]}
    gate = gates.control(settings, one)["result"]["gate"]
    assert gate["ship"] is False and "cannot tell" in gate["reasons"][0]
    two = {"environments": SPECS[:2], "attempts": [attempt(i, 0, True) for i in range(2)]}
    assert gates.control(settings, two)["result"]["gate"]["ship"] is True, (
        "a perfect model is not blocked by few trials"
    )


def test_the_control_p_value_is_the_binomial_tail(settings):
    from scipy.stats import binomtest, fisher_exact

    tries = [attempt(i, 0, i < 4) for i in range(24)]
    found = control(settings, tries, random_pass_probability=0.05)["control"]
    assert found["p_value"] == pytest.approx(binomtest(4, 24, 0.05, "greater").pvalue)
    other = [attempt(i, 0, i < 2) for i in range(24)]
    given = control(settings, tries, control_attempts=other)["control"]
    assert given["p_value"] == pytest.approx(fisher_exact([[4, 20], [2, 22]], "greater").pvalue)


def test_what_is_recorded_is_found_again_by_model(settings):
    for rate in (0.5, 0.8):
        body = {"model_id": "team/model", "environments": SPECS, "attempts": attempts(rate)}
        assert gates.holdout_gate(settings, body)["recorded"] is True
    found = gates.verdict(settings, "team/model")
    assert found["n_environment_holdout_evals"] == 2 and found["n_heldout_evals"] == 0
    latest = found["latest_environment_holdout_eval"]["document"]
    assert latest["gate"]["observed"]["pass_at_1"] == pytest.approx(latest["report"]["pass_at_k"]["1"])
    with pytest.raises(BashGymError) as caught:
        gates.verdict(settings, "other")
    assert caught.value.code == "eval_not_found"


def test_wilson_of_a_dead_model_touches_zero():
    assert stats.wilson(0, 50).low == 0
