"""Starts the scoring process, follows it and ends it. The torch side of it is `bashgym.inference`.

The process leads a group of its own; whatever interrupts the caller ends that group, and if the caller is killed the
process ends itself at its next batch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bashgym.core.errors import CODES, BashGymError, fail
from bashgym.core.files import read_object
from bashgym.core.process import end_group, identity
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.inference.job import (
    ERROR,
    LOG,
    OUTPUT,
    PROGRESS,
    Completion,
    Decoding,
    Job,
    JobModel,
    Prompt,
    read_completions,
    write_job,
)

POLL_S = 0.05
GRACE_S = 3.0
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONFAULTHANDLER": "1",
}

OnProgress = Callable[[Path, dict[str, Any]], None]
"""Called with a job's folder and its {done, total, tokens_per_second}."""


def prepare(
    folder: Path, model: JobModel, prompts: list[Prompt], decoding: Decoding, *, threads: int | None = None
) -> None:
    """Writes the job of `folder`, which is made. What it has finished stays."""
    folder.mkdir(parents=True, exist_ok=True)
    write_job(folder, Job(model=model, decoding=decoding, threads=threads, parent_pid=os.getpid()), prompts)


def run(folders: Sequence[Path], settings: Settings, on_progress: OnProgress = lambda *_: None) -> None:
    """Finishes prepared jobs in one process. Raises the error that it left, `scoring_failed` if it left none."""
    command = [settings.training_python, "-u", "-m", "bashgym.inference", *map(str, folders)]
    env = child_env(
        TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", PYTHONFAULTHANDLER="1"
    )
    log_path = folders[0] / LOG
    with log_path.open("ab") as log:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=env
            )
        except OSError as error:
            raise fail(
                "missing_extra",
                f"the training interpreter {settings.training_python} does not start: {error.strerror}",
                "Set BASHGYM_TRAINING_PYTHON to an interpreter with bashgym[train].",
            ) from error
    who = identity(child.pid)
    try:
        _follow(child, folders, on_progress)
    finally:
        if child.poll() is None:
            end_group(who, GRACE_S)
            child.wait()
    if child.returncode:
        raise _failure(folders, child.returncode, log_path)


def results(folder: Path, prompts: Sequence[Prompt], attempts: int) -> list[Completion]:
    """The completions of a finished job, by prompt and attempt; `scoring_failed` if one is not there."""
    done = read_completions(folder / OUTPUT)
    wanted = [(prompt.item_id, attempt) for prompt in prompts for attempt in range(attempts)]
    if missing := [key for key in wanted if key not in done]:
        raise fail("scoring_failed", f"{len(missing)} completions are missing from {folder}, the first of {missing[0]}")
    return [done[key] for key in wanted]


def _follow(child: subprocess.Popen[bytes], folders: Sequence[Path], on_progress: OnProgress) -> None:
    seen: dict[Path, int] = {}
    while True:
        ended = child.poll() is not None
        for folder in folders:
            try:
                path = folder / PROGRESS
                changed = path.stat().st_mtime_ns
                if seen.get(folder) != changed:
                    seen[folder] = changed
                    on_progress(folder, read_object(path))
            except (FileNotFoundError, BashGymError):
                continue
        if ended:
            return
        time.sleep(POLL_S)


def _failure(folders: Sequence[Path], returncode: int, log_path: Path) -> BashGymError:
    for folder in folders:
        try:
            left = read_object(folder / ERROR)
        except BashGymError:
            continue
        code = str(left.get("code"))
        return fail(code if code in CODES else "scoring_failed", str(left.get("message")), str(left.get("hint") or ""))
    how = f"ended with exit status {returncode}"
    hint = f"Its log is {log_path}. The same evaluation can be resumed."
    if returncode < 0:
        how = f"was ended by {signal.Signals(-returncode).name}"
        if returncode == -signal.SIGKILL:
            hint = f"The host may have run out of memory. {hint}"
    return fail("scoring_failed", f"the scoring process {how}: {_last_line(log_path)}", hint)


def _last_line(path: Path) -> str:
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - 4096))
        lines = handle.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it wrote nothing"
