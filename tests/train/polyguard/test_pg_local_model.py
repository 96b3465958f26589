"""The tiny model as a policy, through its real weights."""

from __future__ import annotations

import pytest

from bashgym.core.errors import BashGymError
from polyguard.env.engine import Engine
from polyguard.evaluation.ablations import ablate
from polyguard.evaluation.play import play, scenarios
from polyguard.evaluation.stacks import Bench
from polyguard.policies.local_model import ModelPolicy

TINY = "bashgym/tiny-qwen2"
pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def policy() -> ModelPolicy:
    return ModelPolicy(TINY, max_new_tokens=24)


def observations(n: int) -> list[object]:
    return [Engine().reset(item.task_id, split=item.split, index=item.index) for item in scenarios("test", n)]


def test_greedy_answers_are_repeatable_and_one_for_each(policy: ModelPolicy) -> None:
    seen = observations(3)
    policy.begin(3)
    first = policy.act(seen)  # type: ignore[arg-type]
    assert len(first) == 3
    assert all(isinstance(text, str) for text in first)
    assert policy.act(seen) == first  # type: ignore[arg-type]


def test_sampled_answers_follow_the_step_since_the_beginning() -> None:
    seen, made = observations(2), []
    sampler = ModelPolicy(TINY, temperature=1.0, seed=1, max_new_tokens=8)
    for _ in range(2):
        sampler.begin(2)
        made.append([sampler.act(seen), sampler.act(seen)])  # type: ignore[arg-type]
    assert made[0] == made[1]
    assert made[0][0] != made[0][1]


def test_a_model_plays_whole_episodes(policy: ModelPolicy) -> None:
    rows = play(policy, scenarios("test", 2))
    assert [row.policy for row in rows] == ["llm-only"] * 2
    assert all(row.steps >= 1 and row.latency_ms for row in rows)


def test_the_llm_stacks_of_the_ablation_use_the_model_and_say_how_much_is_its_own() -> None:
    report = ablate(
        scenarios("test", 2),
        Bench(model=TINY, bandit_episodes=5),
        stacks=["llm+bandit", "llm+critic"],
    )
    assert [row["status"] for row in report["policy_stacks"].values()] == ["ok"] * 2
    assert 0 <= report["policy_stacks"]["llm+critic"]["vetoed_share"] <= 1
    assert report["model"] == TINY


def test_a_folder_without_weights_is_no_model(tmp_path: object) -> None:
    with pytest.raises(BashGymError):
        ModelPolicy(str(tmp_path))
