"""Direct preference optimisation with TRL's DPOTrainer.

Loss of a pair (Rafailov et al. 2023, equation 7), averaged over the pairs of a batch:

    -log sigmoid(dpo_beta * ((log p(chosen) - log r(chosen)) - (log p(rejected) - log r(rejected))))

p is the policy, r the reference: the policy as it is at the start, without dropout. A new adapter needs no second model
for it (the base with the adapter off); an adapter that the run starts from is kept a second time, frozen; full
fine-tuning loads the model a second time. Ids come from `data.pairs`, the same that preflight counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from bashgym.core.errors import fail
from bashgym.data.pairs import EncodedPair, encode_pairs
from bashgym.data.preferences import PromptRow, side_text
from bashgym.data.prompts import iter_prompt_rows
from bashgym.data.tokens import TokenizerBundle
from bashgym.training.load import load_tokenizer, student
from bashgym.training.loop import Built, Job
from bashgym.training.policy import ReferenceOff
from bashgym.training.rows import divided
from bashgym.training.trainer_args import shared_args

COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")


def build(job: Job) -> Built:
    """A ready trainer for the run."""
    request, folder = job.request, Path(job.manifest["model"]["path"])
    train, evaluation, samples = _datasets(job, TokenizerBundle.load(folder))
    print(f"[bashgym] {len(train)} training pairs, {len(evaluation) if evaluation else 0} evaluation pairs", flush=True)
    config = DPOConfig(
        **{"disable_dropout": False, **shared_args(request, str(job.run.path), with_eval=evaluation is not None)},
        beta=float(request["dpo_beta"]),
        max_length=None,
    )
    tokenizer = load_tokenizer(folder)
    model, peft_config = student(request, job.manifest)
    trainer = PairTrainer(
        model=model,
        ref_model=None if request["use_lora"] else student(request, job.manifest)[0].eval(),
        args=config,
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    still_reference(trainer.model)
    return Built(
        trainer,
        tokenizer,
        [row.prompt for row in samples],
        [side_text(row.sides["chosen"]) for row in samples],
        [ReferenceOff()],
    )


class PairTrainer(DPOTrainer):
    """TRL's DPOTrainer, fed with ids."""

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        """The rows are tokenised already; TRL has no setting that says so."""
        return dataset


def still_reference(model: Any) -> None:
    """Leaves no dropout but that of the adapter in training.

    Base and frozen adapter are read as the reference while the model is in training mode.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and not name.endswith("lora_dropout.default"):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def _datasets(job: Job, bundle: TokenizerBundle) -> tuple[Dataset, Dataset | None, list[PromptRow]]:
    """(train, evaluation or None, a few training rows to sample from). Positions count trainable pairs only."""
    request = job.request
    train, evaluation = _Table(), _Table()
    samples: list[PromptRow] = []
    for (row, pair), held_out in divided(job, partial(_trainable, request, bundle)):
        if held_out:
            evaluation.add(pair)
            continue
        train.add(pair)
        if len(samples) < int(request["sample_prompts"]):
            samples.append(row)
    if not len(train):
        raise fail("dataset_empty", "no pair can be trained on at this max_seq_length", fields=["max_seq_length"])
    return train.dataset(), evaluation.dataset() if len(evaluation) else None, samples


def _trainable(request: dict[str, Any], bundle: TokenizerBundle, path: str) -> Iterator[tuple[PromptRow, EncodedPair]]:
    mapping, wrap = request["column_mapping"] or None, bool(request["wrap_prompts"])
    rows = iter_prompt_rows(Path(path), "dpo", column_mapping=mapping, wrap=wrap)
    return encode_pairs(bundle, rows, max_length=int(request["max_seq_length"]))


class _Table:
    """Collects the ids of pairs in flat int32 buffers."""

    def __init__(self) -> None:
        self._ids = {name: array("i") for name in COLUMNS}
        self._ends = {name: array("q", [0]) for name in COLUMNS}

    def __len__(self) -> int:
        return len(self._ends[COLUMNS[0]]) - 1

    def add(self, pair: EncodedPair) -> None:
        """Appends one pair."""
        for name in COLUMNS:
            self._ids[name].extend(getattr(pair, name))
            self._ends[name].append(len(self._ids[name]))

    def dataset(self) -> Dataset:
        """A dataset with the three columns."""
        columns = {
            name: pa.LargeListArray.from_arrays(
                pa.array(self._ends[name], type=pa.int64()), pa.array(self._ids[name], type=pa.int32())
            )
            for name in COLUMNS
        }
        return Dataset(pa.table(columns))
