"""Supervised fine-tuning with TRL's SFTTrainer.

The trainer gets token ids and labels from `data.encode`, the same code that preflight counted and preview showed, so
what was checked is what is trained. TRL's own tokenisation is not used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from bashgym.core.errors import fail
from bashgym.data.encode import encode_many, loss_policy
from bashgym.data.formats import iter_examples
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import Encoded, SftExample
from bashgym.training.arrow import EncodedTable
from bashgym.training.load import load_tokenizer, student
from bashgym.training.loop import Built, Job
from bashgym.training.rows import divided
from bashgym.training.trainer_args import shared_args


def build(job: Job) -> Built:
    """A ready SFTTrainer for the run."""
    request, folder = job.request, Path(job.manifest["model"]["path"])
    train, evaluation, samples = _datasets(job, TokenizerBundle.load(folder))
    print(f"[bashgym] {len(train)} training rows, {len(evaluation) if evaluation else 0} evaluation rows", flush=True)
    args = shared_args(request, str(job.run.path), with_eval=evaluation is not None)
    config = SFTConfig(
        **args,
        max_length=int(request["max_seq_length"]),
        packing=bool(request["packing"]),
        dataset_kwargs={"skip_prepare_dataset": not request["packing"]},
        use_liger_kernel=bool(request["use_liger"]),
    )
    tokenizer = load_tokenizer(folder)
    _check_parity(job, tokenizer, samples)
    model, peft_config = student(job.request, job.manifest)
    trainer = SFTTrainer(
        model=model,
        args=config,
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    return Built(
        trainer, tokenizer, [_prompt(example) for example in samples], [_answer(example) for example in samples]
    )


def _check_parity(job: Job, tokenizer: Any, samples: list[SftExample]) -> None:
    """Says so when the tokenizer that will generate gives other ids than those that are trained."""
    bundle = TokenizerBundle.load(Path(job.manifest["model"]["path"]))
    for example in samples:
        if example.messages is None:
            continue
        text = bundle.render(example.messages, example.tools)
        if tokenizer(text, add_special_tokens=False)["input_ids"] != bundle.encode(text):
            job.run.append_event("tokenizer-parity", row=example.row)
            print(f"[bashgym] warning: row {example.row} has other token ids in the installed transformers", flush=True)
            return


def _datasets(job: Job, bundle: TokenizerBundle) -> tuple[Dataset, Dataset | None, list[SftExample]]:
    """(train, evaluation or None, a few training examples to sample from)."""
    request = job.request
    train, evaluation = EncodedTable(), EncodedTable()
    samples: list[SftExample] = []
    for (example, encoded), held_out in divided(job, partial(_trainable, job, bundle)):
        if held_out:
            evaluation.add(encoded)
            continue
        train.add(encoded)
        if len(samples) < int(request["sample_prompts"]) and _prompt(example):
            samples.append(example)
    if not len(train):
        raise fail("dataset_empty", "no row has a trained token at this max_seq_length", fields=["max_seq_length"])
    return train.dataset(), evaluation.dataset() if len(evaluation) else None, samples


def _trainable(job: Job, bundle: TokenizerBundle, path: str) -> Iterator[tuple[SftExample, Encoded]]:
    """(example, its encoding) for every row that preflight counted as trainable, in the order of the file."""
    request = job.request
    mapping = request["column_mapping"] or None
    examples = iter_examples(Path(path), [], dataset_format=str(request["dataset_format"]), column_mapping=mapping)
    pending: deque[SftExample] = deque()
    first = next(examples, None)
    if first is None:
        return
    policy = loss_policy(first, request.get("assistant_only_loss"), request.get("completion_only_loss"))

    def remembered() -> Iterator[SftExample]:
        for example in chain([first], examples):
            pending.append(example)
            yield example

    length = int(request["max_seq_length"])
    for encoded in encode_many(bundle, remembered(), max_length=length, policy=policy, on_problem=lambda _: None):
        while pending[0].row != encoded.row:
            pending.popleft()
        example = pending.popleft()
        if encoded.supervised:
            yield example, encoded


def _prompt(example: SftExample) -> list[dict[str, Any]]:
    """The conversation before the first answer; empty for plain text."""
    if example.messages is not None:
        first = next((i for i, m in enumerate(example.messages) if m["role"] == "assistant"), 0)
        return example.messages[:first]
    return example.prompt if isinstance(example.prompt, list) else []


def _answer(example: SftExample) -> str:
    """The reference answer, as text."""
    turns = example.completion if isinstance(example.completion, list) else (example.messages or [])
    return next((str(m.get("content") or m.get("tool_calls") or "") for m in turns if m["role"] == "assistant"), "")
