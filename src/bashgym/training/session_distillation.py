"""Session Distillation: the model without the hint learns from itself with the hint, on the target tokens only.

Loss, averaged over the N target tokens of the optimizer step (all micro-batches and processes together):

    α·T²·KL(p ‖ q) + (1 − α)·CE,   p = softmax(z_hinted / T), q = softmax(z_original / T), CE = −log softmax(z_original)

The teacher p is the same model with its current weights, adapter included, reading the hinted context: without gradient,
without dropout. Self-distillation from a privileged context: Snell et al. 2022 (arXiv 2209.15189); T² as in Hinton et
al. 2015, section 2. Rows and ids come from `data.sessions`, the same that preflight counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from trl import SFTConfig, SFTTrainer

from bashgym.core.errors import fail
from bashgym.data.encode import IGNORED
from bashgym.data.sessions.contract import Record, confident
from bashgym.data.sessions.encode import Branches, encode_records
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import Encoded
from bashgym.training.arrow import EncodedTable
from bashgym.training.divergence import token_divergence
from bashgym.training.load import load_tokenizer, student
from bashgym.training.logits import target_logits
from bashgym.training.loop import Built, Job
from bashgym.training.rows import divided
from bashgym.training.trainer_args import shared_args

NAME = "session_distillation"


def build(job: Job) -> Built:
    """A ready trainer for the run."""
    request, folder = job.request, Path(job.manifest["model"]["path"])
    train, evaluation, samples = _datasets(job, TokenizerBundle.load(folder))
    print(f"[bashgym] {len(train)} training rows, {len(evaluation) if evaluation else 0} evaluation rows", flush=True)
    config = SFTConfig(
        **shared_args(request, str(job.run.path), with_eval=evaluation is not None),
        max_length=None,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    tokenizer = load_tokenizer(folder)
    model, peft_config = student(request, job.manifest)
    trainer = SessionDistillationTrainer(
        model=model,
        args=config,
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        peft_config=peft_config,
        data_collator=Collator(int(tokenizer.pad_token_id)),
        alpha=float(request["session_distillation_alpha"]),
        temperature=float(request["session_distillation_temperature"]),
    )
    wrap = bool(request["wrap_prompts"])
    prompts: list[list[dict[str, Any]] | str] = [
        [{"role": "user", "content": record.original_context}] if wrap else record.original_context
        for record in samples
    ]
    return Built(trainer, tokenizer, prompts, [record.target_text for record in samples])


class Collator:
    """Pads both branches on the right, each to its own longest row."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `labels` [B, T] of the original branch, with `hinted_` those of the other."""
        batch = {}
        for branch in ("", "hinted_"):
            ids = [torch.tensor(row[f"{branch}input_ids"]) for row in rows]
            labels = [torch.tensor(row[f"{branch}labels"]) for row in rows]
            batch[f"{branch}input_ids"] = pad_sequence(ids, batch_first=True, padding_value=self._pad_id)
            batch[f"{branch}labels"] = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
            ones = [torch.ones_like(row) for row in ids]
            batch[f"{branch}attention_mask"] = pad_sequence(ones, batch_first=True, padding_value=0)
        return batch


class SessionDistillationTrainer(SFTTrainer):
    """TRL's SFTTrainer with the loss of this module. `alpha` in [0, 1]; `temperature` above 0."""

    def __init__(self, *args: Any, alpha: float, temperature: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._alpha, self._temperature = alpha, temperature
        # The loss is divided by the tokens of the whole optimizer step, so it must not be divided by its batches again.
        self.model_accepts_loss_kwargs = True
        self._sums = torch.zeros(5, dtype=torch.float64)
        """Since the last log: loss, KL, CE, target tokens, tokens read."""
        self._since_step = 0

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The scalar of the module's formula; logits are [N, V], the parts of the loss [N].

        `row_not_encodable` for a batch whose branches do not align, or that trains nothing.
        """
        with torch.no_grad():
            training = model.training
            model.eval()
            teacher, teacher_ids = target_logits(model, inputs, "hinted_")
            model.train(training)
        plain, ids = target_logits(model, inputs, "")
        if not len(ids) or not torch.equal(ids, teacher_ids):
            raise fail("row_not_encodable", "the two branches of a batch do not have the same target tokens, or none")
        kl = token_divergence(plain[None], teacher[None], "forward_kl", self._temperature)[0]
        ce = cross_entropy(plain.float(), ids, reduction="none")
        loss = self._alpha * self._temperature**2 * kl + (1 - self._alpha) * ce
        if training:
            self._note(loss, kl, ce, int(inputs["attention_mask"].sum() + inputs["hinted_attention_mask"].sum()))
        if num_items_in_batch is None:
            return loss.mean()
        processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return loss.sum() * processes / num_items_in_batch

    def _note(self, loss: Tensor, kl: Tensor, ce: Tensor, read: int) -> None:
        if not self._sums[3]:
            self._since_step = self.state.global_step
        sums = [*(part.detach().double().sum().item() for part in (loss, kl, ce)), len(ce), read]
        self._sums += torch.tensor(sums, dtype=torch.float64)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the means over the target tokens since the last log, and how many of them a step had."""
        if "loss" in logs:
            *parts, tokens, read = self.accelerator.reduce(
                self._sums.to(self.args.device, torch.float32), "sum"
            ).tolist()
            self._total_train_tokens += int(read)
            logs |= {f"{NAME}_{part}": value / tokens for part, value in zip(("loss", "kl", "ce"), parts, strict=True)}
            logs[f"{NAME}_masked_tokens"] = tokens / (self.state.global_step - self._since_step)
            logs["num_tokens"] = self._total_train_tokens
            self._sums.zero_()
        super().log(logs, start_time)


def _datasets(job: Job, bundle: TokenizerBundle) -> tuple[Dataset, Dataset | None, list[Record]]:
    """(train, evaluation or None, a few training records to sample from)."""
    request = job.request
    train, evaluation = list[Branches](), list[Branches]()
    samples: list[Record] = []
    for (record, branches), held_out in divided(job, partial(_trainable, request, bundle)):
        if held_out:
            evaluation.append(branches)
            continue
        train.append(branches)
        if len(samples) < int(request["sample_prompts"]):
            samples.append(record)
    if not train:
        raise fail("dataset_empty", "no record can be trained on at this max_seq_length", fields=["max_seq_length"])
    return _table(train), _table(evaluation) if evaluation else None, samples


def _trainable(request: dict[str, Any], bundle: TokenizerBundle, path: str) -> Iterator[tuple[Record, Branches]]:
    records = confident(Path(path), float(request["session_distillation_min_confidence"]))
    length = int(request["max_seq_length"])
    return encode_records(bundle, records, max_length=length, wrap=bool(request["wrap_prompts"]))


def _table(rows: list[Branches]) -> Dataset:
    """The columns input_ids and labels, and hinted_input_ids and hinted_labels."""
    tables = []
    for branch in ("", "hinted_"):
        table = EncodedTable()
        for row in rows:
            ids, labels = row.sequence(row.hinted if branch else row.original)
            table.add(Encoded(row.row, ids, labels, row.full_length, len(row.target)))
        tables.append(table.dataset().rename_columns({name: f"{branch}{name}" for name in ("input_ids", "labels")}))
    return concatenate_datasets(tables, axis=1)
