"""What the checks of one card share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.evidence.binding import bind, read_or_empty
from bashgym.evidence.bundle import Integrity
from bashgym.evidence.card import TIERS, RunCard
from bashgym.evidence.findings import Book
from bashgym.methods import registry
from bashgym.methods.spec import Method

_TERMINAL_WORDS = ("terminal", "shell", "bash")


@dataclass
class Context:
    """A card under judgement. Checks read it, add findings to `book` and kinds to `accepted`."""

    card: RunCard
    card_dir: Path
    promotion: bool
    run_dir: Path | None
    """None when the run is not on this machine."""
    book: Book
    files: dict[str, Path] = field(default_factory=dict)
    """Kind -> file, for entries whose bytes are as bound."""
    states: dict[str, Integrity] = field(default_factory=dict)
    """Kind -> what re-hashing found."""
    accepted: set[str] = field(default_factory=set)
    """Kinds whose content passed its checks."""
    gate: dict[str, Any] = field(default_factory=dict)
    """The release gate, computed anew where the run is here."""
    suite: dict[str, Any] = field(default_factory=dict)
    observed: dict[str, float | None] = field(default_factory=dict)
    series: set[str] = field(default_factory=set)
    """Metric names seen in the run's metrics."""
    smoke: bool = False
    """The release evidence is of a smoke evaluation."""

    @cached_property
    def run(self) -> dict[str, Any]:
        """The run's identity, measured now; what the card recorded when the run is not here."""
        return bind(self.run_dir, self.card_dir) if self.run_dir else dict(self.card.run)

    @cached_property
    def method(self) -> Method | None:
        """The card's training method, None if there is no such one."""
        try:
            return registry.get(self.card.training_method)
        except BashGymError:
            return None

    @property
    def tier(self) -> int:
        """Rank of the claim tier, 0 for local_smoke and for an unknown one."""
        return TIERS.index(self.card.claim_tier) if self.card.claim_tier in TIERS else 0

    @property
    def strict(self) -> bool:
        """Whether the card claims more than that the path works."""
        return self.promotion or self.tier > 0

    @property
    def terminal(self) -> bool:
        """Whether the model is meant to act in a terminal: by its profile, its stated task or its held-out suite."""
        request = read_or_empty(self.run_dir / "request.json") if self.run_dir else {}
        tracking = request.get("tracking")
        task = str(tracking.get("task_type", "")) if isinstance(tracking, dict) else ""
        profile, suite = str(request.get("training_profile", "")), str(self.suite.get("name", ""))
        return any(word in text.lower() for text in (task, profile, suite) for word in _TERMINAL_WORDS)
