"""Our environments behind an OpenEnv server: `reset` begins an episode, `step` runs a command, `submit` ends and judges it.

Imports openenv. One episode per session; the sandbox, the limits and the verifier are those of `envs.rollout`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from bashgym.core.errors import fail
from bashgym.envs.rollout import Episode
from bashgym.envs.spec import EnvironmentSpec

SUBMIT = "submit"
MAX_SESSIONS = 16


class TerminalAction(Action):
    """One shell command, or the word `submit`."""

    command: str = Field(description="A bash command to run in /work; `submit` ends the episode and has it judged.")


class TerminalObservation(Observation):
    """What a command showed. `reward` is null until the episode is done."""

    environment_id: str = ""
    instruction: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    stopped: str = "none"
    verifier_status: str = ""


class TerminalEnvironment(Environment):
    """A session: one episode at a time over a fixed list of environments."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, specs: Sequence[EnvironmentSpec]) -> None:
        super().__init__()
        self._specs, self._state = list(specs), State()
        self._episode: Episode | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, index: int | None = None, **_: Any
    ) -> TerminalObservation:
        """A new episode of environment `index`, else of one drawn by `seed`, else of the first."""
        self.close()
        if index is None:
            index = 0 if seed is None else random.Random(seed).randrange(len(self._specs))  # noqa: S311 - a draw of tasks
        if not 0 <= index < len(self._specs):
            raise fail("environment_invalid", f"index {index} is outside 0 to {len(self._specs) - 1}", fields=["index"])
        spec = self._specs[index]
        self._episode = Episode(spec)
        self._state = State(episode_id=episode_id or spec.id, step_count=0)
        return TerminalObservation(environment_id=spec.id, instruction=spec.instruction)

    def step(self, action: TerminalAction, timeout_s: float | None = None, **_: Any) -> TerminalObservation:
        """Runs the command; at `submit`, or when no command is left, the verdict."""
        if self._episode is None:
            raise fail("usage", "there is no episode: call reset first")
        self._state.step_count += 1
        if action.command.strip() == SUBMIT:
            return self._judged()
        step = self._episode.run(action.command)
        if step is None or len(self._episode.steps) > self._episode.allowed:
            return self._judged()
        return TerminalObservation(
            stdout=step.stdout, stderr=step.stderr, exit_code=step.exit_code, stopped=str(step.stopped)
        )

    def _judged(self) -> TerminalObservation:
        assert self._episode is not None  # noqa: S101 - `step` has looked
        result = self._episode.judge()
        self.close()
        return TerminalObservation(done=True, reward=result.reward, verifier_status=str(result.verifier_status))

    @property
    def state(self) -> State:
        """Steps taken, and the id that `reset` was given."""
        return self._state

    def close(self) -> None:
        """Removes the workspace of an episode that nobody finished."""
        if self._episode is not None:
            self._episode.close()
            self._episode = None


def build_app(specs: Sequence[EnvironmentSpec]) -> Any:
    """The server of these environments as an ASGI app. Serve it behind a guard."""
    if not specs:
        raise fail("environment_invalid", "there is no environment to serve")
    return create_fastapi_app(
        lambda: TerminalEnvironment(specs), TerminalAction, TerminalObservation, max_concurrent_envs=MAX_SESSIONS
    )
