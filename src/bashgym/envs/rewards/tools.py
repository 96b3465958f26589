"""The multi-turn shell that TRL drives as a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bashgym.envs.rewards.types import RewardResult


class BashEnvironment:
    """One episode in one workspace."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.result: RewardResult | None = None

    def reset(self, **row: Any) -> str | None:
        """Begins an episode."""
        raise NotImplementedError

    def bash(self, command: str) -> str:
        """Runs one bash command in the task's folder and returns what it printed.

        Args:
            command: The command to run.

        Returns:
            Its output and, if it is not 0, its exit status.
        """
        raise NotImplementedError

    def get_reward(self) -> float | None:
        """The reward."""
        raise NotImplementedError


def bash_environment(request: Mapping[str, Any]) -> Callable[[], BashEnvironment]:
    """A factory of environments."""
    return lambda: BashEnvironment(request)
