"""The composition root: `Workspace.open()` hands out the services. Surfaces use nothing below it directly."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from bashgym.core.settings import Settings

if TYPE_CHECKING:
    from bashgym.evals.service import EvalService
    from bashgym.ledger.service import Ledger
    from bashgym.models.catalog import ModelRef
    from bashgym.runs.service import RunService


class Workspace:
    """The services of one settings value. Each is made on first use, so a command pays only for what it needs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @classmethod
    def open(cls, settings: Settings | None = None) -> Workspace:
        """The workspace of the given settings, by default those of the environment."""
        return cls(settings or Settings.from_env())

    @cached_property
    def ledger(self) -> Ledger:
        """Projects, runs, metrics, events."""
        from bashgym.ledger.service import Ledger

        return Ledger(self.settings)

    @cached_property
    def runs(self) -> RunService:
        """Start, watch and control training runs."""
        from bashgym.runs.service import RunService

        return RunService(self.settings, self.ledger)

    @cached_property
    def evals(self) -> EvalService:
        """Evaluations and comparisons."""
        from bashgym.evals.service import EvalService

        return EvalService(self.settings, self.model)

    def model(self, name: str, *, scorers: bool = False) -> ModelRef:
        """A model by name; a reward model only where `scorers`."""
        from bashgym.models.catalog import resolve

        return resolve(name, self.settings, scorers=scorers)
