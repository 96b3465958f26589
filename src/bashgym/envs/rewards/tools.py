"""The multi-turn shell that TRL drives as a tool, and whose episode judges itself.

TRL makes every public method but `reset` and `get_reward` a tool of the model, so `BashEnvironment` has `bash` and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.envs.rewards.environment import as_reward, parse_environment
from bashgym.envs.rewards.types import RewardResult, RewardStatus
from bashgym.envs.rollout import Episode
from bashgym.envs.sandbox import Limits


class BashEnvironment:
    """Episodes one after another, each in a workspace of its own that is removed when it is judged, or with this object.

    Files stay from command to command; processes, variables and the current folder do not.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._limits = Limits(wall_s=float(request["reward_timeout_s"]))
        self._most = int(request["max_tool_calls_per_episode"])
        self._episode: Episode | None = None
        self.result: RewardResult | None = None
        """The verdict on the last episode; None while it goes on."""

    def reset(self, **row: Any) -> str | None:
        """Begins an episode in row["environment"]. The prompt holds the instruction, so there is nothing to add to it.

        A row whose environment cannot be set up is its own fault: its episode has no reward.
        """
        self._end()
        self.result = None
        try:
            self._episode = Episode(
                parse_environment(row.get("environment")), limits=self._limits, max_commands=self._most
            )
        except BashGymError as error:
            self.result = RewardResult(None, {}, RewardStatus.ERROR, str(error))
        return None

    def bash(self, command: str) -> str:
        """Runs one bash command in the task's folder. Files stay for the next command; variables and processes do not.

        Args:
            command: The command to run.

        Returns:
            What it printed, its errors, and its exit status if that is not 0.
        """
        if self._episode is None:
            return "The episode is over."
        if not isinstance(command, str):
            return "command must be a string."
        step = self._episode.run(command)
        if step is None:
            return "The episode's time is up."
        shown = [step.stdout.rstrip("\n"), step.stderr.rstrip("\n")]
        ended = f" ({step.stopped})" if step.stopped != "none" else ""
        shown += [f"[exit status {step.exit_code}{ended}]"] if step.exit_code else []
        return "\n".join(filter(None, shown))

    def get_reward(self) -> float | None:
        """Judges what the commands left behind and removes the workspace; asked again, the same verdict. None: no verdict."""
        if self.result is None and self._episode is not None:
            try:
                self.result = as_reward(self._episode.judge())
            except BashGymError as error:
                self.result = RewardResult(None, {}, RewardStatus.ERROR, str(error))
        self._end()
        return self.result.reward if self.result else None

    def _end(self) -> None:
        if self._episode is not None:
            self._episode.close()
        self._episode = None
