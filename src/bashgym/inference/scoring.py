"""One scoring job in this process: load, generate what is not there yet, append. Imports torch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from bashgym.core.errors import fail
from bashgym.core.files import append_line, atomic_write_json
from bashgym.inference.job import (
    PROGRESS,
    Completion,
    Decoding,
    Job,
    JobModel,
    Prompt,
    attempt_seed,
    drop_torn_tail,
    read_completions,
    read_job,
)
from bashgym.inference.local import Engine, Sampling, encode_prompt
from bashgym.training.load import choose_dtype, load_model, load_tokenizer

_PROGRESS_INTERVAL_S = 0.2
_THREADS = torch.get_num_threads()


def run(folder: Path) -> None:
    """Finishes the job in `folder`. Already finished completions are kept; a finished job loads no model."""
    job, prompts = read_job(folder)
    output = folder / job.output
    drop_torn_tail(output)
    done = read_completions(output)
    pairs = [(prompt, attempt) for prompt in prompts for attempt in range(job.decoding.attempts)]
    progress = _Progress(folder, len(done), len(pairs))
    if any((prompt.item_id, attempt) not in done for prompt, attempt in pairs):
        torch.set_num_threads(job.threads or _THREADS)
        model, tokenizer = load(job.model)
        _Worker(job, model, tokenizer, output, progress).finish(pairs, set(done))
    progress.write()


def load(source: JobModel, task: str = "CAUSAL_LM") -> tuple[Any, Any]:
    """(model in eval mode, tokenizer). An adapter is merged into its base, which makes every token cheaper."""
    folder = Path(source.path)
    if not any(folder.glob("*.safetensors")):
        raise fail("model_unsafe", f"{folder} has no safetensors weights; pickled ones are not loaded")
    model = load_model(folder, dtype=choose_dtype("auto"), task=task)
    if source.adapter_path is not None:
        adapter = Path(source.adapter_path)
        if not (adapter / "adapter_model.safetensors").is_file():
            raise fail("model_unsafe", f"{adapter} has no adapter_model.safetensors; pickled adapters are not loaded")
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter), is_trainable=False).merge_and_unload()
        if (adapter / "tokenizer_config.json").is_file():
            folder = adapter
    return model.eval(), load_tokenizer(folder)


class _Worker:
    """Generates the missing completions of one job.

    Batches are cut from the whole job, finished pairs included, and a batch with a missing pair is generated whole: a
    row's logits depend on its batch in the last bits, and so a resumed job gives what an undisturbed one gives.
    """

    def __init__(self, job: Job, model: Any, tokenizer: Any, output: Path, progress: _Progress) -> None:
        self._job, self._tokenizer, self._output, self._progress = job, tokenizer, output, progress
        self._engine = Engine(model, tokenizer)

    def finish(self, pairs: list[tuple[Prompt, int]], done: set[tuple[str, int]]) -> None:
        """Batch by batch, shortest prompts first."""
        ids = {prompt.item_id: encode_prompt(self._tokenizer, prompt.messages, prompt.tools) for prompt, _ in pairs}
        order = sorted(pairs, key=lambda pair: len(ids[pair[0].item_id]))
        size = self._job.decoding.batch_size
        for start in range(0, len(order), size):
            batch = [(prompt.item_id, attempt) for prompt, attempt in order[start : start + size]]
            missing = [key for key in batch if key not in done]
            if missing:
                self._check_parent()
                self._generate(batch, [ids[item] for item, _ in batch], set(missing))

    def _generate(self, batch: list[tuple[str, int]], ids: list[list[int]], missing: set[tuple[str, int]]) -> None:
        decoding: Decoding = self._job.decoding
        seeds = [attempt_seed(decoding.seed, item, attempt) for item, attempt in batch]
        sampling = Sampling(decoding.max_new_tokens, decoding.temperature, decoding.top_p)
        answers = self._engine.decode(ids, seeds, sampling)
        lines, tokens = [], 0
        for (item, attempt), seed, answer in zip(batch, seeds, answers, strict=True):
            tokens += answer.n_tokens
            if (item, attempt) in missing:
                line = Completion(
                    item_id=item,
                    attempt=attempt,
                    seed=seed,
                    completion=answer.text,
                    n_tokens=answer.n_tokens,
                    finish_reason=answer.finish_reason,
                )
                lines.append(msgspec.json.encode(line))
        append_line(self._output, b"\n".join(lines))
        self._progress.add(len(lines), tokens)

    def _check_parent(self) -> None:
        if self._job.parent_pid not in (None, os.getppid()):
            raise fail("interrupted", "the process that asked for these scores is gone")


class _Progress:
    """progress.json, replaced at most five times a second."""

    def __init__(self, folder: Path, done: int, total: int) -> None:
        self._path, self._done, self._total = folder / PROGRESS, done, total
        self._begin = self._written = time.monotonic()
        self._tokens = 0
        self.write()

    def add(self, done: int, tokens: int) -> None:
        """Counts a batch."""
        self._done, self._tokens = self._done + done, self._tokens + tokens
        if time.monotonic() - self._written >= _PROGRESS_INTERVAL_S:
            self.write()

    def write(self) -> None:
        """The state of now."""
        self._written = time.monotonic()
        rate = self._tokens / max(1e-9, self._written - self._begin)
        atomic_write_json(self._path, {"done": self._done, "total": self._total, "tokens_per_second": round(rate, 1)})
