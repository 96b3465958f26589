"""DPPO: policy gradient on recorded rollouts, within a trust region around the policy that acted.

With log p the policy in training and log q the recorded behaviour policy at a sampled token, A = reward - group mean
(with dppo_scale_rewards group: divided by the population standard deviation of the group + 1e-4),

    loss = -(1 / N) sum over tokens of  m * A * r,    r = exp(log p - log q)

N counts the sampled tokens with a log q of the optimizer step, masked ones too (all micro-batches and processes together).
m is 0 where D(p, q) is above its threshold and the update would push further out, (A > 0 and p > q) or (A < 0 and p < q),
else 1; it has no gradient. D is |p - q| (binary_tv) or the KL of the two-way distributions {token, any other} (binary_kl),
with probabilities clamped to [1e-12, 1 - 1e-12]. Qi et al. 2026, arXiv 2602.04879. Against overflow log r is clamped to
[-20, 20]. p is read from the model at every step, so training log probabilities in the file are not needed for it. Rows and
ids come from `data.dppo_checks`, the same that preflight counted; the arithmetic is that of `data.dppo`.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl import SFTConfig, SFTTrainer

from bashgym.core.errors import fail
from bashgym.data.dppo import EPSILON, collapsing
from bashgym.data.dppo_checks import TrainingRow, trainable
from bashgym.data.encode import IGNORED
from bashgym.data.tokens import TokenizerBundle
from bashgym.training.load import load_tokenizer, student
from bashgym.training.logits import target_logprobs
from bashgym.training.loop import Built, Job
from bashgym.training.rows import divided
from bashgym.training.trainer_args import shared_args

MAX_LOG_RATIO = 20.0
_FIGURES = ("advantage", "reward", "group_std", "flat", "sampled")
"""Columns with one number a row."""


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
    divergence = str(request["dppo_divergence"])
    trainer = ReplayTrainer(
        model=model,
        args=config,
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        peft_config=peft_config,
        data_collator=Collator(int(tokenizer.pad_token_id)),
        divergence=divergence,
        threshold=float(request[f"dppo_{divergence}_threshold"]),
    )
    records = [row.rollout.record for row in samples]
    prompts: list[list[dict[str, Any]] | str] = []
    for record in records:
        first = record.behavior_policy.response_logprobs[0]
        prompts.append(record.trajectory.messages[: first.turn])
    return Built(trainer, tokenizer, prompts, ["".join(record.tokens()) for record in records])


def token_loss(
    logprobs: Tensor, behavior: Tensor, advantages: Tensor, *, divergence: str, threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, masked, binary TV), each [N], of tokens with log p, log q and A of shape [N]. See the module."""
    p, q = (values.detach().double().clamp(max=0).exp().clamp(EPSILON, 1 - EPSILON) for values in (logprobs, behavior))
    tv = (p - q).abs()
    if divergence == "binary_tv":
        distance = tv
    else:
        distance = q * (q.log() - p.log()) + (1 - q) * (torch.log1p(-q) - torch.log1p(-p))
    masked = (distance > threshold) & (((advantages > 0) & (p > q)) | ((advantages < 0) & (p < q)))
    ratio = (logprobs - behavior).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return -(~masked * advantages * ratio), masked, tv


class Collator:
    """Pads on the right, each batch to its longest row."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, `labels` and `behavior` [B, T], and the figures [B]."""
        ids = [torch.tensor(row["input_ids"]) for row in rows]
        batch = {name: torch.tensor([row[name] for row in rows], dtype=torch.float32) for name in _FIGURES}
        batch["input_ids"] = pad_sequence(ids, batch_first=True, padding_value=self._pad_id)
        batch["attention_mask"] = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        labels = [torch.tensor(row["labels"]) for row in rows]
        batch["labels"] = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
        behavior = [torch.tensor(row["behavior"], dtype=torch.float32) for row in rows]
        batch["behavior"] = pad_sequence(behavior, batch_first=True)
        return batch


class ReplayTrainer(SFTTrainer):
    """TRL's SFTTrainer with the loss of this module."""

    def __init__(self, *args: Any, divergence: str, threshold: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.divergence, self.threshold = divergence, threshold
        # The loss is divided by the tokens of the whole optimizer step, so it must not be divided by its batches again.
        self.model_accepts_loss_kwargs = True
        self._sums = torch.zeros(9, dtype=torch.float64)
        """Since the last log: masked, TV, tokens, sampled tokens, rewards, spreads, rows without contrast, rows, tokens read."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The scalar of the module's formula; `row_not_encodable` for a batch that trains nothing."""
        logprobs = target_logprobs(model, inputs)
        if not len(logprobs):
            raise fail("row_not_encodable", "no token of a batch has a behaviour log probability")
        trained = inputs["labels"][:, 1:] != IGNORED
        advantages = inputs["advantage"][:, None].expand_as(trained)[trained]
        loss, masked, tv = token_loss(
            logprobs,
            inputs["behavior"][:, 1:][trained],
            advantages,
            divergence=self.divergence,
            threshold=self.threshold,
        )
        if model.training:
            self._note(inputs, masked, tv)
        if num_items_in_batch is None:
            return loss.mean()
        processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return loss.sum() * processes / num_items_in_batch

    def _note(self, inputs: dict[str, Tensor], masked: Tensor, tv: Tensor) -> None:
        rows = [inputs[name].sum().item() for name in ("sampled", "reward", "group_std", "flat")]
        read = int(inputs["attention_mask"].sum())
        sums = [masked.sum().item(), tv.sum().item(), len(tv), *rows, len(inputs["reward"]), read]
        self._sums += torch.tensor(sums, dtype=torch.float64)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds what was seen since the last log: means over trained tokens, and over rows."""
        if "loss" in logs:
            total = self.accelerator.reduce(self._sums.to(self.args.device, torch.float32), "sum").tolist()
            masked, tv, tokens, sampled, reward, std, flat, rows, read = total
            self._total_train_tokens += int(read)
            logs |= {
                "masked_fraction": masked / tokens,
                "mean_binary_tv": tv / tokens,
                "logprob_coverage": tokens / sampled,
                "reward": reward / rows,
                "reward_std": std / rows,
                "frac_reward_zero_std": flat / rows,
                "num_tokens": self._total_train_tokens,
            }
            if collapsing(masked, tokens):
                share = masked / tokens
                print(
                    f"[bashgym] step {self.state.global_step}: {share:.0%} masked, the rollouts are too old", flush=True
                )
            self._sums.zero_()
        super().log(logs, start_time)


def _datasets(job: Job, bundle: TokenizerBundle) -> tuple[Dataset, Dataset | None, list[TrainingRow]]:
    """(train, evaluation or None, a few training rows to sample from)."""
    request = job.request
    length = int(request["max_seq_length"])
    train, evaluation = list[TrainingRow](), list[TrainingRow]()
    for row, held_out in divided(job, lambda path: trainable(Path(path), bundle, length)):
        (evaluation if held_out else train).append(row)
    if not train:
        raise fail("dataset_empty", "no rollout can be trained on at this max_seq_length", fields=["max_seq_length"])
    scaled = request["dppo_scale_rewards"] == "group"
    samples = train[: int(request["sample_prompts"])]
    return _table(train, scaled), _table(evaluation, scaled) if evaluation else None, samples


def _table(rows: list[TrainingRow], scaled: bool) -> Dataset:
    """input_ids, labels and behavior (log q; 0 where nothing is trained) as lists, and the figures."""
    ids, labels, behavior, ends = array("i"), array("i"), array("f"), array("q", [0])
    for row in rows:
        ids.extend(row.input_ids)
        for token, logprob in zip(row.input_ids, row.logprobs, strict=True):
            labels.append(IGNORED if logprob is None else token)
            behavior.append(0.0 if logprob is None else min(logprob, 0.0))
        ends.append(len(ids))
    offsets = pa.array(ends, type=pa.int64())
    lists = (("input_ids", ids, pa.int32()), ("labels", labels, pa.int32()), ("behavior", behavior, pa.float32()))
    columns: dict[str, Any] = {
        name: pa.LargeListArray.from_arrays(offsets, pa.array(values, type=kind)) for name, values, kind in lists
    }
    spreads = [row.rollout.group_std + 1e-4 if scaled else 1.0 for row in rows]
    columns["advantage"] = pa.array([row.rollout.advantage / by for row, by in zip(rows, spreads, strict=True)])
    columns["reward"] = pa.array([row.rollout.record.reward for row in rows])
    columns["group_std"] = pa.array([row.rollout.group_std for row in rows])
    columns["flat"] = pa.array([float(not row.rollout.contrast) for row in rows])
    columns["sampled"] = pa.array([float(row.sampled) for row in rows])
    return Dataset(pa.table(columns))
