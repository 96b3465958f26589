"""Real episodes: that policies are ordered as they should be, that play is repeatable, and what robustness changes do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bashgym.core.canonical import canonical_json
from bashgym.core.errors import BashGymError
from polyguard import DISCLAIMER
from polyguard.env.engine import Engine
from polyguard.env.tasks import TASKS
from polyguard.evaluation.ablations import ablate
from polyguard.evaluation.inference import benchmark
from polyguard.evaluation.play import EpisodeRow, Scenario, play, scenarios, seeds_digest
from polyguard.evaluation.report import mean_of, paired, summary
from polyguard.evaluation.robustness import BRANDS, CHANGES, robustness, watch_of
from polyguard.evaluation.stacks import COMPONENTS, STACKS, Bench
from polyguard.knowledge import load
from polyguard.policies.agents import AgentStack, score
from polyguard.policies.picture import Picture
from polyguard.policies.search import Expert
from polyguard.policies.simple import RulesOnly

TEST = scenarios("test", 60)
CHEAP = ("no_change", "review_only", "random_legal", "position_only", "greedy_estimate", "rules_only", "agent_stack")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[EpisodeRow]]:
    bench = Bench(bandit_episodes=20)
    return {name: play(STACKS[name](bench), TEST) for name in CHEAP}


def test_scenarios_are_spread_over_the_tasks_and_have_one_digest() -> None:
    assert {item.task_id for item in scenarios("test", 10)} == set(TASKS)
    assert scenarios("test", 10) == TEST[:10]
    assert seeds_digest(TEST) == seeds_digest(scenarios("test", 60))
    assert seeds_digest(TEST) != seeds_digest(scenarios("validation", 60))


@pytest.mark.parametrize("worse", ["no_change", "review_only"])
def test_idle_policies_score_below_chance(rows: dict[str, list[EpisodeRow]], worse: str) -> None:
    assert paired(rows[worse], rows["random_legal"], ["avg_return"])["avg_return"]["ci_low"] > 0


@pytest.mark.parametrize("leak", ["position_only", "greedy_estimate"])
def test_the_list_does_not_give_the_answer_away(rows: dict[str, list[EpisodeRow]], leak: str) -> None:
    for metric in ("avg_reward", "avg_return"):
        assert paired(rows[leak], rows["rules_only"], [metric])[metric]["ci_low"] > 0


@pytest.mark.parametrize("task", list(TASKS))
def test_the_expert_is_far_above_chance_on_every_task(task: str) -> None:
    here = scenarios("test", 3, tasks=[task])
    expert, chance = play(Expert(), here), play(STACKS["random_legal"](Bench()), here)
    assert mean_of(expert, "avg_return") > mean_of(chance, "avg_return") + 0.1
    assert mean_of(expert, "legality_rate") == 1.0


def test_play_is_repeatable_and_batches_change_nothing(rows: dict[str, list[EpisodeRow]]) -> None:
    again = play(AgentStack(), TEST[:20], batch=3)
    kept = [msgspec.structs.replace(row, latency_ms=[]) for row in rows["agent_stack"][:20]]
    assert [msgspec.structs.replace(row, latency_ms=[]) for row in again] == kept


def test_raw_texts_are_read_by_the_environment() -> None:
    class Babbles:
        name = "babbles"

        def begin(self, n: int) -> None:
            del n

        def act(self, observations: Any) -> list[Any]:
            return ["I cannot do that." for _ in observations]

    (row,) = play(Babbles(), TEST[:1])
    assert row.termination == "repeated_invalid"
    assert row.legal_steps == 0
    assert row.bets == []
    assert row.action_types == ["", "", ""]
    assert row.explained


def test_a_row_agrees_with_the_episode() -> None:
    engine, policy = Engine(), RulesOnly()
    observation = engine.reset(TEST[0].task_id, split="test", index=TEST[0].index)
    start, rewards, results = engine.true_risk(), [], []
    while not engine.done:
        results.append(engine.step(policy.choose(observation)))
        rewards.append(results[-1].reward)
        observation = results[-1].observation
    (row,) = play(policy, TEST[:1])
    assert row.reward == pytest.approx(sum(rewards) / len(rewards))
    assert row.rewards["strict"] == pytest.approx(row.reward)
    assert row.episode_return == results[-1].episode_return
    assert row.risk_delta == pytest.approx(results[-1].transition.risk_after - start)
    assert row.termination == results[-1].termination
    assert row.cluster in engine.scenario.templates


def test_the_ablation_report_is_whole_and_skips_what_needs_a_model() -> None:
    said: list[str] = []
    report = ablate(TEST[:6], Bench(bandit_episodes=10), parts_on=TEST[:3], say=said.append)
    stacks = report["policy_stacks"]
    assert set(stacks) == set(STACKS)
    for name in ("llm-only", "llm+bandit", "llm+critic"):
        assert stacks[name]["status"] == "skipped"
        assert "model" in stacks[name]["reason"]
    assert all(stacks[name]["status"] == "ok" for name in STACKS if not name.startswith("llm"))
    assert set(report["components"]) == set(COMPONENTS)
    assert report["disclaimer"] == DISCLAIMER
    assert (report["episodes"], report["component_episodes"]) == (6, 3)
    assert set(report["against_reference"]) == {n for n in STACKS if not n.startswith("llm")} - {"rules_only"}
    assert len(said) == len(STACKS) + len(COMPONENTS)
    canonical_json(report)  # no NaN, no foreign type


def test_a_fault_in_a_stack_is_not_taken_for_a_missing_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Bench) -> AgentStack:
        raise BashGymError("internal", "broken")

    monkeypatch.setitem(STACKS, "no_change", broken)
    with pytest.raises(BashGymError):
        ablate(TEST[:2], Bench(), stacks=["no_change"])


def test_brands_are_of_drugs_in_the_tables_and_no_drug_themselves() -> None:
    assert set(BRANDS) <= set(load().drugs)
    assert not set(BRANDS.values()) & set(load().drugs)


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_is_repeatable_keeps_the_choices_and_leaves_the_original_alone(name: str) -> None:
    observation = Engine().reset("hard/complex_tradeoff", split="test", index=3)
    before = msgspec.json.encode(observation)
    changed = watch_of(name)(observation)
    assert msgspec.json.encode(watch_of(name)(observation)) == msgspec.json.encode(changed)
    assert msgspec.json.encode(observation) == before
    assert {item.candidate_id for item in changed.candidates} == {item.candidate_id for item in observation.candidates}


def test_the_worth_of_what_is_chosen_does_not_depend_on_the_order() -> None:
    policy = AgentStack()
    for item in TEST[:30]:
        observation = Engine().reset(item.task_id, split=item.split, index=item.index)
        shuffled = watch_of("shuffle_candidates")(observation)
        worth = set()
        for shown in (observation, shuffled):
            picked = policy.choose(shown).candidate_id
            worth.add(score(Picture(shown), next(c for c in shown.candidates if c.candidate_id == picked)))
        assert len(worth) == 1


def test_what_the_changes_do() -> None:
    observation = Engine().reset("hard/complex_tradeoff", split="test", index=3)
    shuffled = watch_of("shuffle_candidates")(observation)
    assert sorted(shuffled.candidates, key=lambda item: item.candidate_id) == observation.candidates
    assert shuffled.candidates != observation.candidates
    hostile = watch_of("injected_instruction")(observation)
    assert len(hostile.conflicts) == len(observation.conflicts) + 1
    assert "ignore all rules" in hostile.conflicts[-1]["text"]
    text = msgspec.json.encode(watch_of("brand_names")(observation)).decode()
    assert not any(f'"{name}"' in text for name in BRANDS)
    noisy = watch_of("kidney_noise")(observation).patient["egfr"]
    assert noisy == pytest.approx(observation.patient["egfr"], rel=0.16)


def test_the_order_of_the_choices_and_a_hostile_note_change_nothing_for_the_agents() -> None:
    report = robustness(AgentStack(), TEST[:10])
    assert set(report["changes"]) == set(CHANGES)
    assert report["changes"]["injected_instruction"]["avg_return"]["delta"] == 0.0
    assert report["subgroups"].keys() == {"age", "sex", "egfr", "n_drugs"}
    assert abs(report["changes"]["shuffle_candidates"]["avg_return"]["delta"]) < 0.05
    canonical_json(report)


def test_the_inference_benchmark_measures_every_run() -> None:
    report = benchmark(RulesOnly(), TEST[:5], runs=2, provider="stack", model="rules_only")
    assert [row["run"] for row in report["runs"]] == [0, 1]
    assert report["mean"]["valid_json_rate"] == 1.0
    assert report["latency_ms"]["p95"] >= report["latency_ms"]["p50"] > 0


def test_every_summary_can_be_written_as_json(rows: dict[str, list[EpisodeRow]]) -> None:
    for part in rows.values():
        canonical_json(summary(part))


def test_scenarios_are_named_as_the_environment_names_them() -> None:
    assert Scenario("easy/ddi_screening", "test", 7).id == "easy/ddi_screening:test:00007"
