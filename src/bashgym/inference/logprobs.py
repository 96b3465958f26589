"""One job in this process: how likely recorded tokens are to a model, or what a reward model says of them. Imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.nn.utils.rnn import pad_sequence

from bashgym.core.errors import fail
from bashgym.core.files import append_line, atomic_write_json
from bashgym.data.encode import IGNORED
from bashgym.inference.job import PROGRESS, drop_torn_tail
from bashgym.inference.replay_job import (
    LOGPROBS,
    SampledSequence,
    SequenceLogprobs,
    read_logprobs,
    read_replay_job,
)
from bashgym.inference.scoring import load
from bashgym.training.logits import scores_at, target_logprobs


def run(folder: Path) -> None:
    """Finishes the job in `folder`; what it has written already stays."""
    job, sequences = read_replay_job(folder)
    drop_torn_tail(folder / LOGPROBS)
    done = read_logprobs(folder) if (folder / LOGPROBS).is_file() else {}
    open_ones = [sequence for sequence in sequences if sequence.index not in done]
    if open_ones:
        torch.set_num_threads(job.threads or torch.get_num_threads())
        model, tokenizer = load(job.model, job.task)
        if job.task != "CAUSAL_LM":
            # Where a sequence ends, and is scored, is told by the pad id.
            model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        judge = score if job.task == "CAUSAL_LM" else rewards
        finished = len(done)
        for batch in batches(open_ones, job.tokens_per_batch):
            if job.parent_pid not in (None, os.getppid()):
                raise fail("interrupted", "the process that asked for these log probabilities is gone")
            found = judge(model, batch)
            lines = [SequenceLogprobs(row.index, values) for row, values in zip(batch, found, strict=True)]
            append_line(folder / LOGPROBS, b"\n".join(map(msgspec.json.encode, lines)))
            finished += len(batch)
            atomic_write_json(folder / PROGRESS, {"done": finished, "total": len(sequences)})


def batches(sequences: list[SampledSequence], tokens: int) -> Iterator[list[SampledSequence]]:
    """Sequences of like length together, at most `tokens` padded tokens at a time but at least one sequence."""
    batch: list[SampledSequence] = []
    for sequence in sorted(sequences, key=lambda row: len(row.input_ids)):
        if batch and len(sequence.input_ids) * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch


def score(model: Any, batch: list[SampledSequence]) -> list[list[float]]:
    """log p of the sampled tokens of each sequence given all tokens before them. `scoring_failed` if one is not finite."""
    ids = [torch.tensor(row.input_ids) for row in batch]
    labels = [torch.full_like(row, IGNORED) for row in ids]
    for row, sequence in zip(labels, batch, strict=True):
        at = torch.tensor(sequence.sampled)
        row[at] = torch.tensor(sequence.input_ids)[at]
    inputs = {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }
    with torch.no_grad():
        found = target_logprobs(model, {name: tensor.to(model.device) for name, tensor in inputs.items()}).cpu()
    if not torch.isfinite(found).all():
        raise fail("scoring_failed", "the model gives a recorded token a log probability that is not finite")
    parts = torch.split(found.clamp(max=0), [len(row.sampled) for row in batch])
    return [part.tolist() for part in parts]


def rewards(model: Any, batch: list[SampledSequence]) -> list[list[float]]:
    """Scores of the wanted places of each sequence. `scoring_failed` if one is not finite."""
    ids, ends = ([torch.tensor(getattr(row, name)) for row in batch] for name in ("input_ids", "sampled"))
    inputs = {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=model.config.get_text_config().pad_token_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
    }
    with torch.no_grad():
        logits = model(**{name: tensor.to(model.device) for name, tensor in inputs.items()}, use_cache=False).logits
    found = scores_at(logits, pad_sequence(ends, batch_first=True)).cpu()
    if not torch.isfinite(found).all():
        raise fail("scoring_failed", "the reward model gives a score that is not finite")
    return [row[: len(sequence.sampled)].tolist() for row, sequence in zip(found, batch, strict=True)]
