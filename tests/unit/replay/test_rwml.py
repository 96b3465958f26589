"""RWML without torch: distances, verdicts, metrics, prompts, and what a request may combine."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.core.errors import BashGymError
from bashgym.data.findings import Collector
from bashgym.data.readers import Scan
from bashgym.data.replay_records import Transition
from bashgym.data.transitions import prompt_text, scan_transitions, transition_rows
from bashgym.envs.rewards.rwml import cosine_distance, distance_metrics, hashed_ngrams, reward_factory
from bashgym.methods.request import parse_request
from bashgym.training import groups

from .replay_data import attempt, write

BODY = {"strategy": "grpo", "base_model": "m", "dataset_path": "d"}
VECTOR = st.dictionaries(st.integers(0, 5), st.floats(-9, 9).filter(lambda x: abs(x) > 1e-3), max_size=5)


@given(VECTOR, VECTOR, st.floats(0.1, 50))
def test_cosine_distance_is_symmetric_bounded_and_blind_to_length(a, b, scale):
    distance = cosine_distance(a, b)
    assert 0 <= distance <= 2 and distance == pytest.approx(cosine_distance(b, a))
    assert cosine_distance(a, {k: v * scale for k, v in a.items()}) == pytest.approx(0, abs=1e-9)


@given(st.text(max_size=60))
def test_hashed_ngrams_are_deterministic_and_blind_to_blank_runs(text):
    first, again = hashed_ngrams([text, f"  {text}\n\n"])
    assert cosine_distance(first, again) == pytest.approx(0, abs=1e-9)
    assert hashed_ngrams([text]) == [first]


def test_a_prediction_is_right_strictly_below_the_threshold():
    vectors = {"a": {0: 1.0}, "b": {0: 0.8, 1: 0.6}}
    judge = reward_factory(lambda texts: [vectors[t] for t in texts], 0.2)
    (edge,), (same,) = judge(["b"], ["a"]), judge(["a"], ["a"])
    assert edge.parts["embedding_distance"] == pytest.approx(0.2)
    assert same.reward == 1.0
    assert reward_factory(lambda texts: [vectors[t] for t in texts], 0.2000001)(["b"], ["a"])[0].reward == 1.0


def test_an_embedding_that_is_not_finite_is_no_verdict():
    judge = reward_factory(lambda texts: [{0: math.nan} for _ in texts], 0.2)
    assert judge(["x"], ["y"])[0].reward is None


def test_metrics_are_rate_mean_and_nearest_rank_percentile():
    judge = reward_factory(lambda texts: [{0: 1.0} if t == "r" else {1: 1.0} for t in texts], 0.5)
    results = judge(["r"] * 19 + ["w"], ["r"] * 20)
    seen = distance_metrics(results)
    assert seen == {"rwml_pass_rate": 0.95, "embedding_distance_mean": 0.05, "embedding_distance_p95": 0.0}
    assert distance_metrics([]) == {}


@pytest.mark.parametrize(("rewards", "easy"), [([1, 1, 1, 1, 0], True), ([1, 1, 1, 0], False), ([math.nan], False)])
def test_a_transition_is_easy_from_the_pass_rate_on(rewards, easy):
    assert groups.is_easy([float(r) for r in rewards], 0.8) is easy


def transition(**changes):
    prior = [{"action": f"step{i}", "state": f"shown{i}"} for i in range(6)]
    return Transition(**{"instruction": "look", "prior": prior, "action": "cat x", "next_state": "SECRET", **changes})


@pytest.mark.parametrize(("window", "steps"), [(0, []), (4, [2, 3, 4, 5]), (64, range(6))])
def test_the_prompt_shows_the_last_steps_and_never_the_observation(window, steps):
    text = prompt_text(transition(), window)
    assert [i for i in range(6) if f"$ step{i}\nshown{i}" in text] == list(steps)
    assert text.endswith("$ cat x\n") and "SECRET" not in text


def test_rows_are_the_transitions_of_valid_records_and_faults_are_named(tmp_path):
    payload = {"rwml_transitions": [{"instruction": "i", "action": "ls", "next_state": "out"}] * 2}
    path = write(tmp_path, [{**attempt(0), "world_model": payload}, attempt(1), {"batch_id": 3}])
    rows = list(transition_rows(path, 4, wrap=True))
    assert [row.number for row in rows] == [1, 1] and rows[0].prompt[0]["role"] == "user"
    assert rows[0].value == {"answer": "out"}
    found = []
    collector = Collector(found)
    list(scan_transitions(Scan(path, collector), collector, 4))
    collector.flush()
    assert {(f.code, str(f.severity), f.rows) for f in found} == {
        ("no_transition", "warning", (2,)),
        ("replay_invalid", "error", (3,)),
    }


def test_rwml_decides_reward_mode_and_pull():
    request = parse_request({**BODY, "rwml_enabled": True, "rwml_kl_beta": 0.3})
    assert request["grpo_reward_mode"] == "rwml" and request["grpo_beta"] == 0.3
    assert parse_request(request.as_dict()).values == request.values


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        ({"echo_enabled": True}, "echo_enabled"),
        ({"echo_enabled": True, "grpo_reward_mode": "answer"}, "echo_enabled"),
        (
            {"echo_enabled": True, "grpo_reward_mode": "environment", "environment_protocol": "text"},
            "echo_enabled",
        ),
        ({"rwml_enabled": True, "grpo_reward_mode": "answer"}, "rwml_enabled"),
        ({"grpo_reward_mode": "rwml"}, "rwml_enabled"),
        ({"rwml_enabled": True, "grpo_beta": 0.1, "rwml_kl_beta": 0.2}, "rwml_kl_beta"),
        ({"strategy": "rlvr", "rwml_enabled": True}, "rwml_enabled"),
        ({"rwml_enabled": True, "rwml_distance_threshold": 0}, "rwml_distance_threshold"),
    ],
)
def test_what_cannot_be_combined_is_refused_by_name(fields, blamed):
    with pytest.raises(BashGymError) as caught:
        parse_request({**BODY, **fields})
    assert caught.value.code == "invalid_field" and blamed in caught.value.fields
