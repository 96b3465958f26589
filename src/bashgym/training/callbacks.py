"""Trainer callbacks: metrics out, orders in, checkpoints sealed. None of them changes what is learnt."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bashgym.store import budget
from bashgym.store.checkpoints import prune, seal
from bashgym.store.metrics import MetricWriter
from bashgym.store.run_dir import RunDir
from bashgym.training import ranks

_PAUSE, _LIMIT = 1, 2
"""Orders, as numbers that travel between processes."""


def write_phase(run: RunDir, phase: str, **facts: object) -> None:
    """Tells the supervisor where the trainer is: loading, training, saving, paused, done."""
    run.write_json("trainer.json", {"phase": phase, **facts})


def peak_memory_gb() -> float:
    """Peak memory of this process on its device (CUDA), else peak resident memory, in GiB."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


class MetricCallback(TrainerCallback):
    """Hands every scalar that the trainer logs to the metric writer, with throughput and memory beside it."""

    def __init__(self, writer: MetricWriter, control: ControlCallback) -> None:
        self._writer, self._control = writer, control
        self._tokens = self._time = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the throughput clock."""
        self._time = time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """One point a log call."""
        values = dict(logs or {})
        now = time.monotonic()
        tokens = values.get("num_tokens")
        if isinstance(tokens, int | float):
            if self._tokens and now > self._time and tokens > self._tokens:
                values["tokens_per_second"] = (tokens - self._tokens) / (now - self._time)
            self._tokens, self._time = float(tokens), now
        values["peak_memory_gb"] = max(self._control.peak_gb, peak_memory_gb())
        self._writer.log(state.global_step, values)


class ControlCallback(TrainerCallback):
    """Obeys control.json at optimizer-step boundaries and the limits on time and money."""

    def __init__(self, run: RunDir, request: dict[str, Any]) -> None:
        self._run = run
        self._path = run.file("control.json")
        self._limit = budget.limit(request)
        self._used_s, self._counted = budget.used_s(run), time.monotonic()
        self._step_s = 0.0
        self.peak_gb = 0.0
        """Peak memory of the process that needs most, at the last step."""
        self.paused = False
        self.finished = False
        """True when the last step came before the order was seen."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tells the supervisor that steps begin."""
        write_phase(
            self._run,
            "training",
            total_steps=state.max_steps,
            start_step=state.global_step,
            epochs=args.num_train_epochs,
        )
        self._used_s, self._counted = budget.used_s(self._run), time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Pause or a limit: save here and stop, all processes at the same step, as the first one finds."""
        found = self._order(state) if ranks.is_first() else 0
        order, self.peak_gb = ranks.largest(found, peak_memory_gb())
        self.paused = order == _PAUSE
        if order:
            control.should_save = control.should_training_stop = True
        return control

    def _order(self, state: TrainerState) -> int:
        spent = self._spent()
        if state.global_step >= state.max_steps:
            return 0
        if self._path.exists() and self._run.control() == "pause":
            return _PAUSE
        if spent:
            self._stop_for_limit(state)
        return _LIMIT if spent else 0

    def _spent(self) -> bool:
        """True if another step as long as the last one would pass the limit."""
        now = time.monotonic()
        self._step_s, self._counted = now - self._counted, now
        self._used_s += self._step_s
        return self._limit is not None and self._used_s + self._step_s > self._limit.seconds

    def _stop_for_limit(self, state: TrainerState) -> None:
        name = self._limit.field if self._limit else ""
        facts = {"limit": name, "step": state.global_step, "total_steps": state.max_steps}
        self._run.append_event("budget-reached", **facts, used_s=round(self._used_s, 1))
        print(f"[bashgym] stopped by {name} at step {state.global_step} of {state.max_steps}", flush=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notes whether all steps were done."""
        self.finished = state.global_step >= state.max_steps


class CheckpointCallback(TrainerCallback):
    """Seals each checkpoint with hashes, and only then lets older ones go."""

    def __init__(self, run: RunDir, keep: int) -> None:
        self._run, self._keep = run, keep

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called after the Trainer has written its part of `checkpoint-<step>`."""
        ranks.wait()  # each process writes its own random state
        if ranks.is_first():
            seal(self._run.file(f"checkpoint-{state.global_step}"))
            prune(self._run.path, self._keep)
