"""The OpenEnv environment: an `Engine`, its tasks, and a rubric that shows how a step was judged.

What it covers: a session sees its own episode only; every option and answer from outside is checked before it is used; an answer
is read by the parser that reads a model's text. What it does not: who may connect, and how often (see `server.app`).
"""

from __future__ import annotations

import html
import os
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from bashgym.core.errors import fail
from polyguard import DISCLAIMER, __version__
from polyguard.env import text, trace
from polyguard.env.engine import Engine
from polyguard.env.reward import LOW
from polyguard.env.tasks import COUNT, SPLITS, TASKS, scenario_id
from polyguard.env.types import TRUNCATED, Observation, StepResult
from polyguard.models import PolyGuardAction, PolyGuardObservation, PolyGuardState
from polyguard.rubric import StepRubric

PROFILE, TRACES = "POLYGUARD_REWARD_PROFILE", "POLYGUARD_TRACES"
"""Environment variables: the reward profile (strict), and a folder for traces of finished episodes (none)."""
MAX_LISTED = 1000
"""Tasks that `list_tasks` names; `num_tasks` tells how many there are."""
_Name = Annotated[str, msgspec.Meta(max_length=80)]


class ResetOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a client may ask of `reset`."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    episode_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    scenario_id: _Name | None = None
    """`<task>:<split>:<index>`, instead of those three."""
    task_id: _Name | None = None
    split: _Name = "train"
    index: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    """Without a task (or a difficulty, or a kind): that of `get_task`. With one: of its own scenarios."""
    difficulty: _Name | None = None
    sub_environment: _Name | None = None


class PolyGuardEnvironment(Environment[PolyGuardAction, PolyGuardObservation, PolyGuardState]):
    """Medication safety, simulated. Research only."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        profile = os.environ.get(PROFILE, "strict")
        super().__init__(rubric=StepRubric(profile))
        self._engine = Engine(profile=profile)
        self._begun = False

    # -- an episode ------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> PolyGuardObservation:
        """Begins an episode; options as in `ResetOptions`, `invalid_field` for any other."""
        given = {"seed": seed, "episode_id": episode_id, **kwargs}
        try:
            asked = msgspec.convert({key: value for key, value in given.items() if value is not None}, ResetOptions)
        except msgspec.ValidationError as error:
            raise fail("invalid_field", f"reset: {error}", "See ResetOptions.", sorted(kwargs)) from error
        task, split, index = _selected(asked)
        seen = self._engine.reset(
            task, split=split, index=index, seed=asked.seed, difficulty=asked.difficulty,
            sub_environment=asked.sub_environment, episode_id=asked.episode_id,
        )  # fmt: skip
        self._begun = True
        self._reset_rubric()
        return _face(seen, {"disclaimer": DISCLAIMER, "scenario_id": self._engine.scenario.id})

    def step(self, action: PolyGuardAction, timeout_s: float | None = None, **kwargs: Any) -> PolyGuardObservation:
        """Answers the observation. `timeout_s` is not used: a step takes a millisecond, and no clock is to decide a reward."""
        if not self._begun:
            hint = (
                "No episode has begun. Call reset first, over one WebSocket (/ws): plain HTTP calls share no session."
            )
            return _nothing(PolyGuardObservation(text=hint), "no_episode")
        if self._engine.done:
            return _nothing(_face(self._engine.observation, {}), "episode_over")
        result = self._engine.step(action.answer())
        observation = _face(result.observation, self._told(result))
        observation.done, observation.reward = result.done, result.reward
        self._apply_rubric(action, observation)
        self._keep_trace()
        return observation

    def _told(self, result: StepResult) -> dict[str, Any]:
        parts: dict[str, Any] = {
            "reward_breakdown": result.breakdown,
            "primary_reward_channels": result.channels,
            "gated": not result.verdict.legal or any(flag.startswith("hard:") for flag in result.anti_cheat),
            "termination_reason": result.termination,
            "truncated": result.termination in TRUNCATED,
            "anti_cheat_reasons": result.anti_cheat,
            "failure_reasons": result.failure_reasons,
            "checks": result.checks,
            "disclaimer": DISCLAIMER,
        }
        if result.episode_return is not None:
            parts["episode_return"] = result.episode_return
        return parts

    def _keep_trace(self) -> None:
        folder = os.environ.get(TRACES)
        if folder and self._engine.done:
            trace.write(Path(folder) / trace.file_name(self._engine.episode_id), self._engine.trace)

    @property
    def state(self) -> PolyGuardState:
        """The public state; an empty one before `reset`."""
        return PolyGuardState(**self._engine.public_state()) if self._begun else PolyGuardState()

    # -- tasks -----------------------------------------------------------------------------------------------------

    def list_splits(self) -> list[str]:
        """train, validation, test."""
        return list(SPLITS)

    def num_tasks(self, split: str) -> int:
        """How many scenarios a split has, over all tasks."""
        if split not in COUNT:
            raise fail("invalid_field", f"there is no split {split[:40]!r}", f"Known: {', '.join(SPLITS)}.", ["split"])
        return COUNT[split] * len(TASKS)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """The scenario at a place: tasks take turns, so that any prefix of a split has some of each."""
        if not 0 <= index < self.num_tasks(split):
            raise IndexError(index)
        place, turn = divmod(index, len(TASKS))
        task = list(TASKS.values())[turn]
        return {
            "id": scenario_id(task.id, split, place),
            "index": index,
            "split": split,
            "task_id": task.id,
            "difficulty": str(task.difficulty),
            "sub_environment": str(task.sub_environment),
            "max_steps": task.steps,
        }

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """The scenarios of a slice."""
        return [self.get_task(split, index) for index in range(self.num_tasks(split))[start:stop]]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The first scenarios of a split."""
        return self.get_task_range(split, 0, MAX_LISTED)

    # -- for people ------------------------------------------------------------------------------------------------

    def get_metadata(self) -> EnvironmentMetadata:
        """What this is."""
        return EnvironmentMetadata(
            name="polyguard",
            description=f"Simulated review of older adults' medication: find and mend what is unsafe. {DISCLAIMER}",
            readme_content=resources.files("polyguard").joinpath("README.md").read_text(encoding="utf-8"),
            version=__version__,
        )

    def render_web(self, observation: dict[str, Any]) -> str:
        """The prompt, as text."""
        return f"<p><b>{html.escape(DISCLAIMER)}</b></p><pre>{html.escape(str(observation.get('text', '')))}</pre>"

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """A button for each candidate."""
        found = []
        for item in observation.get("candidates", []):
            words = [item["candidate_id"], item["action_type"], item["target_drug"], item["replacement_drug"]]
            found.append((" ".join(str(word) for word in words if word), {"candidate_id": item["candidate_id"]}))
        return found


def _selected(asked: ResetOptions) -> tuple[str | None, str, int | None]:
    """(task, split, index in the task) that the options mean."""
    task, split, index = asked.task_id, asked.split, asked.index
    if asked.scenario_id is not None:
        task, _, rest = asked.scenario_id.partition(":")
        split, _, number = rest.partition(":")
        if not number.isascii() or not number.isdigit():
            raise fail("invalid_field", "a scenario_id is <task>:<split>:<index>", fields=["scenario_id"])
        index = int(number)
    elif index is not None and task is None and asked.difficulty is None and asked.sub_environment is None:
        index, turn = divmod(index, len(TASKS))
        task = list(TASKS)[turn]
    if index is not None and index >= COUNT.get(split, 0):
        raise fail(
            "invalid_field", f"there is no scenario {index} of the split {split[:40]!r}", fields=["index", "split"]
        )
    return task, split, index


def _face(seen: Observation, metadata: dict[str, Any]) -> PolyGuardObservation:
    return PolyGuardObservation(**msgspec.to_builtins(seen), text=text.render(seen), metadata=metadata)


def _nothing(observation: PolyGuardObservation, why: str) -> PolyGuardObservation:
    """An answer to a step that could not be made: over, the least reward, and why. Never an exception, never a change."""
    observation.done, observation.reward = True, LOW
    observation.metadata = {"error": why, "disclaimer": DISCLAIMER}
    return observation
