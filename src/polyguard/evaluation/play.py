"""Plays episodes and writes down one row for each. A row is arithmetic's only input: no report looks at an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from bashgym.core.canonical import digest_json
from polyguard.env.engine import Engine
from polyguard.env.parse import parse_action
from polyguard.env.reward import total
from polyguard.env.tasks import COUNT, TASKS, scenario_id, scenario_seed
from polyguard.env.types import REVIEWS, SUCCESS, Action, Observation, StepResult
from polyguard.policies.base import Policy, Privileged

BATCH = 64
"""Episodes that run side by side; models answer them in one batch."""


class Scenario(msgspec.Struct, frozen=True):
    """Where an episode starts."""

    task_id: str
    split: str
    index: int

    @property
    def id(self) -> str:
        """As the environment names it."""
        return scenario_id(self.task_id, self.split, self.index)


class EpisodeRow(msgspec.Struct, kw_only=True):
    """What one policy did in one scenario. Everything here is true, not what the agent was told."""

    policy: str
    scenario_id: str
    task_id: str
    difficulty: str
    cluster: str
    """What intervals take as the sample: the scenario's main template."""
    groups: dict[str, str]
    """Subgroups: age band, sex, kidney stage, number of drugs."""
    steps: int
    reward: float
    """Mean step total under the profile that was played."""
    rewards: dict[str, float]
    """The same steps under every profile."""
    episode_return: float
    termination: str
    success: bool
    legal_steps: int
    components: dict[str, float]
    """Means over steps."""
    channels: dict[str, float]
    hard_flags: list[str]
    soft_flags: list[str]
    risk_delta: float
    """True risk at the end less at the start; negative is good."""
    burden_delta: float
    dose_steps: int
    """Steps in which a dose mattered,"""
    dose_hits: int
    """and those in which all were within a factor of 1.1 of their target."""
    adverse_event: bool
    bets: list[tuple[float, bool]]
    """(confidence, whether the step lowered risk and was legal)."""
    abstention: list[tuple[float, bool]]
    """(how much the policy leaned to review, whether one was warranted)."""
    action_types: list[str]
    explained: bool
    """Whether a failure has failure reasons; True for successes."""
    latency_ms: list[float]


Progress = Callable[[int, int], None]
Watch = Callable[[Observation], Observation]
"""What stands between environment and policy: robustness tests change what the policy sees."""


def scenarios(split: str, n: int, tasks: Sequence[str] | None = None, start: int = 0) -> list[Scenario]:
    """`n` scenarios of a split, task by task in turn, so that every prefix is spread over the tasks."""
    names = list(tasks or TASKS)
    places = [start + place for place in range(n)]
    return [Scenario(names[k % len(names)], split, (k // len(names)) % COUNT[split]) for k in places]


def seeds_digest(chosen: Sequence[Scenario]) -> str:
    """sha256 over the scenarios and their seeds: two evaluations are comparable if this is equal."""
    return digest_json([[item.id, str(scenario_seed(item.task_id, item.split, item.index))] for item in chosen])


def play(
    policy: Policy | Privileged,
    chosen: Sequence[Scenario],
    *,
    profile: str = "strict",
    on_progress: Progress | None = None,
    watch: Watch | None = None,
    batch: int = BATCH,
) -> list[EpisodeRow]:
    """One row for each scenario, in their order."""
    rows: list[EpisodeRow] = []
    for start in range(0, len(chosen), batch):
        part = chosen[start : start + batch]
        episodes = [_Episode(policy.name, item, profile) for item in part]
        policy.begin(len(part))
        while running := [item for item in episodes if not item.engine.done]:
            began = time.perf_counter()
            answers = _answers(policy, running, watch)
            each = (time.perf_counter() - began) * 1000 / len(running)
            for episode, said in zip(running, answers, strict=True):
                episode.step(said, each)
        rows += [item.row() for item in episodes]
        if on_progress:
            on_progress(len(rows), len(chosen))
    return rows


def _answers(policy: Policy | Privileged, running: Sequence[_Episode], watch: Watch | None) -> Sequence[Action | str]:
    if isinstance(policy, Privileged):
        return policy.act_engines([item.engine for item in running])
    return policy.act([watch(item.engine.observation) if watch else item.engine.observation for item in running])


class _Episode:
    """One episode under way."""

    def __init__(self, policy: str, scenario: Scenario, profile: str) -> None:
        self.policy, self.scenario = policy, scenario
        self.engine = Engine(profile=profile)
        self.start = self.engine.reset(scenario.task_id, split=scenario.split, index=scenario.index)
        self.results: list[StepResult] = []
        self.latencies: list[float] = []
        self.bets: list[tuple[float, bool]] = []
        self.leanings: list[tuple[float, bool]] = []

    def step(self, said: Action | str, latency_ms: float) -> None:
        """Carries an answer out and remembers it."""
        result = self.engine.step(said)
        self.results.append(result)
        self.latencies.append(latency_ms)
        action = parse_action(said).action if isinstance(said, str) else said
        confidence = action.confidence if action else None
        change = result.transition
        if confidence is not None:
            self.bets.append((confidence, result.verdict.legal and change.risk_after < change.risk_before))
        reviewed = change.action_type in REVIEWS
        # A review chosen with little confidence leans less to review than a sure one, and so on down.
        sure = 0.5 if confidence is None else confidence
        self.leanings.append((1.0 if reviewed else 0.5 * (1 - sure), change.review_warranted))

    def row(self) -> EpisodeRow:
        """The whole episode, as numbers."""
        results, last = self.results, self.results[-1]
        flags = [flag.partition(":") for result in results for flag in result.anti_cheat]
        changes = [result.transition for result in results]
        dosed = [change.dose_errors for change in changes if change.dose_errors]
        reason = last.termination.value if last.termination else ""
        return EpisodeRow(
            policy=self.policy,
            scenario_id=self.scenario.id,
            task_id=self.scenario.task_id,
            difficulty=self.start.difficulty.value,
            cluster=_cluster(self.engine, self.scenario),
            groups=_groups(self.start),
            steps=len(results),
            reward=_mean([result.reward for result in results]),
            rewards={name: _mean([_total(result, name) for result in results]) for name in PROFILES},
            episode_return=last.episode_return or 0.0,
            termination=reason,
            success=last.termination in SUCCESS,
            legal_steps=sum(result.verdict.legal for result in results),
            components=_means([result.breakdown for result in results]),
            channels=_means([result.channels for result in results]),
            hard_flags=sorted({name for level, _, name in flags if level == "hard"}),
            soft_flags=sorted({name for level, _, name in flags if level == "soft"}),
            risk_delta=changes[-1].risk_after - changes[0].risk_before,
            burden_delta=changes[-1].burden_after - changes[0].burden_before,
            dose_steps=len(dosed),
            dose_hits=sum(max(errors) < _DOSE_TOLERANCE for errors in dosed),
            adverse_event=any(change.adverse_event for change in changes),
            bets=self.bets,
            abstention=self.leanings,
            action_types=[change.action_type.value if change.action_type else "" for change in changes],
            explained=last.termination in SUCCESS or any(result.failure_reasons for result in results),
            latency_ms=self.latencies,
        )


PROFILES = ("compat", "strict")
_DOSE_TOLERANCE = 0.0954
"""log(1.1)."""


def _cluster(engine: Engine, scenario: Scenario) -> str:
    """The main template: scenarios around the same pair of drugs are alike. Without one, the scenario itself."""
    names = engine.scenario.templates if engine.scenario else ()
    return names[0] if names else scenario.id


def _groups(observation: Observation) -> dict[str, str]:
    patient, n_drugs = observation.patient, len(observation.medications)
    egfr = patient.get("egfr")
    return {
        "age": "80+" if patient["age"] >= 80 else "65-79" if patient["age"] >= 65 else "under 65",
        "sex": str(patient["sex"]),
        "egfr": "unknown" if egfr is None else "under 30" if egfr < 30 else "30-59" if egfr < 60 else "60+",
        "n_drugs": "10+" if n_drugs >= 10 else "6-9" if n_drugs >= 6 else "under 6",
    }


def _total(result: StepResult, profile: str) -> float:
    hard = any(flag.startswith("hard:") for flag in result.anti_cheat)
    readable = result.transition.action_type is not None
    return total(result.breakdown, profile, verdict=result.verdict, readable=readable, hard=hard)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: _mean([row[name] for row in rows]) for name in rows[0]}
