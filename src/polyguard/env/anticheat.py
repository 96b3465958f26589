"""Checks against policies that earn reward without doing the work. Soft flags cost, hard ones end the episode.

A `Watch` sees one episode, a `Session` the ends of a user's last ones. Neither knows what is hidden: that the engine has to say.
"""

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
MAX_FRUITLESS = 3
"""Look-ups in an episode that may tell nothing new."""
Key = tuple[object, ...]
_SERIOUS = (Severity.CONTRAINDICATED, Severity.MAJOR)


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
        self._chosen: list[Key] = []
        """(type, what it is about) of every choice."""
        self._rejected: set[Key] = set()
        self._counts: dict[str, int] = {}
        self._moves: set[Key] = set()
        """(what was changed, from, to) of every legal change."""

    def copy(self) -> Watch:
        """An independent one."""
        made = Watch(self._session)
        made._chosen, made._moves = list(self._chosen), set(self._moves)
        made._rejected, made._counts = set(self._rejected), dict(self._counts)
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
        review_warranted: bool = False,
    ) -> list[str]:
        """`<level>:<id>` of everything that this step shows. `revealed`: a look-up that tells something new."""
        found = list(flags)
        if action is not None:
            kind = action.expected_action_type
            if candidate is None or kind not in (None, candidate.action_type):
                found.append(self._again("candidate_mismatch"))
            if not set(action.cited_facts) <= observation.facts():
                found.append("soft:fact_fabrication")
        if candidate is None:
            return found
        self._chosen.append((candidate.action_type, _about(candidate)))
        found += self._refused(candidate, verdict) + self._loops(candidate, verdict)
        if candidate.action_type == ActionType.KEEP_REGIMEN:
            found += self._idle(observation)
        elif candidate.action_type in GATHERING and not revealed:
            found += ["soft:monitor_spam"] if self._count("fruitless") > MAX_FRUITLESS else []
        elif candidate.action_type in REVIEWS and not review_warranted and self._session and self._session.abusive:
            found.append("soft:review_abuse")
        move = _move(observation, candidate) if verdict.legal else None
        if move is not None:
            found += ["soft:flip_flop"] if (move[0], move[2], move[1]) in self._moves else []
            self._moves.add(move)
        return found

    def _refused(self, candidate: Candidate, verdict: Verdict) -> list[str]:
        if verdict.legal:
            return []
        key: Key = (
            candidate.action_type, _about(candidate), candidate.replacement_drug, candidate.dose_bucket,
            candidate.daily_mg, candidate.taper_step_pct,
        )  # fmt: skip
        found = ["soft:illegal_selection"] + ["soft:failed_noop_retry"] * (key in self._rejected)
        self._rejected.add(key)
        return found

    def _loops(self, candidate: Candidate, verdict: Verdict) -> list[str]:
        """A withdrawal goes on step after step: that is no loop, as long as each step is due."""
        if candidate.action_type == ActionType.CONTINUE_TAPER and verdict.legal:
            return []
        last = self._chosen[-MAX_REPEATED_ACTIONS - 1 :]
        return ["hard:repeat_loop"] if len(last) > MAX_REPEATED_ACTIONS and len(set(last)) == 1 else []

    def _idle(self, observation: Observation) -> list[str]:
        keeps, n = sum(kind == ActionType.KEEP_REGIMEN for kind, _ in self._chosen), len(self._chosen)
        found = []
        if n >= 3 and keeps / n > MAX_KEEP_REGIMEN_RATIO:
            found.append("hard:keep_abuse" if n >= 5 else "soft:keep_abuse")
        if any(w.kind == ProblemKind.DDI and w.severity in _SERIOUS for w in observation.warnings):
            found.append(self._again("high_risk_noop"))
        return found

    def _count(self, name: str) -> int:
        self._counts[name] = self._counts.get(name, 0) + 1
        return self._counts[name]

    def _again(self, name: str) -> str:
        """Soft at first, hard from the second time on."""
        return f"{'hard' if self._count(name) >= 2 else 'soft'}:{name}"


def _about(candidate: Candidate) -> str:
    return candidate.target_drug or candidate.monitoring or candidate.evidence_id or ""


def _move(observation: Observation, candidate: Candidate) -> Key | None:
    """(what, from, to) of a choice that can be undone: a replacement, or another dose."""
    if candidate.replacement_drug is not None:
        return "drug", candidate.target_drug, candidate.replacement_drug
    if candidate.action_type == ActionType.ADJUST_DOSE_BUCKET:
        for row in observation.medications:
            if row["drug"] == candidate.target_drug:
                return candidate.target_drug, str(row["dose_bucket"]), str(candidate.dose_bucket)
    return None
