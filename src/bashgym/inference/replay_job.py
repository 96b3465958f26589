"""The files of a log-probability or reward job, as both sides of the process boundary see them. No torch.

replay_job.json and sequences.jsonl go in, logprobs.jsonl comes out: one line per sequence, in any order.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_bytes
from bashgym.inference.job import JobModel
from bashgym.store.jsonl import read_jsonl

REPLAY_JOB, SEQUENCES, LOGPROBS = "replay_job.json", "sequences.jsonl", "logprobs.jsonl"


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """replay_job.json."""

    model: JobModel
    task: str = "CAUSAL_LM"
    """SEQ_CLS or TOKEN_CLS: the values are the scores of a reward model, at the wanted positions."""
    tokens_per_batch: int = 8192
    """Padded tokens of one forward pass; a longer sequence stands alone."""
    threads: int | None = None
    parent_pid: int | None = None
    """The job ends when this is no longer its parent."""


class SampledSequence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of sequences.jsonl."""

    index: int
    input_ids: list[int]
    sampled: list[int]
    """Positions whose log probability (or score) is wanted; never 0."""


class SequenceLogprobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of logprobs.jsonl: the log probability, or the score, at each wanted position."""

    index: int
    logprobs: list[float]


def write_replay_job(folder: Path, job: ReplayJob, sequences: list[SampledSequence]) -> None:
    """Writes sequences.jsonl, then replay_job.json."""
    atomic_write_bytes(folder / SEQUENCES, b"".join(msgspec.json.encode(line) + b"\n" for line in sequences))
    atomic_write_bytes(folder / REPLAY_JOB, msgspec.json.encode(job) + b"\n")


def read_replay_job(folder: Path) -> tuple[ReplayJob, list[SampledSequence]]:
    """The job and its sequences; `file_unreadable` if they are not as written by `write_replay_job`."""
    try:
        job = msgspec.json.decode((folder / REPLAY_JOB).read_bytes(), type=ReplayJob)
        rows, torn = read_jsonl(folder / SEQUENCES)
        sequences = msgspec.convert(rows, list[SampledSequence])
    except (OSError, msgspec.DecodeError) as error:
        raise fail("file_unreadable", f"{folder}: {error}") from error
    if torn or not sequences:
        raise fail("file_unreadable", f"{folder} holds {len(sequences)} sequences and {torn} unreadable lines")
    return job, sequences


def read_logprobs(folder: Path) -> dict[int, list[float]]:
    """What the job has written, by sequence."""
    rows, _ = read_jsonl(folder / LOGPROBS)
    return {line.index: line.logprobs for line in msgspec.convert(rows, list[SequenceLogprobs])}
