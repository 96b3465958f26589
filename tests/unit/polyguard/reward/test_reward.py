"""The reward against its formulas, worked out by hand, and against the engine."""

import json
import math
from importlib import resources
from types import SimpleNamespace

import pytest

from bashgym.core.errors import BashGymError
from polyguard.env import reward
from polyguard.env.engine import Engine
from polyguard.env.tasks import TASKS
from polyguard.env.types import (
    Action,
    ActionType,
    Candidate,
    DecisionMode,
    Problem,
    ProblemKind,
    Severity,
    Transition,
    Verdict,
)

UPSTREAM = {
    "format_compliance_score": 0.08,
    "candidate_alignment_score": 0.08,
    "legality_score": 0.12,
    "safety_delta_score": 0.15,
    "burden_improvement_score": 0.08,
    "disease_stability_score": 0.10,
    "dosing_quality_score": 0.08,
    "abstention_quality_score": 0.06,
    "efficiency_score": 0.06,
    "process_fidelity_score": 0.06,
    "explanation_grounding_score": 0.03,
    "anti_cheat_score": 0.06,
    "uncertainty_calibration_score": 0.04,
}
STRICT = (0.01, 0.03, 0.10, 0.30, 0.10, 0.15, 0.12, 0.06, 0.005, 0.05, 0.005, 0.03, 0.04)


def score(kind="STOP_DRUG", verdict=None, action=None, flags=(), fmt=1.0, steps=1, budget=5, **transition):
    candidate = Candidate("cand_01", DecisionMode.REGIMEN_OPT, ActionType(kind)) if kind else None
    return reward.components(
        observation=SimpleNamespace(),
        action=action or Action("cand_01"),
        candidate=candidate,
        verdict=verdict or Verdict(True),
        transition=Transition(None, **transition),
        parsed_format=fmt,
        anti_cheat=flags,
        steps_done=steps,
        max_steps=budget,
    )


def test_weights_are_those_of_the_specification_and_sum_to_one():
    assert reward.weights("compat") == UPSTREAM
    assert reward.weights("strict") == dict(zip(UPSTREAM, STRICT, strict=True))
    for weights in reward.profiles().values():
        assert math.isclose(sum(weights.values()), 1)
    assert sorted(reward.COMPONENTS) == sorted(name for part in reward.CHANNELS.values() for name in part)
    with pytest.raises(BashGymError, match="no reward profile"):
        reward.weights("generous")


def test_a_profile_that_does_not_sum_to_one_is_refused(monkeypatch):
    raw = json.loads(resources.files("polyguard.configs").joinpath("rewards.json").read_bytes())
    raw["strict"]["legality_score"] += 0.1
    bad = SimpleNamespace(joinpath=lambda _: SimpleNamespace(read_bytes=lambda: json.dumps(raw).encode()))
    monkeypatch.setattr(reward.resources, "files", lambda _: bad)
    reward.profiles.cache_clear()
    try:
        with pytest.raises(BashGymError, match="strict"):
            reward.profiles()
    finally:
        monkeypatch.undo()
        reward.profiles.cache_clear()


@pytest.mark.parametrize(
    ("x", "value"), [(-3, 0.001), (0, 0.001), (0.12345, 0.123), (0.5, 0.5), (1, 0.999), (9, 0.999)]
)
def test_the_quantiser(x, value):
    assert reward.q(x) == value


def test_safety_follows_the_change_of_risk_and_idling_costs():
    half = 0.5 * math.tanh(4 * 0.2)
    assert score(risk_before=0.5, risk_after=0.3)["safety_delta_score"] == reward.q(0.5 + half)
    assert score(risk_before=0.3, risk_after=0.5)["safety_delta_score"] == reward.q(0.5 - half)
    assert score(risk_before=0.5, risk_after=0.5)["safety_delta_score"] == 0.5
    assert score("KEEP_REGIMEN", risk_before=0.5, risk_after=0.5)["safety_delta_score"] == 0.31
    assert score("KEEP_REGIMEN", risk_before=0.2, risk_after=0.2)["safety_delta_score"] == 0.5


def test_the_components_by_hand():
    assert score(burden_before=0.7, burden_after=0.4)["burden_improvement_score"] == 0.8
    assert score(burden_before=0.0, burden_after=0.9)["burden_improvement_score"] == 0.001
    assert score(severity_after=0.25, newly_uncovered=1)["disease_stability_score"] == 0.45
    assert score(severity_after=0.9, newly_uncovered=3)["disease_stability_score"] == 0.001
    assert score()["dosing_quality_score"] == 0.5
    assert score(dose_errors=(0.0, math.log(2)))["dosing_quality_score"] == 0.75
    assert score(dose_errors=(9.0,))["dosing_quality_score"] == 0.001
    assert score(steps=2, budget=5)["efficiency_score"] == reward.q(1 - 2 / 6)
    assert score(preconditions=(1, 2))["process_fidelity_score"] == 0.5 and score()["process_fidelity_score"] == 0.999
    assert score(verdict=Verdict(False))["legality_score"] == 0.001
    assert score(verdict=Verdict(True, dominated=True))["legality_score"] == 0.3
    assert score(fmt=0.5)["format_compliance_score"] == 0.5


def test_abstention():
    assert score("REQUEST_PHARMACIST_REVIEW", review_justified=True)["abstention_quality_score"] == 0.999
    assert score("REQUEST_PHARMACIST_REVIEW", review_justified=False)["abstention_quality_score"] == 0.1
    assert score(review_warranted=True)["abstention_quality_score"] == 0.3
    assert score(review_warranted=False)["abstention_quality_score"] == 0.7


def test_alignment_is_the_candidate_and_what_is_said_of_it():
    said = Action("cand_01", expected_action_type=ActionType.STOP_DRUG)
    assert score(action=said)["candidate_alignment_score"] == 0.999
    assert score("HOLD_DOSE", action=said)["candidate_alignment_score"] == 0.001
    assert score(None)["candidate_alignment_score"] == 0.001


def test_grounding_is_f1_and_length_earns_nothing():
    facts = frozenset({"w1", "w2"})
    for words in ("", "Short.", "long " * 100):
        cited = Action("cand_01", 0.5, words, ("w1", "m1"))
        assert score(action=cited, supporting_facts=facts)["explanation_grounding_score"] == 0.5
    all_of_them = Action("cand_01", 0.5, "", ("w1", "w2"))
    assert score(action=all_of_them, supporting_facts=facts)["explanation_grounding_score"] == 0.999
    spam = Action("cand_01", 0.5, "", ("w1", "w2", "m1", "m2", "c1", "lab.a", "lab.b", "drug.c"))
    assert score(action=spam, supporting_facts=facts)["explanation_grounding_score"] == 0.4
    assert score(action=Action("cand_01"), supporting_facts=facts)["explanation_grounding_score"] == 0.2
    assert (
        score(action=Action("cand_01", 0.5, "Words."), supporting_facts=facts)["explanation_grounding_score"] == 0.001
    )
    assert score(action=cited, supporting_facts=frozenset())["explanation_grounding_score"] == 0.001


def test_honesty_and_calibration():
    assert score(flags=["soft:a"])["anti_cheat_score"] == 0.5
    assert score(flags=["soft:a", "soft:b", "soft:c"])["anti_cheat_score"] == 0.001
    assert score(flags=["soft:a", "hard:b"])["anti_cheat_score"] == 0.001
    sure = Action("cand_01", 0.9)
    assert score(action=sure, risk_before=0.5, risk_after=0.2)["uncertainty_calibration_score"] == 0.99
    assert score(action=sure, risk_before=0.2, risk_after=0.2)["uncertainty_calibration_score"] == 0.19
    illegal = score(action=sure, verdict=Verdict(False), risk_before=0.5, risk_after=0.2)
    assert illegal["uncertainty_calibration_score"] == 0.19


def test_the_gate_leaves_a_quarter():
    values = score(risk_before=0.5, risk_after=0.3)
    for profile in ("compat", "strict"):
        whole = sum(w * values[name] for name, w in reward.weights(profile).items())
        fine = {"verdict": Verdict(True), "readable": True, "hard": False}
        assert reward.total(values, profile, **fine) == reward.q(whole)
        for fault in ({"verdict": Verdict(False)}, {"readable": False}, {"hard": True}):
            assert reward.total(values, profile, **{**fine, **fault}) == reward.q(whole / 4)


def problem(name, severity):
    return Problem(name, ProblemKind.DDI, (name,), severity)


def test_the_outcome_weighs_severity_and_what_went_wrong():
    start = [problem("a", Severity.CONTRAINDICATED), problem("b", Severity.MAJOR), problem("c", Severity.MINOR)]
    fine = {"destabilised": False, "n_new_major": 0}
    assert reward.outcome(start, [], **fine) == 1 and reward.outcome(start, "abc", **fine) == 0
    assert math.isclose(reward.outcome(start, ["b"], **fine), 1.1 / 1.8)
    assert math.isclose(reward.outcome(start, ["b"], destabilised=True, n_new_major=0), 1.1 / 1.8 - 0.5)
    assert reward.outcome(start, [], destabilised=False, n_new_major=1) == 0.75
    assert reward.outcome(start, [], destabilised=True, n_new_major=3) == 0
    assert math.isclose(reward.outcome(start, "abc", **fine, open_share=0.5), 0.5)
    assert reward.outcome([], [], **fine) == 1


def test_the_return_of_an_episode():
    assert reward.episode_return(1.0, [0.8, 0.6], 0.5) == 0.86
    assert reward.episode_return(0.0, [], 0.0) == 0.001


@pytest.mark.parametrize("profile", ["strict", "compat"])
def test_every_number_of_the_engine_is_in_range_with_three_decimals(profile):
    for at, task in enumerate(TASKS):
        for index in range(6):
            engine = Engine(profile=profile)
            engine.reset(task, split="test", index=index)
            while not engine.done:
                choice = engine.observation.candidates[(engine.steps + index + at) % len(engine.observation.candidates)]
                result = engine.step(Action(choice.candidate_id, 0.7))
                assert set(result.breakdown) == set(UPSTREAM) and set(result.channels) == set(reward.CHANNELS)
                for value in (result.reward, *result.breakdown.values(), *result.channels.values()):
                    assert 0.001 <= value <= 0.999 and value == round(value, 3)
                for name, parts in reward.CHANNELS.items():
                    assert result.channels[name] == round(sum(result.breakdown[p] for p in parts) / len(parts), 3)
                refused = not result.verdict.legal or any(flag.startswith("hard") for flag in result.anti_cheat)
                whole = sum(w * result.breakdown[name] for name, w in reward.weights(profile).items())
                assert result.reward == reward.q(whole * (0.25 if refused else 1))
            assert 0.001 <= result.episode_return <= 0.999


def test_a_problem_that_comes_back_is_open_again():
    """Replaced, which ends an interaction, and put back, which makes it again: nothing is earned by the round."""
    found = 0
    for index in range(30):
        engine = Engine()
        engine.reset("medium/alternatives", split="train", index=index)
        start = set(engine._open)
        for there in [c for c in engine.observation.candidates if c.replacement_drug]:
            ahead = engine.clone()
            if ahead.step(Action(there.candidate_id)).done or len(ahead._open) >= len(start):
                continue
            undo = (there.replacement_drug, there.target_drug)
            for back in [c for c in ahead.observation.candidates if (c.target_drug, c.replacement_drug) == undo]:
                result = ahead.step(Action(back.candidate_id))
                if result.verdict.legal:
                    names = {p.id for p in ahead.true_problems()}
                    assert ahead._open == start & names
                    found += len(start & set(result.transition.new_major)) > 0
    assert found
