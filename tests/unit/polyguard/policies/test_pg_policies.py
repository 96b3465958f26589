"""What single policies choose, and that they keep nothing between calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pg_made import act, rx, seen, warn

from bashgym.core.errors import BashGymError
from polyguard.env.types import Action, ActionType, Missing, Observation, ProblemKind, Severity
from polyguard.evaluation.stacks import STACKS, Bench, fit_bandit
from polyguard.policies.agents import AgentStack, Parts
from polyguard.policies.bandit import LinUCB
from polyguard.policies.base import Policy, Privileged
from polyguard.policies.compose import Shortlist, Watched
from polyguard.policies.search import BeamSearch
from polyguard.policies.simple import GreedyEstimate, NoChange, PositionOnly, RandomLegal, ReviewOnly, RulesOnly

STOP_WARFARIN = act(3, ActionType.STOP_DRUG, "warfarin", rationale_tags=("w1",), estimated_safety_delta=0.5)
STOP_NAPROXEN = act(4, ActionType.STOP_DRUG, "naproxen", rationale_tags=("w1",), estimated_safety_delta=0.1)
WARNED = [warn(1, ProblemKind.DDI, Severity.MAJOR, "naproxen", "warfarin")]


def bleeding() -> Observation:
    """Of the two stops only that of naproxen leaves nothing bare."""
    drugs = [rx("warfarin", 3, indication="atrial_fibrillation"), rx("naproxen", 500, indication="pain")]
    return seen(drugs, [STOP_WARFARIN, STOP_NAPROXEN], warnings=WARNED)


@pytest.mark.parametrize("policy", [AgentStack(), BeamSearch(), RulesOnly()])
def test_the_knowing_ones_stop_the_drug_that_can_go(policy: Policy) -> None:
    assert chosen(policy, bleeding()).candidate_id == "cand_04"


def test_the_greedy_one_follows_the_listed_estimate_into_the_decoy() -> None:
    assert chosen(GreedyEstimate(), bleeding()).candidate_id == "cand_03"
    assert chosen(PositionOnly(2), bleeding()).candidate_id == "cand_03"
    assert chosen(NoChange(), bleeding()).candidate_id == "cand_01"
    assert chosen(ReviewOnly(), bleeding()).candidate_id == "cand_02"


def chosen(policy: Policy, observation: Observation) -> Action:
    policy.begin(1)
    (said,) = policy.act([observation])
    assert isinstance(said, Action)
    return said


def test_an_answer_cites_the_warning_that_it_is_about() -> None:
    action = chosen(AgentStack(), bleeding())
    assert action.cited_facts == ("w1",)
    assert action.rationale
    assert action.confidence > 0.5


def test_without_the_explainer_nothing_is_cited() -> None:
    bare = chosen(AgentStack(Parts(explainer=False)), bleeding())
    assert (bare.cited_facts, bare.rationale, bare.confidence) == ((), "", 0.5)


def test_a_gap_is_closed_before_a_choice_that_may_depend_on_it() -> None:
    order = act(5, ActionType.ORDER_MONITORING, monitoring="creatinine", rationale_tags=("m1",))
    gap = [Missing("m1", "creatinine", ActionType.ORDER_MONITORING)]
    drugs = [rx("warfarin", 3), rx("naproxen", 500)]
    observation = seen(drugs, [STOP_NAPROXEN, order], warnings=WARNED, missing=gap)
    assert chosen(AgentStack(), observation).candidate_id == "cand_05"
    assert chosen(AgentStack(Parts(evidence=False)), observation).candidate_id == "cand_04"


def test_the_critic_keeps_an_abrupt_stop_away() -> None:
    stop = act(3, ActionType.STOP_DRUG, "diazepam", rationale_tags=("w1",))
    taper = act(4, ActionType.INITIATE_TAPER, "diazepam", taper_step_pct=10.0, rationale_tags=("w1",))
    warned = [warn(1, ProblemKind.TAPER_NEEDED, Severity.MAJOR, "diazepam")]
    observation = seen([rx("diazepam", 5)], [stop, taper], warnings=warned)
    assert chosen(AgentStack(), observation).candidate_id == "cand_04"
    assert chosen(AgentStack(Parts(critic=False)), observation).candidate_id == "cand_03"


@pytest.mark.parametrize("name", [name for name in STACKS if not name.startswith("llm") and name != "expert"])
def test_batches_and_repetition_change_no_answer(name: str) -> None:
    policy = STACKS[name](Bench(bandit_episodes=5))
    assert isinstance(policy, Policy)
    assert not isinstance(policy, Privileged)
    one = policy.act([bleeding()])
    assert policy.act([bleeding(), bleeding()]) == [*one, *one]


def test_chance_depends_on_the_seed_and_the_episode_only() -> None:
    picks = {chosen(RandomLegal(seed), bleeding()).candidate_id for seed in range(30)}
    assert picks == {"cand_01", "cand_02", "cand_03", "cand_04"}
    assert chosen(RandomLegal(7), bleeding()) == chosen(RandomLegal(7), bleeding())


def test_the_bandit_learns_from_training_scenarios() -> None:
    fresh, taught = LinUCB(), fit_bandit(40)
    assert fresh.values(bleeding()) == [0.0] * 4
    values = taught.values(bleeding())
    assert values[3] > values[0]  # to stop naproxen is worth more than to keep both
    assert fit_bandit(40).values(bleeding()) == values


class Says:
    """A model that always writes the same, and remembers what it was shown."""

    name = "says"

    def __init__(self, text: str) -> None:
        self.text, self.shown = text, list[Observation]()

    def begin(self, n: int) -> None:
        self.shown = []

    def act(self, observations: Sequence[Observation]) -> list[Action | str]:
        self.shown += observations
        return [self.text for _ in observations]


def test_a_shortlist_is_shorter_and_in_the_same_order() -> None:
    inner = Says("{}")
    Shortlist(inner, fit_bandit(10), k=2).act([bleeding()])
    ids = [item.candidate_id for item in inner.shown[0].candidates]
    assert len(ids) == 2
    assert ids == sorted(ids)
    with pytest.raises(BashGymError):
        Shortlist(inner, LinUCB(), k=0)


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ('{"candidate_id":"cand_04"}', True),
        ('{"candidate_id":"cand_02"}', True),  # a review is always allowed
        ('{"candidate_id":"cand_99"}', False),
        ("I would stop naproxen.", False),
        ('{"candidate_id":"cand_05"}', False),  # to keep it is refused by the tables
    ],
)
def test_the_critic_replaces_what_would_be_refused(text: str, passes: bool) -> None:
    wild = act(5, ActionType.STOP_DRUG, "ibuprofen")
    observation = seen(bleeding().medications, [STOP_WARFARIN, STOP_NAPROXEN, wild], warnings=WARNED)
    (said,) = Watched(Says(text)).act([observation])
    assert (said == text) is passes
    if not passes:
        assert isinstance(said, Action)
        assert said.candidate_id == "cand_04"


def test_a_model_that_is_not_there_is_an_error_with_a_reason() -> None:
    with pytest.raises(BashGymError) as caught:
        STACKS["llm-only"](Bench())
    assert caught.value.code == "model_missing"
