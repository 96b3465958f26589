"""The environment gates refuse what must not ship, and say why."""

import json
import random

import pytest

from bashgym.core.errors import BashGymError
from bashgym.evals import gates, stats
from bashgym.evals.environment_comparison import ComparisonRequest, ControlRequest
from bashgym.evals.holdout import HoldoutRequest, environment_hash
from bashgym.evals.wire import decode, environments_of


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
    assert report["filtered"]["n_attempts"] == 4 and "biased" in report["filtered"]["warning"]
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
        (
            lambda b: b["attempts"][0].update(passed=True, verifier_status="tampered"),
            "attempts_invalid",
            "yet tampered",
        ),
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
        ({"holdout_fraction": 0.0}, "holdout_fraction"),
        ({"max_timeout_rate": -0.1}, "max_timeout_rate"),
        ({"max_tamper_rate": 1.1}, "max_tamper_rate"),
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
        assert found["contamination"]["train_data_known"] is True
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


def test_the_thresholds_that_nobody_gives_are_these():
    bare = {"environments": [], "attempts": []}
    asked = HoldoutRequest(model_id="m", **bare)
    assert (asked.holdout_fraction, asked.seed, asked.k_values, asked.require_no_contamination) == (0.2, 0, (1,), True)
    assert (asked.min_pass_at_1, asked.max_timeout_rate, asked.max_tamper_rate) == (0.05, 0.25, 0.0)
    asked = ComparisonRequest(environments=[], base_attempts=[], candidate_attempts=[])
    assert (asked.compare_k, asked.min_delta, asked.min_candidate_pass_at_1, asked.k_values) == (1, 0.0, 0.0, (1,))
    assert (asked.max_candidate_timeout_rate, asked.max_candidate_tamper_rate) == (0.25, 0.0)
    assert (asked.require_ci_excludes_zero, asked.looks, asked.seed, asked.n_resamples) == (True, 1, 0, 10_000)
    asked = ControlRequest(**bare)
    assert (asked.n_trials, asked.random_pass_probability, asked.seed) == (200, 0.05, 0)
    assert (asked.min_observed_pass_at_1, asked.max_control_pass_at_1, asked.min_lift_over_control) == (0.0, 0.25, 0.0)


def test_some_group_is_always_left_to_train_on(settings):
    two = [spec(i, 2) for i in range(24)]
    split = holdout(settings, attempts(0.9), environments=two)["split"]
    assert (len(split["train_groups"]), len(split["holdout_groups"]), split["n_holdout"]) == (1, 1, 12)
    split = holdout(settings, attempts(0.9), holdout_fraction=0.99)["split"]
    assert (len(split["train_groups"]), len(split["holdout_groups"])) == (1, 7)
    assert len(holdout(settings, attempts(0.9), holdout_fraction=0.5)["split"]["holdout_groups"]) == 4


@pytest.mark.parametrize("known", [{"train_environment_ids": ["x"]}, {"train_hashes": ["0" * 16]}])
def test_either_list_of_what_was_trained_on_is_enough_to_know_it(settings, known):
    found = holdout(settings, attempts(0.9), **known)
    assert found["contamination"]["train_data_known"] is True and found["gate"]["warnings"] == []


def edge(settings, passes=12, timeouts=0, tampered=0, unseen=0, k=50, **more):
    """The gate on four held-out environments of two groups, 50 attempts each, so that shares can be met exactly."""
    specs = [spec(i, 8) for i in range(16)]
    held = holdout(settings, attempts(0.5, 16, 1), environments=specs)["split"]["holdout_ids"]
    tries = []
    for s in specs:
        for j in range(k):
            status = "timeout" if j >= k - timeouts else "tampered" if timeouts == 0 and j >= k - tampered else ""
            passed = None if s["id"] in held and j < unseen else (j - unseen) < passes
            one = {"environment_id": s["id"], "attempt_index": j, "passed": passed, "verifier_status": status}
            tries.append(one)
    return holdout(settings, tries, environments=specs, **more)["gate"]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"passes": 10, "min_pass_at_1": 0.2}, None),
        ({"passes": 10, "min_pass_at_1": 0.201}, "pass@1 is 0.2, below 0.201"),
        ({"passes": 50, "min_pass_at_1": 1}, None),
        ({"passes": 1, "min_pass_at_1": 0}, None),
        ({"timeouts": 10, "max_timeout_rate": 0.2}, None),
        ({"timeouts": 11, "max_timeout_rate": 0.2}, "22.0% of the attempts timed out"),
        ({"tampered": 5, "max_tamper_rate": 0.1}, None),
        ({"tampered": 1}, "2.0% of the attempts tampered"),
        ({"unseen": 1}, None),
        ({"unseen": 2}, "4.0% of the attempts were not observed"),
    ],
)
def test_each_limit_of_the_gate_holds_at_its_edge(settings, case, said):
    gate = edge(settings, **case)
    assert gate["reasons"] == ([said] if said else []) and gate["ship"] is (said is None)
    assert gate["observed"]["n_environments"] == 4


def test_two_held_out_environments_of_two_groups_are_just_enough(settings):
    specs = [spec(i, 8) for i in range(8)]
    gate = holdout(settings, attempts(1.0, 8), environments=specs)["gate"]
    assert gate["ship"] is True and gate["observed"]["n_environments"] == gate["observed"]["n_groups"] == 2


def test_nothing_observed_ships_nothing(settings):
    gate = holdout(settings, [{**a, "passed": None} for a in attempts(0.9)], min_pass_at_1=0)["gate"]
    assert gate["ship"] is False and gate["observed"]["pass_at_1"] is None
    assert gate["observed"]["pass_at_1_ci_low"] == 0 and "0 held-out environments" in gate["reasons"][0]


def test_pass_at_1_is_reported_whatever_k_is_asked(settings):
    assert set(_reported(settings, [4])) == {"1", "4"}
    assert set(_reported(settings, [1, 2])) == {"1", "2"}


def _reported(settings, k_values):
    body = {"model_id": "m", "environments": SPECS, "attempts": attempts(0.8), "k_values": k_values}
    return gates.holdout_gate(settings, {**body, "record_to_registry": False})["result"]["report"]["pass_at_k"]


def test_environments_are_split_by_a_field_of_their_own_or_of_their_metadata(settings):
    own = [{**s, "domain": "" if i < 3 else s["domain"]} for i, s in enumerate(SPECS)]
    split = holdout(settings, attempts(0.8), environments=own, split_by="domain")["split"]
    assert "_unknown" in split["train_groups"] + split["holdout_groups"]
    seeds = [{**s, "metadata": {"generator_seed": i % 4}} for i, s in enumerate(SPECS)]
    split = holdout(settings, attempts(0.8), environments=seeds, split_by="generator_seed")["split"]
    assert sorted(split["train_groups"] + split["holdout_groups"]) == ["0", "1", "2", "3"], "zero is a seed"
    assert {len(digest) for digest in split["hashes"].values()} == {16}


def test_one_held_out_group_says_nothing_about_others(settings):
    gate = holdout(settings, attempts(0.9), holdout_fraction=0.1)["gate"]
    assert gate["observed"]["n_groups"] == 1 and gate["observed"]["n_environments"] == 3
    assert gate["reasons"] == ["1 group of environments is held out; 2 are needed: raise holdout_fraction"]


def test_a_group_without_a_name_is_a_group_and_all_of_them_unnamed_are_none(settings):
    some = [{**s, "metadata": {}} if i < 3 else s for i, s in enumerate(SPECS)]
    split = holdout(settings, attempts(0.9), environments=some)["split"]
    assert "_unknown" in split["train_groups"] + split["holdout_groups"]
    with pytest.raises(BashGymError, match="no environment has a task_family"):
        holdout(settings, attempts(0.9), environments=[{**s, "metadata": {}} for s in SPECS])


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


@pytest.mark.parametrize(
    "more",
    [
        {"compare_k": 0},
        {"min_delta": 1.5},
        {"n_resamples": 10},
        {"min_candidate_pass_at_1": 2},
        {"max_candidate_timeout_rate": -0.1},
        {"max_candidate_tamper_rate": 1.1},
        {"looks": 0},
    ],
)
def test_each_bound_of_a_comparison_is_checked(settings, more):
    with pytest.raises(BashGymError) as caught:
        comparison(settings, attempts(0.3), attempts(0.9), **more)
    assert (caught.value.code, caught.value.fields) == ("invalid_field", list(more))


def even(passes, n=24, k=4, status="", statuses=0, unseen=0):
    """`passes` of k attempts at each environment, others for each, so that every index has the same rate."""
    tries = []
    for i in range(n):
        for j in range(k):
            passed = (j + i) % k < passes
            odd = not passed and (j + i) % k >= k - statuses
            tries.append(attempt(i, j, passed, verifier_status=status if odd else ""))
    return [{**a, "passed": None} if x < unseen else a for x, a in enumerate(tries)]


@pytest.mark.parametrize(
    ("candidate", "more", "said"),
    [
        ({}, {}, None),
        ({}, {"min_delta": 0.5, "min_candidate_pass_at_1": 0.75}, None),
        ({}, {"min_delta": 0.51}, "the gain is below 0.51"),
        ({}, {"min_candidate_pass_at_1": 0.76}, "pass@1 is 0.75, below 0.76"),
        ({"status": "timeout", "statuses": 1}, {}, None),
        ({"status": "timeout", "statuses": 1}, {"max_candidate_timeout_rate": 0.24}, "25.0% timed out"),
        ({"status": "tampered", "statuses": 1}, {"max_candidate_tamper_rate": 0.25}, None),
        ({"status": "tampered", "statuses": 1}, {}, "25.0% tampered"),
    ],
)
def test_each_limit_of_a_comparison_holds_at_its_edge(settings, candidate, more, said):
    gate = comparison(settings, even(1), even(3, **candidate), **more)["gate"]
    assert gate["reasons"] == ([said] if said else []) and gate["ship"] is (said is None)


@pytest.mark.parametrize(("unseen", "ships"), [(12, True), (13, False)])
def test_two_of_a_hundred_pairs_may_be_unobserved_whichever_side_lacks_them(settings, unseen, ships):
    for base, candidate in ((unseen, 0), (0, unseen), (unseen, unseen)):
        found = comparison(settings, even(6, k=25, unseen=base), even(19, k=25, unseen=candidate))
        assert found["gate"]["ship"] is ships
        assert found["gate"]["observed"]["missing_rate"] == pytest.approx(unseen / 600)


def test_the_evidence_of_a_comparison_is_all_there(settings):
    one = [{**a, "passed": i % 3 > 0} for i, a in enumerate(attempts(0.5, 24, 1))]
    base = [{**a, "passed": i % 2 > 0} for i, a in enumerate(one)]
    found = comparison(settings, base, one)["comparison"]
    gained, lost = sum(i % 3 > 0 and i % 2 == 0 for i in range(24)), sum(i % 3 == 0 and i % 2 > 0 for i in range(24))
    assert found["mcnemar"] == {"b": lost, "c": gained, "p_value": stats.mcnemar_exact(lost, gained)}
    expected = stats.minimum_detectable_effect(24, (gained + lost + 1) / 26)
    assert found["minimum_detectable_effect"] == pytest.approx(expected)
    assert found["noise_floor"] is None and (found["n"], found["n_clusters"]) == (24, 8)
    several = comparison(settings, attempts(0.5, seed=1), attempts(0.5, seed=2))["comparison"]
    rates = [sum(a["passed"] for a in attempts(0.5, seed=1) if a["attempt_index"] == j) / 24 for j in range(4)]
    assert several["mcnemar"] is None and several["noise_floor"]["sigma"] == pytest.approx(stats.noise_floor(rates))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, None),
        ({"min_lift_over_control": 0.5, "max_control_pass_at_1": 0.25, "min_observed_pass_at_1": 0.75}, None),
        ({"min_lift_over_control": 0.51}, "no lift over the control"),
        ({"max_control_pass_at_1": 0.24}, "the control passes 25.0%"),
        ({"min_observed_pass_at_1": 0.76}, "pass@1 is 0.75, below 0.76"),
    ],
)
def test_each_limit_of_the_control_holds_at_its_edge(settings, more, said):
    gate = control(settings, even(3), control_attempts=even(1), **more)["gate"]
    assert gate["reasons"] == ([said] if said else []) and gate["ship"] is (said is None)
    assert gate["observed"]["lift"] == 0.5


@pytest.mark.parametrize(("unseen", "ships"), [(12, True), (13, False)])
def test_two_of_a_hundred_attempts_may_be_unobserved_in_a_control(settings, unseen, ships):
    assert control(settings, even(19, k=25, unseen=unseen))["gate"]["ship"] is ships
    other = even(1, k=25, unseen=unseen)
    assert control(settings, even(19, k=25), control_attempts=other)["gate"]["ship"] is ships


def test_a_name_that_no_gate_has_is_refused(settings):
    for judge in (
        lambda: holdout(settings, attempts(0.5), min_pass_at1=0.1),
        lambda: comparison(settings, attempts(0.5), attempts(0.5), min_dleta=0.1),
        lambda: control(settings, attempts(0.5), trials=3),
    ):
        with pytest.raises(BashGymError) as caught:
            judge()
        assert caught.value.code == "unknown_field"


@pytest.mark.parametrize(
    "more",
    [
        {"min_delta": -1},
        {"min_delta": 1},
        {"n_resamples": 100},
        {"min_candidate_pass_at_1": 0},
        {"min_candidate_pass_at_1": 1},
        {"max_candidate_timeout_rate": 0},
        {"max_candidate_timeout_rate": 1},
        {"max_candidate_tamper_rate": 1},
    ],
)
def test_the_ends_of_the_bounds_of_a_comparison_are_inside(settings, more):
    thresholds = comparison(settings, even(1), even(3), **{"n_resamples": 200, **more})["gate"]["thresholds"]
    assert more.items() <= {**thresholds, "n_resamples": 100}.items()


@pytest.mark.parametrize(
    "more",
    [
        {"n_trials": 1},
        {"min_observed_pass_at_1": 0},
        {"min_observed_pass_at_1": 1},
        {"max_control_pass_at_1": 0},
        {"max_control_pass_at_1": 1},
        {"min_lift_over_control": -1},
        {"min_lift_over_control": 1},
    ],
)
def test_the_ends_of_the_bounds_of_a_control_are_inside(settings, more):
    thresholds = control(settings, even(3), **more)["gate"]["thresholds"]
    assert more.items() <= {**thresholds, "n_trials": 1}.items() and thresholds["alpha"] == 0.05


def test_a_control_reports_every_k_and_where_chance_would_lie(settings):
    found = control(settings, even(2), k_values=[4], random_pass_probability=0.5, n_trials=4000)
    assert found["observed"]["pass_at_k"] == {"1": 0.5, "4": 1.0}
    assert (found["observed"]["n_attempts"], found["observed"]["n_passed"]) == (96, 48)
    assert found["control"]["p95"] == pytest.approx(0.5 + 1.645 * 0.5 / 96**0.5, abs=0.01)
    with pytest.raises(BashGymError, match="pass@8 needs 8"):
        control(settings, even(2), k_values=[8])


def test_a_candidate_that_nobody_observed_has_no_rate(settings):
    gate = comparison(settings, even(1), [{**a, "passed": None} for a in even(3)])["gate"]
    assert gate["ship"] is False and gate["observed"]["candidate_pass_at_1"] == 0


def test_a_control_that_nobody_observed_decides_nothing(settings):
    gate = control(settings, even(3), control_attempts=[{**a, "passed": None} for a in even(1)])["gate"]
    assert gate["ship"] is False and gate["observed"]["control_pass_at_1"] is None and gate["observed"]["lift"] is None


@pytest.mark.parametrize(("p", "needed"), [(0.05, 2), (0.04, 1), (0.2, 2), (0.25, 3), (0.5, 5)])
def test_the_attempts_needed_are_the_fewest_that_could_beat_chance(settings, p, needed):
    found = control(settings, even(3), random_pass_probability=p)["control"]
    assert found["needed"] == needed and p**needed < 0.05 <= p ** (needed - 1)


def test_a_later_candidate_needs_more_than_the_first(settings):
    base, candidate = attempts(0.3, seed=1), attempts(0.9, seed=2)
    assert comparison(settings, base, candidate, looks=1)["comparison"]["gate"]["alpha"] == 0.05
    late = comparison(settings, base, candidate, looks=20)
    assert late["gate"]["ship"] is False, "eight families cannot speak at that alpha"
    found = late["comparison"]
    assert found["gate"]["alpha"] == pytest.approx(0.05 / 380)
    assert found["gate"]["ci_low"] < found["ci_low"], "the 95 % interval stays what it is"


def test_pass_at_4_is_compared_as_such(settings):
    found = comparison(settings, attempts(0.1, seed=1), attempts(0.6, seed=2), compare_k=4)
    assert found["compare_k"] == 4 and found["comparison"]["effect"] > 0.4


def test_the_comparison_gate_errs_at_most_one_time_in_twenty_when_nothing_changed(settings):
    """Both sides draw from the same per-family rates, which differ between families as they do in life."""
    draw, shipped, trials = random.Random(7), 0, 120
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
    from scipy.stats import binomtest

    tries = [attempt(i, 0, i < 4) for i in range(24)]
    found = control(settings, tries, random_pass_probability=0.05)["control"]
    assert found["p_value"] == pytest.approx(binomtest(4, 24, 0.05, "greater").pvalue)
    other = [attempt(i, 0, i in (0, 9)) for i in range(24)]
    given = control(settings, tries, control_attempts=other)["control"]
    # Three environments gained and one lost: the chance of at most one loss among four.
    assert given["p_value"] == pytest.approx(5 / 16, abs=0.01)


def test_attempts_at_one_environment_are_no_sample_of_environments(settings):
    """Twenty attempts at each of four environments all say the same four things; five are needed."""
    few = {"environments": SPECS[:4]}
    tries = [attempt(i, j, True) for i in range(4) for j in range(20)]
    other = [attempt(i, j, False) for i in range(4) for j in range(20)]
    gate = control(settings, tries, control_attempts=other, **few)["gate"]
    assert gate["ship"] is False and "4 environments cannot tell; 5 are needed" in gate["reasons"]
    assert gate["observed"]["p_value"] == 1 / 16
    five = {"environments": SPECS[:5]}
    tries, other = ([attempt(i, 0, passed) for i in range(5)] for passed in (True, False))
    assert control(settings, tries, control_attempts=other, **five)["gate"]["ship"] is True


def test_a_given_control_that_was_hardly_observed_decides_nothing(settings):
    unseen = [{**a, "passed": None if a["attempt_index"] else a["passed"]} for a in attempts(0.05)]
    gate = control(settings, attempts(0.9), control_attempts=unseen)["gate"]
    assert gate["ship"] is False and "not observed" in " ".join(gate["reasons"])


def test_each_bound_of_the_control_is_checked(settings):
    for more in (
        {"n_trials": 0},
        {"random_pass_probability": 0.0},
        {"random_pass_probability": 1.0},
        {"min_observed_pass_at_1": -0.1},
        {"max_control_pass_at_1": 1.1},
        {"min_lift_over_control": 2.0},
    ):
        with pytest.raises(BashGymError) as caught:
            control(settings, attempts(0.5), **more)
        assert (caught.value.code, caught.value.fields) == ("invalid_field", list(more))


def test_each_limit_of_the_control_can_stop_it(settings):
    for more, said in (
        ({"min_observed_pass_at_1": 0.95}, "below 0.95"),
        ({"min_lift_over_control": 0.9}, "no lift"),
        ({"random_pass_probability": 0.3}, "the control passes 30.0%"),
    ):
        gate = control(settings, attempts(0.8), **more)["gate"]
        assert gate["ship"] is False and said in " ".join(gate["reasons"]), more
        assert len(gate["reasons"]) == 1


def test_what_is_recorded_is_found_again_by_model(settings):
    for rate in (0.5, 0.8):
        body = {"model_id": "team/model", "environments": SPECS, "attempts": attempts(rate)}
        assert gates.holdout_gate(settings, body)["recorded"] is True
    body = {"model_id": "team/model", "environments": SPECS, "attempts": attempts(0.1), "k_values": [1]}
    assert gates.passk(settings, body)["recorded"] is True
    found = gates.verdict(settings, "team/model")
    assert found["n_environment_holdout_evals"] == 2 and found["n_heldout_evals"] == 0, "pass@k is no hold-out"
    assert set(found["latest_by_kind"]) == {"environment_holdout", "environment_passk"}
    latest = found["latest_environment_holdout_eval"]["document"]
    assert latest["gate"]["observed"]["pass_at_1"] == pytest.approx(latest["report"]["pass_at_k"]["1"])
    with pytest.raises(BashGymError) as caught:
        gates.verdict(settings, "other")
    assert caught.value.code == "eval_not_found"


def test_wilson_of_a_dead_model_touches_zero():
    assert stats.wilson(0, 50).low == 0


def test_mcnemar_is_for_single_attempts_and_what_was_not_seen_is_no_success(settings):
    base, better = [attempt(i, 0, i % 4 == 0) for i in range(24)], [attempt(i, 0, i % 4 != 1) for i in range(24)]
    assert comparison(settings, base, better)["comparison"]["mcnemar"]["c"] == 12
    twice = [attempt(i, j, i % 4 == 0) for i in range(24) for j in range(2)]
    more = [attempt(i, j, i % 4 != 1) for i in range(24) for j in range(2)]
    assert comparison(settings, twice, more)["comparison"]["mcnemar"] is None
    unseen = holdout(settings, [attempt(i, j, None) for i in range(24) for j in range(4)])["gate"]
    assert unseen["ship"] is False and any("pass@1 is 0" in reason for reason in unseen["reasons"])


def test_an_attempt_earns_nothing_unless_it_says_so():
    from bashgym.evals.wire import Attempt

    made = decode({"environment_id": "e", "attempt_index": 0}, Attempt)
    assert (made.passed, made.reward, made.timeout, made.tool_calls, made.tokens) == (None, 0.0, False, 0, 0)


def test_passk_at_its_edges():
    from bashgym.evals.passk import DEFAULT_K, ZERO_STD, passk_report
    from bashgym.evals.wire import Attempt

    assert DEFAULT_K == (1, 4, 8)
    two = environments_of(SPECS[:2])
    tries = [
        Attempt(environment_id=f"env_{i}", attempt_index=j, passed=bool(i), reward=r)
        for i in range(2)
        for j, r in enumerate((0.0, (i + 1) * ZERO_STD))
    ]
    found = passk_report(two, tries, (1,))
    assert [row["zero_std"] for row in found["per_environment"]] == [True, False]
    assert found["intervals"]["1"]["n_clusters"] == 2
    assert passk_report(two[:1], tries[:2], (1,))["intervals"]["1"] is None


def test_a_misspelt_field_deep_inside_is_told_the_nearest_name(settings):
    body = {"model_id": "m", "environments": SPECS, "attempts": [{**attempt(0, 0, True), "reward_component": {}}]}
    with pytest.raises(BashGymError) as caught:
        gates.holdout_gate(settings, body)
    assert caught.value.code == "unknown_field" and "reward_components" in caught.value.hint


@pytest.mark.parametrize(("n", "good"), [(99, False), (100, True), (1_000_000, True), (1_000_001, False)])
def test_the_number_of_resamples_has_its_bounds(n, good):
    from bashgym.evals.environment_comparison import _check_comparison

    body = {"environments": SPECS, "base_attempts": [], "candidate_attempts": [], "n_resamples": n}
    request = decode(body, ComparisonRequest)
    assert request.record_to_registry is False
    if good:
        _check_comparison(request)
    else:
        with pytest.raises(BashGymError) as caught:
            _check_comparison(request)
        assert caught.value.fields == ["n_resamples"]
