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
from bashgym.core.files import atomic_write_json
from bashgym.methods import registry
from bashgym.store.checkpoints import last_valid
from bashgym.store.metrics import MetricWriter
from bashgym.store.run_dir import RunDir
from bashgym.training import EXIT_PAUSED, retention
from bashgym.training.callbacks import CheckpointCallback, ControlCallback, MetricCallback, write_phase
from bashgym.training.samples import SampleCallback

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


def run(run_path: Path) -> int:
    """Trains. Returns 0 or `EXIT_PAUSED`; raises a BashGymError on anything that a user can act on."""
    run_dir = RunDir(run_path)
    job = Job(run_dir, run_dir.request(), run_dir.manifest())
    try:
        return _attempt(job)
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


def _attempt(job: Job) -> int:
    write_phase(job.run, "loading")
    _prepare_process(job.request)
    method = registry.get(str(job.request["strategy"]))
    module, _, function = str(method.builder).partition(":")
    built: Built = getattr(importlib.import_module(module), function)(job)
    writer = MetricWriter(job.run.metrics_path)
    control = ControlCallback(job.run, job.request.get("max_minutes"))
    trainer = built.trainer
    for callback in (
        *built.callbacks,
        MetricCallback(writer),
        CheckpointCallback(job.run, int(job.request["checkpoint_limit"])),
        SampleCallback(job.run, built, int(job.request["sample_prompts"])),
        control,
    ):
        trainer.add_callback(callback)
    try:
        trainer.train(resume_from_checkpoint=_resume_point(job.run))
    finally:
        writer.close()
    if control.paused and not control.finished:
        write_phase(job.run, "paused")
        return EXIT_PAUSED
    write_phase(job.run, "saving")
    retention.finish(job, trainer, built.tokenizer)
    write_phase(job.run, "done")
    return 0


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
    checkpoint, passed_over = last_valid(run.path)
    for reason in passed_over:
        run.append_event("checkpoint-passed-over", reason=reason)
        print(f"[bashgym] passed over {reason}", flush=True)
    if checkpoint is None:
        return None
    print(f"[bashgym] continues from {checkpoint.name}", flush=True)
    atomic_write_json(run.file("resume.json"), {"checkpoint": checkpoint.name})
    return str(checkpoint)
