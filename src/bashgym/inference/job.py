"""The files of a scoring job, as both sides of the process boundary see them. No torch.

job.json, prompts.jsonl and completions.jsonl are the whole interface. A job is a fixed list of (prompt, attempt) pairs,
so that a resumed job gives the same completions as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_bytes
from bashgym.store.jsonl import read_jsonl

JOB, PROMPTS, OUTPUT = "job.json", "prompts.jsonl", "completions.jsonl"
ERROR, PROGRESS, LOG = "error.json", "progress.json", "scoring.log"


class Decoding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How answers are made from a model."""

    max_new_tokens: int = 64
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    """Root of the per-attempt seeds; belongs to the suite's protocol."""
    batch_size: int = 64
    attempts: int = 1


class JobModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Folders of the base model and, if there is one, of the LoRA adapter on top of it."""

    path: str
    adapter_path: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """job.json."""

    model: JobModel
    decoding: Decoding = Decoding()
    prompts: str = PROMPTS
    output: str = OUTPUT
    threads: int | None = None
    """CPU threads; null leaves the choice to torch."""
    parent_pid: int | None = None
    """The job ends when this is no longer its parent; null lets it live on."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A line of prompts.jsonl."""

    item_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A line of completions.jsonl."""

    item_id: str
    attempt: int
    seed: int
    completion: str
    n_tokens: int
    """Generated tokens, the stop token included."""
    finish_reason: str
    """`stop`: the model ended its turn; `length`: it did not within its budget."""

    @property
    def key(self) -> tuple[str, int]:
        """What makes it unique in its job."""
        return self.item_id, self.attempt


def attempt_seed(seed: int, item_id: str, attempt: int) -> int:
    """The seed of one attempt at one item, 63 bits: the same for both sides, whatever else is in the job."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{item_id}\0{attempt}".encode()).digest()[:8], "big") >> 1


def write_job(folder: Path, job: Job, prompts: list[Prompt]) -> None:
    """Writes prompts.jsonl, then job.json."""
    atomic_write_bytes(folder / job.prompts, b"".join(msgspec.json.encode(prompt) + b"\n" for prompt in prompts))
    atomic_write_bytes(folder / JOB, msgspec.json.format(msgspec.json.encode(job), indent=2) + b"\n")


def read_job(folder: Path) -> tuple[Job, list[Prompt]]:
    """job.json and its prompts; `file_missing` or `file_unreadable` if they are not as written by `write_job`."""
    path = folder / JOB
    try:
        job = msgspec.json.decode(path.read_bytes(), type=Job)
        path = folder / job.prompts
        rows, torn = read_jsonl(path)
        prompts = msgspec.convert(rows, list[Prompt])
    except FileNotFoundError as error:
        raise fail("file_missing", f"{path} does not exist") from error
    except msgspec.DecodeError as error:
        raise fail("file_unreadable", f"{path}: {error}") from error
    if torn or not prompts:
        raise fail("file_unreadable", f"{path} holds {len(prompts)} prompts and {torn} unreadable lines")
    return job, prompts


def read_completions(path: Path) -> dict[tuple[str, int], Completion]:
    """The finished completions of a job by (item_id, attempt). A torn last line is left out: it is made again."""
    rows, _ = read_jsonl(path)
    return {done.key: done for done in msgspec.convert(rows, list[Completion])}


def drop_torn_tail(path: Path) -> None:
    """Cuts an unfinished last line off, so that the next append begins on a line of its own."""
    if not path.is_file():
        return
    with path.open("rb+") as handle:
        end = handle.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - 65_536)
            handle.seek(begin)
            cut = handle.read(end - begin).rfind(b"\n")
            if cut >= 0:
                handle.truncate(begin + cut + 1)
                return
            end = begin
        handle.truncate(0)
