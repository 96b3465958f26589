"""Checks against policies that earn reward without doing the work. Soft flags cost, hard ones end the episode."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polyguard.env.types import (
    GATHERING,
    REVIEWS,
    Action,
    ActionType,
    Candidate,
    Observation,
    ProblemKind,
    Severity,
    Verdict,
)

MAX_REPEATED_ACTIONS = 3
MAX_KEEP_REGIMEN_RATIO = 0.6
MAX_REVIEW_RATIO = 0.5
REVIEW_WINDOW = 10
IDS = (
    "repeat_loop",
    "keep_abuse",
    "review_abuse",
    "candidate_mismatch",
    "illegal_selection",
    "high_risk_noop",
    "parser_exploit",
    "failed_noop_retry",
    "fact_fabrication",
    "monitor_spam",
    "flip_flop",
)
Key = tuple[str, str, str]


class Session(msgspec.Struct):
    """What outlives an episode: how the last ones of one user ended."""

    reviews: list[bool] = []
    """Whether each of the last episodes ended in an unjustified review."""

    def note(self, unjustified_review: bool) -> None:
        """At the end of an episode."""
        self.reviews = [*self.reviews, unjustified_review][-REVIEW_WINDOW:]

    @property
    def abusive(self) -> bool:
        """Whether more than half of a full window were unjustified reviews."""
        return len(self.reviews) == REVIEW_WINDOW and sum(self.reviews) > MAX_REVIEW_RATIO * REVIEW_WINDOW


class Watch:
    """The checks of one episode."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session
        self._keys: list[Key] = []
        self._kinds: list[ActionType] = []
        self._rejected: set[Key] = set()
        self._counts: dict[str, int] = {}
        self._idle = 0
        self._swaps: list[tuple[str, str]] = []

    def copy(self) -> Watch:
        """An independent one."""
        made = Watch(self._session)
        made._keys, made._kinds = list(self._keys), list(self._kinds)
        made._rejected, made._counts = set(self._rejected), dict(self._counts)
        made._idle, made._swaps = self._idle, list(self._swaps)
        return made

    def check(
        self,
        *,
        observation: Observation,
        action: Action | None,
        candidate: Candidate | None,
        verdict: Verdict,
        flags: Sequence[str] = (),
        revealed: bool = False,
    ) -> list[str]:
        """`<level>:<id>` of everything that this step shows."""
        found = list(flags)
        if action is not None and (
            candidate is None or action.expected_action_type not in (None, candidate.action_type)
        ):
            found.append(self._level("candidate_mismatch", hard_from=2))
        if action is not None and not set(action.cited_facts) <= observation.facts():
            found.append("soft:fact_fabrication")
        if candidate is not None:
            found += self._chosen(observation, candidate, verdict, revealed)
        if self._session is not None and self._session.abusive and candidate and candidate.action_type in REVIEWS:
            found.append("soft:review_abuse")
        return found

    def _chosen(self, observation: Observation, candidate: Candidate, verdict: Verdict, revealed: bool) -> list[str]:
        key: Key = (
            candidate.action_type,
            candidate.target_drug or candidate.monitoring or candidate.evidence_id or "",
            candidate.replacement_drug or "",
        )
        found = []
        if not verdict.legal:
            found.append("soft:illegal_selection")
            if key in self._rejected:
                found.append("soft:failed_noop_retry")
            self._rejected.add(key)
        self._keys.append(key)
        self._kinds.append(candidate.action_type)
        last = self._keys[-MAX_REPEATED_ACTIONS - 1 :]
        if len(last) > MAX_REPEATED_ACTIONS and len({k[:2] for k in last}) == 1:
            found.append("hard:repeat_loop")
        keeps, n = self._kinds.count(ActionType.KEEP_REGIMEN), len(self._kinds)
        if candidate.action_type == ActionType.KEEP_REGIMEN:
            if n >= 3 and keeps / n > MAX_KEEP_REGIMEN_RATIO:
                found.append("hard:keep_abuse" if n >= 5 else "soft:keep_abuse")
            if any(
                w.kind == ProblemKind.DDI and w.severity in (Severity.CONTRAINDICATED, Severity.MAJOR)
                for w in observation.warnings
            ):
                found.append(self._level("high_risk_noop", hard_from=2))
        self._idle = self._idle + 1 if candidate.action_type in GATHERING and not revealed else 0
        if self._idle > 3:
            found.append("soft:monitor_spam")
        if candidate.replacement_drug and verdict.legal:
            swap = (candidate.target_drug or "", candidate.replacement_drug)
            if self._swaps and self._swaps[-1] == swap[::-1]:
                found.append("soft:flip_flop")
            self._swaps.append(swap)
        return found

    def _level(self, name: str, hard_from: int) -> str:
        self._counts[name] = self._counts.get(name, 0) + 1
        return f"{'hard' if self._counts[name] >= hard_from else 'soft'}:{name}"
