"""Reward models with TRL's RewardTrainer: the backbone of a language model under a head with one output.

With s the score of a sequence at its last token, and of a step at the last token of that step,

    preference   -log sigmoid(s(chosen) - s(rejected)) + c (s(chosen) + s(rejected))^2     (Ouyang et al. 2022, eq. 1)
    bce          -(r log sigmoid(s) + (1 - r) log(1 - sigmoid(s)))                         reward r in 0..1
    mse          (s - r)^2

averaged over pairs or answers; the steps of a process are averaged within it first (Lightman et al. 2023 train such
labels). c is `reward_center_coefficient` (Eisenstein et al. 2023, eq. 2). Ids come from `data.reward_rows`, the same that
preflight counted. reward.json in the run directory says what was learnt, for the scorer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import RewardConfig, RewardTrainer

from bashgym.core.clock import epoch_s
from bashgym.core.errors import fail
from bashgym.core.files import append_line
from bashgym.data.preferences import side_text
from bashgym.data.reward_checks import loss_of
from bashgym.data.reward_rows import (
    HEADS,
    RewardRow,
    ScoredSequence,
    Selection,
    chosen_kind,
    count_kinds,
    selected,
    sequences,
)
from bashgym.data.tokens import TokenizerBundle
from bashgym.training.load import load_tokenizer, student
from bashgym.training.logits import scores_at
from bashgym.training.loop import Built, Job
from bashgym.training.rows import divided
from bashgym.training.trainer_args import is_sharded, shared_args

NAMES = {
    "accuracy": "reward_accuracy",
    "margin": "reward_model_margin",
    "mean_reward": "mean_score",
    "min_reward": "min_score",
    "max_reward": "max_score",
}
"""TRL's name of a metric -> ours."""
Row = tuple[RewardRow, list[ScoredSequence]]


def build(job: Job) -> Built:
    """A ready trainer for the run."""
    request, folder = job.request, Path(job.manifest["model"]["path"])
    kind = chosen_kind(count_kinds(Path(request["dataset_path"]), request), request)
    train, evaluation, kept = _divided(job, TokenizerBundle.load(folder), kind)
    print(f"[bashgym] {len(train)} training rows ({kind}), {len(evaluation)} evaluation rows", flush=True)
    targets = [target for first, *_ in train for target in first.targets]
    loss = loss_of(request, min(targets), max(targets)) if targets else "pairs"
    job.run.write_json("reward.json", {"kind": kind, "loss": loss, "task": HEADS[kind]})
    config = RewardConfig(
        **{"disable_dropout": False, **shared_args(request, str(job.run.path), with_eval=bool(evaluation))},
        max_length=None,
        remove_unused_columns=False,
        center_rewards_coefficient=float(request["reward_center_coefficient"]) or None,
    )
    tokenizer = load_tokenizer(folder)
    model, peft_config = student(request, job.manifest, HEADS[kind])
    how: dict[str, Any] = {"args": config, "processing_class": tokenizer, "peft_config": peft_config}
    how |= {"train_dataset": _table(train), "eval_dataset": _table(evaluation) if evaluation else None}
    if kind == "preference":
        trainer = PairTrainer(model, **how)
    else:
        trainer = ScoreTrainer(model, data_collator=Collator(int(tokenizer.pad_token_id)), bce=loss == "bce", **how)
    # One process alone cannot score with shards.
    return Built(trainer, tokenizer, [], [], [ScoreCallback(job, kept)] if kept and not is_sharded(request) else [])


def answer_losses(scores: Tensor, targets: Tensor, scored: Tensor, *, bce: bool) -> Tensor:
    """The loss of each answer [B] from scores and rewards [B, S], averaged over its scored places [B, S]."""
    if bce:
        losses = binary_cross_entropy_with_logits(scores, targets, reduction="none")
    else:
        losses = (scores - targets) ** 2
    return (losses * scored).sum(1) / scored.sum(1)


class Collator:
    """Pads on the right: ids and mask [B, T]; places, rewards and whether they are there [B, S]."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """The batch."""
        ids, ends = ([torch.tensor(row[name]) for row in rows] for name in ("input_ids", "ends"))
        targets = [torch.tensor(row["targets"], dtype=torch.float32) for row in rows]
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self._pad_id),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
            "ends": pad_sequence(ends, batch_first=True),
            "targets": pad_sequence(targets, batch_first=True),
            "scored": pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in ends], batch_first=True),
        }


class PairTrainer(RewardTrainer):
    """TRL's RewardTrainer, with names that say what is meant."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's."""
        found = self._metrics["train" if self.model.training else "eval"]
        for theirs, ours in NAMES.items():
            if theirs in found:
                found[ours] = found.pop(theirs)
        super().log(logs, start_time)


class ScoreTrainer(PairTrainer):
    """The same with a loss on given rewards instead of pairs."""

    def __init__(self, *args: Any, bce: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bce = bce

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        """The rows are tokenised already."""
        return dataset

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean of `answer_losses`."""
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False)
        scores = scores_at(outputs.logits, inputs["ends"])
        loss = answer_losses(scores, inputs["targets"], inputs["scored"], bce=self.bce).mean()
        self._note(scores.detach(), inputs)
        return (loss, outputs) if return_outputs else loss

    def _note(self, scores: Tensor, inputs: dict[str, Tensor]) -> None:
        mode = "train" if self.model.training else "eval"
        if mode == "train":
            read = self.accelerator.gather_for_metrics(inputs["attention_mask"].sum()).sum().item()
            self._total_train_tokens += int(read)
        at, targets = scores[inputs["scored"]], inputs["targets"][inputs["scored"]]
        predicted = at.sigmoid() if self.bce else at
        found = {
            "mean_score": at.mean(),
            "min_score": at.min(),
            "max_score": at.max(),
            "reward_error": (predicted - targets).abs().mean(),
        }
        if self.bce:
            found["reward_accuracy"] = ((predicted > 0.5) == (targets > 0.5)).float().mean()
        reduce = {"min_score": torch.min, "max_score": torch.max}
        for name, value in found.items():
            self._metrics[mode][name].append(reduce.get(name, torch.mean)(self.accelerator.gather(value)).item())
        self._metrics[mode]["num_tokens"] = [self._total_train_tokens]


class ScoreCallback(TrainerCallback):
    """At every save and at the end, the scores of a few training rows: samples.jsonl."""

    def __init__(self, job: Job, rows: list[Row]) -> None:
        self._run, self._rows, self._last = job.run, rows, -1

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """At checkpoints."""
        self._score(state, kwargs["model"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """At the end."""
        self._score(state, kwargs["model"])

    def _score(self, state: TrainerState, model: Any) -> None:
        if state.global_step == self._last or not state.is_world_process_zero:
            return
        self._last, training = state.global_step, model.training
        model.eval()
        try:
            for made, found in self._rows:
                for sequence, (answer, reward) in zip(found, _answers(made), strict=True):
                    with torch.no_grad():
                        logits = model(input_ids=torch.tensor([sequence.input_ids], device=model.device)).logits
                    score = scores_at(logits, torch.tensor([sequence.ends])).min().item()
                    line = {"step": state.global_step, "ts": epoch_s(), "prompt": made.row.prompt}
                    line |= {"completion": answer, "expected": reward, "reward": score}
                    append_line(self._run.file("samples.jsonl"), msgspec.json.encode(line), sync=False)
        finally:
            model.train(training)


def _answers(made: RewardRow) -> list[tuple[str, str]]:
    """(what is scored, what is known of it) for each sequence of a row."""
    example = made.example
    if example.kind == "preference":
        return [(side_text(side), name) for name, side in made.row.sides.items()]
    known = example.reward if example.kind == "outcome" else min(reward for _, reward in example.steps)
    return [(example.response, f"{known:g}")]


def _divided(
    job: Job, bundle: TokenizerBundle, kind: str
) -> tuple[list[list[ScoredSequence]], list[list[ScoredSequence]], list[Row]]:
    """(training rows, evaluation rows, a few training rows with their texts)."""
    request = job.request

    def read(path: str) -> Iterator[Row]:
        own = path == request["eval_dataset_path"]
        selection = Selection(kind, None if own else str(request["reward_train_split"]))
        rows = selected(Path(path), request, selection)
        return sequences(bundle, rows, kind=kind, max_length=int(request["max_seq_length"]))

    train, evaluation, kept = list[list[ScoredSequence]](), list[list[ScoredSequence]](), list[Row]()
    for row, held_out in divided(job, read):
        (evaluation if held_out else train).append(row[1])
        if not held_out and len(kept) < int(request["sample_prompts"]):
            kept.append(row)
    if not train:
        raise fail(
            "dataset_empty", f"no {kind} row can be trained on at this max_seq_length", fields=["max_seq_length"]
        )
    return train, evaluation, kept


def _table(rows: list[list[ScoredSequence]]) -> Dataset:
    """chosen_ids and rejected_ids of pairs; input_ids, ends and targets of the others."""
    if len(rows[0]) == 2:
        columns = {name: [row[at].input_ids for row in rows] for at, name in enumerate(("chosen_ids", "rejected_ids"))}
    else:
        columns = {name: [getattr(row[0], name) for row in rows] for name in ("input_ids", "ends", "targets")}
    kinds = {"targets": np.float32}
    arrays = {
        name: pa.array([np.asarray(values, kinds.get(name, np.int32)) for values in column])
        for name, column in columns.items()
    }
    return Dataset(pa.table(arrays))
