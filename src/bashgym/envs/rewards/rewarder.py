"""Judges a batch of completions in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bashgym.envs.rewards.types import RewardItem, RewardResult


class Rewarder:
    """Judges completions by the request's reward mode."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """The verdicts in the order of `items`."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what judging keeps running."""


def make_rewarder(request: Mapping[str, Any], run_dir: Path | None = None) -> Rewarder:
    """The rewarder of a request."""
    return Rewarder(request)
