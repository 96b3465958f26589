"""One training attempt from request to exit code, the same for every method.

The method's builder (named in the registry) returns a ready TRL trainer; everything around it (threads, seeds,
resume, callbacks, retention, error translation) is here and nowhere else.
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, set_seed
from transformers.utils import logging as transformers_logging

from bashgym.core.errors import BashGymError, fail
from bashgym.methods import registry
from bashgym.store.checkpoints import last_valid
from bashgym.store.metrics import MetricWriter
from bashgym.store.run_dir import RunDir
from bashgym.training import EXIT_PAUSED, ranks, retention
from bashgym.training.callbacks import CheckpointCallback, ControlCallback, MetricCallback, write_phase
from bashgym.training.samples import SampleCallback
from bashgym.training.trainer_args import is_sharded

_NEARLY_NOTHING_BYTES = 256 << 10


@dataclass
class Job:
    """What a builder gets."""

    run: RunDir
    request: dict[str, Any]
    manifest: dict[str, Any]


@dataclass
class Built:
    """What a builder returns."""

    trainer: Trainer
    tokenizer: Any
    sample_prompts: list[list[dict[str, Any]] | str]
    """Conversations or plain texts (without the answer) to generate from while training."""
    expected: list[str]
    """The reference answers of `sample_prompts`, for a person to compare."""
    callbacks: list[TrainerCallback] = field(default_factory=list)
    """What only this method needs, run before the shared ones."""


def run(run_path: Path, rank: int | None = None) -> int:
    """Trains, as one of several processes where `rank` is given.

    Returns 0 or `EXIT_PAUSED`, the same in all of them; raises a BashGymError on anything that a user can act on.
    """
    try:
        code = _attempt(ranks.join(run_path, rank))
        ranks.leave()
        return code
    except BashGymError:
        raise
    except torch.OutOfMemoryError as error:
        raise fail(
            "memory_short", f"the device ran out of memory: {error}", hint="Lower batch_size or max_seq_length."
        ) from error
    except MemoryError as error:
        raise fail("memory_short", "the host ran out of memory", hint="Lower batch_size or max_seq_length.") from error
    except Exception as error:  # boundary: what the libraries raise becomes a typed failure, its traceback in the log
        traceback.print_exc()
        if _disk_is_full(run_path, error):
            hint = "Free space; `bashgym training resume` then continues from the last whole checkpoint."
            raise fail("disk_full", f"the disk of {run_path} is full: {str(error)[:300]}", hint=hint) from error
        raise fail(
            "training_failed", f"{type(error).__name__}: {str(error)[:500]}", hint="training.log has the traceback."
        ) from error


def _attempt(run_dir: RunDir) -> int:
    job = Job(run_dir, run_dir.request(), run_dir.manifest())
    write_phase(job.run, "loading")
    _prepare_process(job.request)
    method = registry.get(str(job.request["strategy"]))
    module, _, function = str(method.builder).partition(":")
    built: Built = getattr(importlib.import_module(module), function)(job)
    control = ControlCallback(job.run, job.request)
    writer = MetricWriter(job.run.metrics_path) if ranks.is_first() else None
    trainer = built.trainer
    for callback in (*built.callbacks, *_shared_callbacks(job, built, writer, control)):
        trainer.add_callback(callback)
    try:
        trainer.train(resume_from_checkpoint=_resume_point(job.run))
    finally:
        if writer is not None:
            writer.close()
    if control.paused and not control.finished:
        write_phase(job.run, "paused")
        return EXIT_PAUSED
    write_phase(job.run, "saving")
    retention.finish(job, trainer, built.tokenizer)
    write_phase(job.run, "done")
    return 0


def _shared_callbacks(
    job: Job, built: Built, writer: MetricWriter | None, control: ControlCallback
) -> list[TrainerCallback]:
    """What every method gets, in this order; the records are the first process' alone."""
    found: list[TrainerCallback] = [MetricCallback(writer, control)] if writer is not None else []
    found.append(CheckpointCallback(job.run, int(job.request["checkpoint_limit"])))
    if writer is not None and not is_sharded(job.request):  # one process alone cannot generate from shards
        found.append(SampleCallback(job.run, built, int(job.request["sample_prompts"])))
    return [*found, control]


def _disk_is_full(run_path: Path, error: Exception) -> bool:
    """The libraries wrap ENOSPC in errors of their own, some without its words."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    return os.strerror(errno.ENOSPC) in str(error) or shutil.disk_usage(run_path).free < _NEARLY_NOTHING_BYTES


def _prepare_process(request: dict[str, Any]) -> None:
    transformers_logging.disable_progress_bar()
    threads = request.get("torch_threads")
    if threads:
        torch.set_num_threads(int(threads))
    set_seed(int(request["seed"]))
    # The same kernels in the same order: what makes a resumed run end in the same bits on CPU.
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling fresh memory would cost a third of the training time; it guards against faults in operators, not in runs.
    torch.utils.deterministic.fill_uninitialized_memory = False


def _resume_point(run: RunDir) -> str | None:
    """The newest whole checkpoint, as the first process sees it."""
    checkpoint, passed_over = last_valid(run.path) if ranks.is_first() else (None, [])
    for reason in passed_over:
        run.append_event("checkpoint-passed-over", reason=reason)
        print(f"[bashgym] passed over {reason}", flush=True)
    (step,) = ranks.largest(float(checkpoint.name.rpartition("-")[2]) if checkpoint else -1.0)
    if step < 0:
        return None
    found = run.file(f"checkpoint-{int(step)}")
    if ranks.is_first():
        print(f"[bashgym] continues from {found.name}", flush=True)
    run.write_json("resume.json", {"checkpoint": found.name})
    return str(found)
