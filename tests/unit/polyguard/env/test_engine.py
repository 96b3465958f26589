"""Whole episodes: they follow from their seed, show nothing that is hidden, and end for every reason that there is."""

import json
from collections import Counter
from itertools import combinations

import msgspec
import pytest

from bashgym.core.errors import BashGymError
from polyguard.env import trace
from polyguard.env.engine import Engine
from polyguard.env.problems import SERIOUS, Chart, assess
from polyguard.env.scenarios import scenario
from polyguard.env.tasks import COUNT, SPLITS, TASKS, scenario_seed, templates
from polyguard.env.types import REVIEWS, Action, ActionType, Observation, ProblemKind, Termination
from polyguard.knowledge import load

HIDDEN_WORDS = ("true_", 'otc"', "latent", "hazard", "good")


def by_kind(observation, *kinds):
    return next((c.candidate_id for c in observation.candidates if c.action_type in kinds), None)


def expert(engine):
    """A good choice, what is missing first; a review where there is none."""
    good, seen = engine.good_choices(), engine.observation
    order = [m.id for m in seen.missing] + [w.id for w in seen.warnings if w.severity in SERIOUS]
    for tag in order:
        for choice in seen.candidates:
            if choice.candidate_id in good and tag in choice.rationale_tags:
                return choice.candidate_id
    rest = [c.candidate_id for c in seen.candidates if c.candidate_id in good]
    return rest[0] if rest else by_kind(seen, *REVIEWS)


def play(choose, task, index, split="test", **how):
    engine = Engine(**how)
    engine.reset(task, split=split, index=index)
    while not engine.done:
        engine.step(Action(choose(engine), 0.8))
    return engine


def spread(engine):
    """A choice that differs from step to step, and from episode to episode."""
    return engine.observation.candidates[(engine.steps * 5 + len(engine.observation.medications)) % 6].candidate_id


def test_the_same_seed_and_answers_give_the_same_trace_to_the_byte():
    for number in range(100):
        task = list(TASKS)[number % len(TASKS)]
        first, second = (play(spread, task, number // len(TASKS)) for _ in range(2))
        assert trace.digest(first.trace) == trace.digest(second.trace)
        assert first.episode_return() == second.episode_return()


def test_splits_share_no_seed_no_template_and_no_pair():
    seeds = {split: {scenario_seed(t, split, i) for t in TASKS for i in range(COUNT[split])} for split in SPLITS}
    names = {split: {t.id for (_, s), rows in templates().items() if s == split for t in rows} for split in SPLITS}
    pairs = {
        split: {t.drugs for (_, s), rows in templates().items() if s == split for t in rows if len(t.drugs) == 2}
        for split in SPLITS
    }
    for a, b in combinations(SPLITS, 2):
        assert seeds[a].isdisjoint(seeds[b]) and names[a].isdisjoint(names[b]) and pairs[a].isdisjoint(pairs[b])
    assert all(len(pairs[split]) >= 60 for split in SPLITS)


@pytest.mark.parametrize("task", TASKS)
def test_a_scenario_has_its_serious_problems_and_a_safe_way_out(task):
    ends = Counter()
    for index in range(12):
        made = scenario(task, "train", index)
        case = made.cases[0]
        serious = [p for p in assess(case.patient, load(), seen=False, chart=Chart()) if p.severity in SERIOUS]
        assert serious and len(case.patient.meds) >= TASKS[task].drugs[0]
        ends[play(expert, task, index, "train").termination] += 1
    assert ends[Termination.SAFE_RESOLUTION] >= 6 and not ends[Termination.JUSTIFIED_REVIEW], ends


def test_nothing_hidden_is_in_an_observation():
    for task in TASKS:
        engine = Engine()
        engine.reset(task, split="test", index=3)
        hidden = [med.drug for med in engine.patient.otc] + [n for m in engine.patient.meds for n in m.components]
        pairs = [sorted(pair) for pair in engine.chart.pairs]
        seen = msgspec.json.encode(engine.observation).decode()
        shown = {row["drug"] for row in engine.observation.medications}
        assert not [name for name in hidden if name in shown], task
        assert not [w for w in engine.observation.warnings if w.kind == ProblemKind.DDI and sorted(w.drugs) in pairs], (
            task
        )
        assert not [word for word in HIDDEN_WORDS if word in seen], task
        state = json.dumps(engine.public_state())
        assert engine.observation.last_result is None and not [name for name in hidden if name in state]


def test_candidates_are_shuffled_and_their_number_is_bounded():
    places = Counter()
    for index in range(60):
        engine = Engine()
        seen = engine.reset("easy/ddi_screening", split="train", index=index)
        assert 6 <= len(seen.candidates) <= 14
        assert [c.candidate_id for c in seen.candidates] == [
            f"cand_{n:02d}" for n in range(1, len(seen.candidates) + 1)
        ]
        kinds = [c.action_type for c in seen.candidates]
        assert kinds.count(ActionType.KEEP_REGIMEN) == 1 and sum(kind in REVIEWS for kind in kinds) == 1
        places[kinds.index(ActionType.KEEP_REGIMEN)] += 1
    assert len(places) >= 6 and max(places.values()) < 25


def test_every_end_can_be_reached():
    keep = lambda e: by_kind(e.observation, ActionType.KEEP_REGIMEN)  # noqa: E731
    assert (
        play(lambda e: by_kind(e.observation, *REVIEWS), "easy/ddi_screening", 0).termination
        == Termination.UNJUSTIFIED_REVIEW
    )
    assert play(lambda e: "cand_99", "easy/ddi_screening", 0).termination == Termination.EXPLOIT_DETECTION
    engine = Engine()
    engine.reset("easy/ddi_screening", split="test", index=0)
    for _ in range(3):
        last = engine.step("no answer at all")
    assert last.termination == Termination.REPEATED_INVALID and last.reward < 0.25
    ends = {play(choose, task, i).termination for choose in (keep, spread, expert) for task in TASKS for i in range(12)}
    wanted = set(Termination) - {Termination.STEP_TIMEOUT, Termination.WALL_CLOCK_TIMEOUT, Termination.REPEATED_INVALID}
    assert wanted - ends <= {Termination.JUSTIFIED_REVIEW, Termination.UNJUSTIFIED_REVIEW}
    assert play(expert, "medium/alternatives", 2, step_timeout_s=0.0).termination == Termination.STEP_TIMEOUT
    assert play(expert, "medium/alternatives", 2, episode_timeout_s=0.0).termination == Termination.WALL_CLOCK_TIMEOUT


def test_a_review_is_justified_only_where_nothing_else_helps():
    found = Counter()
    for task in TASKS:
        for index in range(25):
            engine = play(expert, task, index)
            found[engine.termination] += 1
            if engine.termination == Termination.JUSTIFIED_REVIEW:
                assert engine.trace[-1]["transition"].review_warranted
    assert found[Termination.UNJUSTIFIED_REVIEW] == 0


def test_a_refused_choice_changes_nothing_but_costs_a_step():
    for index in range(40):
        engine = Engine()
        seen = engine.reset("medium/deprescribing", split="train", index=index)
        stop = next(
            (
                c
                for c in seen.candidates
                if c.action_type == ActionType.STOP_DRUG
                and any(m["drug"] == c.target_drug and m["needs_taper"] for m in seen.medications)
            ),
            None,
        )
        if stop is None:
            continue
        before = [(m.drug, m.daily_mg) for m in engine.patient.meds]
        result = engine.step(Action(stop.candidate_id))
        assert not result.verdict.legal and "step by step" in result.failure_reasons[0]
        assert [(m.drug, m.daily_mg) for m in engine.patient.meds] == before and engine.steps == 1
        return
    pytest.fail("no such choice in 40 scenarios")


def test_a_clone_goes_its_own_way():
    engine = Engine()
    engine.reset("medium/alternatives", split="train", index=2)
    before = trace.digest(engine.trace), engine.true_risk(), msgspec.json.encode(engine.observation)
    other = engine.clone()
    while not other.done:
        other.step(Action(expert(other)))
    assert (trace.digest(engine.trace), engine.true_risk(), msgspec.json.encode(engine.observation)) == before
    twin = engine.clone()
    while not twin.done:
        twin.step(Action(expert(twin)))
    assert twin.episode_return() == other.episode_return()


def test_policies_that_do_no_work_earn_less_than_one_that_does():
    def mean(choose):
        runs = [play(choose, task, i) for task in TASKS for i in range(10)]
        return sum(engine.episode_return() for engine in runs) / len(runs)

    def estimate(engine):
        return max(engine.observation.candidates, key=lambda c: c.estimated_safety_delta).candidate_id

    keep = mean(lambda e: by_kind(e.observation, ActionType.KEEP_REGIMEN))
    review = mean(lambda e: by_kind(e.observation, *REVIEWS))
    position = mean(lambda e: e.observation.candidates[0].candidate_id)
    greedy, best = mean(estimate), mean(expert)
    assert keep < position and review < position and position < best - 0.2 and greedy < best - 0.15


def test_requests_that_make_no_sense_are_refused():
    engine = Engine()
    for wrong in (
        lambda: engine.step(Action("cand_01")),
        lambda: engine.reset("easy/none"),
        lambda: engine.reset("easy/ddi_screening", split="exam"),
        lambda: engine.reset(difficulty="easy", sub_environment="BANDIT_MINING"),
        lambda: Engine(profile="generous"),
    ):
        with pytest.raises(BashGymError):
            wrong()
    assert isinstance(engine.reset(difficulty="hard"), Observation)
