"""Generations kept while training, for a person to read: samples.jsonl."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bashgym.core.clock import epoch_s
from bashgym.core.files import append_line
from bashgym.store.run_dir import RunDir

if TYPE_CHECKING:
    from bashgym.training.loop import Built

MAX_NEW_TOKENS = 64


class SampleCallback(TrainerCallback):
    """Greedy answers to a few training prompts at every save and at the end. Leaves all random state as it was."""

    def __init__(self, run: RunDir, built: Built, count: int) -> None:
        self._run, self._tokenizer = run, built.tokenizer
        self._prompts, self._expected = built.sample_prompts[:count], built.expected[:count]
        self._last = -1

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """At checkpoints."""
        self._sample(state.global_step, kwargs["model"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """At the end."""
        self._sample(state.global_step, kwargs["model"])

    def _sample(self, step: int, model: Any) -> None:
        if not self._prompts or step == self._last:
            return
        self._last = step
        from bashgym.inference.local import generate

        state = (random.getstate(), np.random.get_state(), torch.get_rng_state())
        training = model.training
        model.eval()
        try:
            answers = generate(
                model, self._tokenizer, self._prompts, max_new_tokens=MAX_NEW_TOKENS, temperature=0.0, seed=0
            )
        finally:
            model.train(training)
            random.setstate(state[0])
            np.random.set_state(state[1])
            torch.set_rng_state(state[2])
        for prompt, answer, expected in zip(self._prompts, answers, self._expected, strict=True):
            line = {"step": step, "ts": epoch_s(), "prompt": prompt, "completion": answer, "expected": expected}
            append_line(self._run.file("samples.jsonl"), msgspec.json.encode(line), sync=False)
