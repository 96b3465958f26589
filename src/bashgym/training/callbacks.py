"""Trainer callbacks: metrics out, orders in, checkpoints sealed. None of them changes what is learnt."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bashgym.core.files import atomic_write_json
from bashgym.store.checkpoints import prune, seal
from bashgym.store.metrics import MetricWriter
from bashgym.store.run_dir import RunDir


def write_phase(run: RunDir, phase: str, **facts: object) -> None:
    """Tells the supervisor where the trainer is: loading, training, saving, paused, done."""
    atomic_write_json(run.file("trainer.json"), {"phase": phase, **facts})


def peak_memory_gb() -> float:
    """Peak memory of this process on its device (CUDA), else peak resident memory, in GiB."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


class MetricCallback(TrainerCallback):
    """Hands every scalar that the trainer logs to the metric writer, with throughput and memory beside it."""

    def __init__(self, writer: MetricWriter) -> None:
        self._writer = writer
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
        values["peak_memory_gb"] = peak_memory_gb()
        self._writer.log(state.global_step, values)


class ControlCallback(TrainerCallback):
    """Obeys control.json at optimizer-step boundaries and the wall-clock budget."""

    def __init__(self, run: RunDir, max_minutes: object) -> None:
        self._run = run
        self._path = run.file("control.json")
        self._budget_s = 60 * float(max_minutes) if isinstance(max_minutes, int | float) else None
        self._begin = time.monotonic()
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

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Pause: save here and stop. Budget: stop here."""
        if self._path.exists() and self._run.control() == "pause" and state.global_step < state.max_steps:
            self.paused = True
            control.should_save = control.should_training_stop = True
        elif self._budget_s is not None and time.monotonic() - self._begin > self._budget_s:
            self._run.append_event("budget-reached", seconds=self._budget_s, step=state.global_step)
            print(f"[bashgym] max_minutes reached at step {state.global_step}", flush=True)
            control.should_training_stop = True
        return control

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
        """Called after the Trainer has written `checkpoint-<step>`."""
        checkpoint = self._run.file(f"checkpoint-{state.global_step}")
        seal(checkpoint)
        prune(self._run.path, self._keep)
