"""What is kept of sampled answers, and what is done when their rewards go wrong.

Owns: the records in samples.jsonl (every rollout, searchable), the metrics that a verdict gives, and the callback that
warns, pauses or stops. Does not own: the rules themselves (`health`), the verdicts (`envs.rewards`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bashgym.core.clock import epoch_s
from bashgym.core.errors import fail
from bashgym.core.files import append_line
from bashgym.envs.rewards import RewardResult, RewardStatus
from bashgym.store.run_dir import RunDir
from bashgym.training.health import Alarm, RewardHealth


class Rollout(msgspec.Struct, kw_only=True):
    """One line of samples.jsonl."""

    step: int
    """The optimizer step that it was sampled for, from 1."""
    split: str
    """train or eval."""
    refill: int
    """0 for a prompt of the batch itself, else the round of active sampling that drew it."""
    group: int
    """Which prompt of the batch, over all processes."""
    row: int
    """The dataset row's number, from 1."""
    prompt: Any
    completion: Any
    """A text, or the messages of a conversation with tools."""
    tokens: int
    truncated: bool
    """Ended by max_completion_length, not by a stop token."""
    reward: float | None
    """After shaping; null where the verifier gave no verdict."""
    parts: dict[str, float]
    status: str
    detail: str
    advantage: float
    kept: bool
    """Whether the loss saw it."""


class RolloutLog:
    """Appends rollouts to the run's samples.jsonl. After a resume, steps may stand there twice; the later one counts."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.file("samples.jsonl")

    def write(self, rollouts: Iterable[Rollout]) -> None:
        """One line each, with the time."""
        now = epoch_s()
        lines = [msgspec.json.encode({"ts": now, **msgspec.to_builtins(rollout)}) for rollout in rollouts]
        append_line(self._path, b"\n".join(lines), sync=False)


def status_metrics(result: RewardResult) -> dict[str, float]:
    """What one verdict adds to the metrics; the trainer logs their means."""
    return {
        **{f"rewards/{part}/mean": value for part, value in result.parts.items()},
        "verifier_error_rate": float(result.reward is None),
        "timeout_rate": float(result.status == RewardStatus.TIMEOUT),
        "tamper_rate": float(result.status == RewardStatus.TAMPERED),
    }


class HealthCallback(TrainerCallback):
    """Carries out `reward_health`. Every alarm is an event and a line in training.log, whatever follows."""

    def __init__(self, run: RunDir, action: str) -> None:
        self._run, self._action, self._health = run, action, RewardHealth()
        self._fatal: Alarm | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Recalls what earlier attempts logged, so that a resumed run neither forgets nor repeats an alarm."""
        for point in self._run.metrics():
            if point["step"] <= state.global_step:
                self._health.add(point)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Judges the point that was just logged."""
        if self._action == "off":
            return
        for alarm in self._health.add(logs or {}):
            print(f"[bashgym] reward health, step {state.global_step}: {alarm.message}", flush=True)
            self._run.append_event(
                "reward-alarm", step=state.global_step, code=alarm.code, message=alarm.message, action=self._action
            )
            if self._action == "pause":
                self._run.write_control("pause")
            elif self._action == "stop":
                self._fatal = self._fatal or alarm
                control.should_save = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stops before the next step, when the checkpoint has been written and sealed."""
        if self._fatal is not None:
            raise fail(
                "reward_unhealthy",
                f"stopped at step {state.global_step} by reward_health: {self._fatal.message}",
                hint=f"checkpoint-{state.global_step} is kept. To go on all the same, start again with reward_health warn.",
                fields=["reward_health"],
            )
