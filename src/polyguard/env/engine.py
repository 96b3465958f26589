"""One episode: what is true, what is shown, and what a step does.

Order of a step: read the answer; look for cheating; judge legality; carry it out, or leave all as it was; a week passes;
look again; reward; is it over? All randomness comes from the scenario's seed. No clock decides anything unless a time limit
is asked for.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import msgspec
import numpy as np

from bashgym.core.errors import fail
from polyguard.env import anticheat, observe, parse, reward, trace, transition
from polyguard.env.legality import judge
from polyguard.env.problems import SERIOUS, assess, burden, hazards, risk
from polyguard.env.scenarios import Scenario, scenario
from polyguard.env.tasks import fitting
from polyguard.env.types import (
    GATHERING,
    REVIEWS,
    SUCCESS,
    TRUNCATED,
    Action,
    Candidate,
    Observation,
    Problem,
    ProblemKind,
    StepResult,
    Termination,
    Transition,
    Verdict,
)
from polyguard.knowledge.tables import load

MAX_INVALID, MAX_VETOES = 3, 2
UNSTABLE = 0.95
"""Severity of a condition at which a patient is destabilised."""
UNCERTAIN = 0.6
"""From here on a review is justified."""


class Told(msgspec.Struct, frozen=True):
    """What an agent answered to what."""

    before: Observation
    parsed: parse.Parsed
    candidate: Candidate | None
    verdict: Verdict


class Engine:
    """Plays episodes, one after the other. Not thread-safe; make one for each session."""

    def __init__(
        self,
        *,
        profile: str = "strict",
        step_timeout_s: float | None = None,
        episode_timeout_s: float | None = None,
        session: anticheat.Session | None = None,
    ) -> None:
        reward.weights(profile)
        self.profile, self.knowledge = profile, load()
        self._step_timeout_s, self._episode_timeout_s = step_timeout_s, episode_timeout_s
        self.session = session if session is not None else anticheat.Session()
        self._scenario: Scenario | None = None
        self.done = False
        self.termination: Termination | None = None

    # -- beginning -------------------------------------------------------------------------------------------------

    def reset(
        self,
        task_id: str | None = None,
        *,
        split: str = "train",
        index: int | None = None,
        seed: int | None = None,
        difficulty: str | None = None,
        sub_environment: str | None = None,
        episode_id: str | None = None,
    ) -> Observation:
        """Begins the scenario at `index` of a split, or with `seed`. Without a task the first that fits the other words."""
        name = task_id or fitting(difficulty, sub_environment)
        return self.begin(scenario(name, split, index or 0, seed), episode_id)

    def begin(self, made: Scenario, episode_id: str | None = None) -> Observation:
        """Begins a scenario."""
        self._scenario = made
        self._rng = np.random.Generator(np.random.PCG64([made.seed, 7]))
        self._waiting = made.fresh()
        self.episode_id = episode_id or made.id
        self.steps, self._invalid, self._vetoes = 0, 0, 0
        self.done, self.termination = False, None
        self.watch = anticheat.Watch(self.session)
        self.trace: list[dict[str, Any]] = []
        self._totals: list[float] = []
        self._history: list[dict[str, Any]] = []
        self._start: list[Problem] = []
        self._open: set[str] = set()
        self._new_major: set[str] = set()
        self._began = time.monotonic()
        self._case = -1
        self._next_case()
        return self._show(None)

    def _next_case(self) -> None:
        self._case += 1
        case = self._waiting.pop(0)
        self.patient, self.chart = case.patient, case.chart
        self._assess()
        mark = f"case{self._case}/" if self._case else ""
        self._mark = mark
        self._start += [msgspec.structs.replace(p, id=mark + p.id) for p in self.problems]
        self._open |= {mark + p.id for p in self.problems}
        self._resolved: set[str] = set()
        self._start_burden = self.burden["index"]

    def _assess(self) -> None:
        self.problems = assess(self.patient, self.knowledge, seen=False, chart=self.chart)
        self.hazards = hazards(self.problems, self.patient, self.knowledge, seen=False)
        self.risk = risk(value for value, _ in self.hazards)
        self.burden = burden(self.patient, self.problems, self.knowledge)

    def _show(self, last: dict[str, Any] | None) -> Observation:
        made = self.scenario
        difficulty = made.task.difficulty
        self.view = observe.look(self.patient, self.chart, self.knowledge, self._rng, difficulty, true=self.problems)
        self._choices = {c.candidate_id: c for c in self.view.candidates}
        self.observation = Observation(
            episode_id=self.episode_id,
            task_id=made.task.id,
            difficulty=difficulty,
            sub_environment=made.task.sub_environment,
            step_index=self.steps,
            steps_remaining=max(0, self.max_steps - self.steps),
            patient=observe.person(self.patient),
            medications=observe.medications(self.patient, self.knowledge, difficulty),
            labs=observe.labs(self.patient, self.knowledge),
            vitals=dict(self.patient.vitals),
            warnings=self.view.warnings,
            burden=dict(self.burden if self.view.whole else burden(self.patient, self.view.seen, self.knowledge)),
            conflicts=[{"id": f"c{at}", "text": text} for at, text in enumerate(made.conflicts, 1)],
            missing=self.view.missing,
            candidates=self.view.candidates,
            history=list(self._history),
            abstention=observe.abstention(self.view, self.uncertainty()),
            last_result=last,
        )
        return self.observation

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def scenario(self) -> Scenario:
        """The scenario under way; `invalid_transition` before `reset`."""
        if self._scenario is None:
            raise fail("invalid_transition", "no episode has begun", "Call reset first.")
        return self._scenario

    @property
    def max_steps(self) -> int:
        """The step budget."""
        return self.scenario.task.steps

    @property
    def task_id(self) -> str:
        """The task under way."""
        return self.scenario.task.id

    def true_problems(self) -> list[Problem]:
        """Every problem, hidden ones too. Not for agents."""
        return list(self.problems)

    def true_risk(self) -> float:
        """The risk of the true regimen. Not for agents."""
        return self.risk

    def good_choices(self) -> frozenset[str]:
        """Ids of the listed choices that end a problem safely. Not for agents."""
        return frozenset(self.view.good)

    def clone(self) -> Engine:
        """An independent engine in the same situation, for search."""
        made = copy.copy(self)
        made.patient = self.patient.copy()
        made.chart = type(self.chart)(set(self.chart.pairs), dict(self.chart.fields))
        made._rng = copy.deepcopy(self._rng)
        made._waiting = [type(c)(c.patient.copy(), c.chart) for c in self._waiting]
        made.watch, made.session = self.watch.copy(), anticheat.Session(list(self.session.reviews))
        for name in ("trace", "_totals", "_history", "_start"):
            setattr(made, name, list(getattr(self, name)))
        for name in ("_open", "_new_major", "_resolved"):
            setattr(made, name, set(getattr(self, name)))
        return made

    def public_state(self) -> dict[str, Any]:
        """What anybody may know of the episode."""
        made = self.scenario
        return {
            "episode_id": self.episode_id,
            "step_count": self.steps,
            "task_id": made.task.id,
            "split": made.split,
            "max_steps": self.max_steps,
            "done": self.done,
            "termination_reason": self.termination,
            "cumulative_reward": round(sum(self._totals), 3),
        }

    def uncertainty(self) -> float:
        """0..1: how much of what matters is unknown to the agent. It does not grow by waiting."""
        return min(1.0, 0.12 * len({tag for tag in self.view.tags.values() if tag.startswith("m")}))

    # -- a step ----------------------------------------------------------------------------------------------------

    def step(self, action: Action | str) -> StepResult:
        """Answers the observation. A str is a model's raw answer. `invalid_transition` after the end."""
        if self.done or self._scenario is None:
            raise fail("invalid_transition", "the episode is over, or none has begun", "Call reset.")
        begin = time.monotonic()
        parsed = parse.parse_action(action) if isinstance(action, str) else parse.Parsed(action, 1.0)
        candidate = self._choices.get(parsed.action.candidate_id) if parsed.action else None
        told = Told(self.observation, parsed, candidate, self._judge(candidate, parsed))
        flags = self.watch.check(
            observation=told.before, action=parsed.action, candidate=candidate, verdict=told.verdict, flags=parsed.flags,
            revealed=candidate is not None and self._reveals(candidate),
            review_warranted=candidate is not None and candidate.action_type in REVIEWS and self._review_warranted(),
        )  # fmt: skip
        hard = any(flag.startswith("hard:") for flag in flags)
        made = self._carry_out(candidate, told.verdict, blocked=hard)
        self.steps += 1
        values = reward.components(
            observation=told.before, action=parsed.action, candidate=candidate, verdict=told.verdict, transition=made,
            parsed_format=parsed.format, anti_cheat=flags, steps_done=self.steps, max_steps=self.max_steps,
        )  # fmt: skip
        readable = parsed.action is not None
        self._totals.append(reward.total(values, self.profile, verdict=told.verdict, readable=readable, hard=hard))
        self.termination = self._ended(made, hard, begin)
        self.done = self.termination is not None
        return self._result(told, made, values, flags)

    def _reveals(self, candidate: Candidate) -> bool:
        return candidate.action_type in GATHERING and transition.reveals(candidate, self.patient, self.chart)

    def _judge(self, candidate: Candidate | None, parsed: parse.Parsed) -> Verdict:
        if candidate is not None:
            return judge(candidate, self.patient, self.view.seen, self.knowledge, self._resolved)
        return Verdict(False, (parsed.problem or "no such candidate",))

    def _carry_out(self, candidate: Candidate | None, verdict: Verdict, *, blocked: bool) -> Transition:
        made = Transition(candidate.action_type if candidate else None, candidate.target_drug if candidate else None)
        made.risk_before, made.burden_before = self.risk, self.burden["index"]
        old, bare = {p.id for p in self.problems}, self._bare()
        made.review_warranted = self._review_warranted()
        if candidate is not None:
            made.supporting_facts = self._supporting(candidate)
            made.preconditions = self._preconditions(candidate)
        if candidate is not None and verdict.legal and not blocked:
            if candidate.action_type in REVIEWS:
                made.review_justified = made.review_warranted
            else:
                made.revealed = tuple(transition.carry_out(candidate, self.patient, self.chart, self.knowledge))
            self._note_lookup(candidate, made)
        if not verdict.legal:
            self._invalid += 1
            self._vetoes += verdict.contraindicated
        transition.pass_week(self.patient)
        self._assess()
        now = {p.id for p in self.problems}
        made.resolved = tuple(sorted(old - now))
        # What only comes to light, or is a lab that grew old, was not made by the choice.
        mine = candidate is not None and candidate.action_type not in GATHERING
        made.new_major = tuple(
            sorted(p.id for p in self.problems if mine and p.severity in SERIOUS and p.id not in old)
        )
        self._resolved |= set(made.resolved)
        self._open -= {self._mark + name for name in made.resolved}
        self._open |= {self._mark + name for name in now} & {p.id for p in self._start}  # what is back is open again
        self._new_major |= {self._mark + name for name in made.new_major}
        made.risk_after, made.burden_after = self.risk, self.burden["index"]
        made.newly_uncovered = len(self._bare() - bare)
        severities = self.patient.severity.values()
        made.severity_after = sum(severities) / len(severities) if severities else 0.0
        made.dose_errors = transition.dose_errors(self.patient, self.knowledge)
        event = transition.adverse_event(self.hazards, self.risk, self._rng)
        made.adverse_event = event and self.steps > 0  # nobody could have prevented one in the first week
        return made

    def _bare(self) -> set[str]:
        return {p.id for p in self.problems if p.kind == ProblemKind.UNTREATED_INDICATION}

    def _note_lookup(self, candidate: Candidate, made: Transition) -> None:
        outcome = "; ".join(made.revealed[:3]) or "done"
        target = candidate.target_drug or candidate.monitoring or candidate.evidence_id or ""
        row = {"step": self.steps, "candidate_id": candidate.candidate_id, "action_type": candidate.action_type}
        self._history.append({**row, "target": target, "outcome": outcome})

    def _supporting(self, candidate: Candidate) -> frozenset[str]:
        """Warnings and missing facts that the choice is about, if it is a good one."""
        if candidate.candidate_id not in self.view.good:
            return frozenset()
        return frozenset(candidate.rationale_tags)

    def _preconditions(self, candidate: Candidate) -> tuple[int, int]:
        """Before a drug is changed: has what is known to be missing about it been looked up?"""
        if candidate.action_type in GATHERING or candidate.action_type in REVIEWS or candidate.target_drug is None:
            return 0, 0
        asked = (
            {"creatinine"} if candidate.replacement_drug else {f"interactions:{candidate.target_drug}", "creatinine"}
        )
        open_fields = {item.field for item in self.view.missing}
        return len(asked - open_fields), len(asked)

    def _review_warranted(self) -> bool:
        serious = any(p.severity in SERIOUS for p in self.problems)
        return serious and (self.uncertainty() >= UNCERTAIN or not self.view.good)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _ended(self, made: Transition, hard: bool, begin: float) -> Termination | None:
        review = Termination.JUSTIFIED_REVIEW if made.review_justified else Termination.UNJUSTIFIED_REVIEW
        worst = max(self.patient.severity.values(), default=0.0)
        for holds, reason in (
            (hard, Termination.EXPLOIT_DETECTION),
            (made.review_justified is not None, review),
            (self._vetoes >= MAX_VETOES, Termination.SAFETY_VETO),
            (self._invalid >= MAX_INVALID, Termination.REPEATED_INVALID),
            (made.adverse_event or worst >= UNSTABLE, Termination.DESTABILISED),
            (self._safe() and not self._waiting, Termination.SAFE_RESOLUTION),
            (_late(self._began, self._episode_timeout_s), Termination.WALL_CLOCK_TIMEOUT),
            (_late(begin, self._step_timeout_s), Termination.STEP_TIMEOUT),
            (self.steps >= self.max_steps, Termination.STEP_BUDGET_EXHAUSTED),
        ):
            if holds:
                return reason
        if self._safe():
            self._next_case()
        return None

    def _safe(self) -> bool:
        """No serious problem, and no more burden than at the start."""
        return (
            not any(p.severity in SERIOUS for p in self.problems) and self.burden["index"] <= self._start_burden + 1e-9
        )

    def episode_return(self) -> float:
        """R_ep of what was played so far. What a justified review leaves open is half done."""
        reached = reward.outcome(
            self._start,
            self._open,
            destabilised=self.termination == Termination.DESTABILISED,
            n_new_major=len(self._new_major),
            open_share=0.5 if self.termination == Termination.JUSTIFIED_REVIEW else 1.0,
        )
        reached *= (self._case + 1) / self.scenario.task.cases
        return reward.episode_return(reached, self._totals, 1 - self.steps / (self.max_steps + 1))

    def _result(self, told: Told, made: Transition, values: dict[str, float], flags: list[str]) -> StepResult:
        verdict, readable = told.verdict, told.parsed.action is not None
        reasons = list(verdict.reasons)
        if self.termination is not None and self.termination not in SUCCESS:
            reasons.append(str(self.termination))
        if self.done:
            self.session.note(self.termination == Termination.UNJUSTIFIED_REVIEW)
        delta = {"risk": made.risk_after - made.risk_before, "burden": made.burden_after - made.burden_before}
        last: dict[str, Any] = {"legal": verdict.legal, "failure_reasons": reasons, "transition_delta": {}}
        if self.done:  # before, it would tell what is hidden
            last["transition_delta"] = {name: round(value, 4) for name, value in delta.items()}
        result = StepResult(
            observation=self._closing(last) if self.done else self._show(last),
            reward=self._totals[-1],
            breakdown=values,
            channels=reward.channels(values),
            done=self.done,
            termination=self.termination,
            verdict=verdict,
            transition=made,
            anti_cheat=flags,
            failure_reasons=reasons,
            checks={
                "readable": readable,
                "listed": told.candidate is not None,
                "legal": verdict.legal,
                "honest": not flags,
                "truncated": self.termination in TRUNCATED,
            },
            episode_return=self.episode_return() if self.done else None,
        )
        self.trace.append(trace.row(self.steps, told.before, told.candidate, result))
        return result

    def _closing(self, last: dict[str, Any]) -> Observation:
        """The last observation, without choices."""
        self.observation = msgspec.structs.replace(
            self.observation, step_index=self.steps, steps_remaining=max(0, self.max_steps - self.steps), candidates=[],
            last_result=last, history=list(self._history),
        )  # fmt: skip
        self._choices = {}
        return self.observation


def _late(since: float, limit_s: float | None) -> bool:
    return limit_s is not None and time.monotonic() - since > limit_s
