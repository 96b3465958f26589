"""Distillation from a teacher's logits, on TRL's SFTTrainer.

Per trained token of the teacher's answer: α·CE + (1 − α)·T²·D(teacher, student). D is a divergence of both distributions
at temperature T, and T² keeps its gradient as large as that of CE, which is taken at temperature 1 (Hinton et al. 2015,
arXiv 1503.02531, section 2). On-policy the student samples the answers at temperature 1, once an optimizer step, and the
loss is T²·D on them: there is no right token for CE (Agarwal et al. 2023, GKD, arXiv 2306.13649). Across tokenizers D is
`sorted_distance` and has no T², which is made for the divergences. Without a teacher CE is left, and the run is called
`sft_on_teacher_outputs`. TRL's own DistillationTrainer samples at the temperature that softens, and knows neither CE nor
answers of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from trl import SFTConfig, SFTTrainer
from trl.models.utils import unwrap_model_for_generation

from bashgym.core.errors import fail
from bashgym.data.alignment import align
from bashgym.data.distillation_checks import answer_start, completion_length, encoded_rows
from bashgym.data.encode import IGNORED
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import Encoded, SftExample
from bashgym.training.divergence import sorted_distance, token_divergence
from bashgym.training.load import choose_dtype, load_model, load_tokenizer, student
from bashgym.training.loop import Built, Job
from bashgym.training.rows import divided
from bashgym.training.trainer_args import shared_args

Row = dict[str, list[int]]
"""input_ids and labels; across tokenizers also teacher_input_ids, and aligned and teacher_aligned: 1 at compared tokens."""


@dataclass(frozen=True)
class Objective:
    """What is minimised."""

    alpha: float
    """Weight of CE, 0 to 1; 1 without a teacher."""
    temperature: float
    divergence: str
    """forward_kl, reverse_kl, jsd or uld."""
    sample_tokens: int | None = None
    """On-policy: most tokens of a sampled answer. None: the answers of the rows."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a sampled answer."""

    @property
    def weight(self) -> float:
        """Of D in the loss."""
        share = 1.0 if self.sample_tokens else 1 - self.alpha
        return share if self.divergence == "uld" else share * self.temperature**2


def build(job: Job) -> Built:
    """A ready trainer for the run."""
    request, folder = job.request, Path(job.manifest["model"]["path"])
    bundle = TokenizerBundle.load(folder)
    train, evaluation, samples = _datasets(job, bundle)
    print(f"[bashgym] {len(train)} training rows, {len(evaluation) if evaluation else 0} evaluation rows", flush=True)
    args = shared_args(request, str(job.run.path), with_eval=evaluation is not None)
    config = SFTConfig(
        **args,
        max_length=int(request["max_seq_length"]),
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )
    tokenizer = load_tokenizer(folder)
    model, peft_config = student(request, job.manifest)
    trainer = DistillationTrainer(
        model=model,
        args=config,
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        peft_config=peft_config,
        data_collator=Collator(int(tokenizer.pad_token_id)),
        teacher=_teacher(job),
        objective=_objective(job, bundle),
    )
    prompts = [example.prompt or "" for example in samples]
    return Built(trainer, tokenizer, prompts, [_text(example) for example in samples])


class Collator:
    """Pads every column on the right, and adds the attention masks."""

    def __init__(self, pad_id: int) -> None:
        self.fill = {"input_ids": pad_id, "teacher_input_ids": pad_id, "labels": IGNORED}

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Tensors [B, T] by column; those of the teacher have a length of their own."""
        batch = {}
        for name in rows[0]:
            columns = [torch.as_tensor(row[name]) for row in rows]
            batch[name] = pad_sequence(columns, batch_first=True, padding_value=self.fill.get(name, 0))
            if name.endswith("input_ids"):
                ones = [torch.ones_like(column) for column in columns]
                batch[name.replace("input_ids", "attention_mask")] = pad_sequence(ones, batch_first=True)
        return batch


class DistillationTrainer(SFTTrainer):
    """TRL's SFTTrainer with the loss of this module. The teacher is no part of the model that is saved."""

    def __init__(self, *args: Any, teacher: Any, objective: Objective, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teacher = teacher.to(self.args.device).eval().requires_grad_(False) if teacher is not None else None
        self.objective = objective
        # The loss is divided by the tokens of the whole optimizer step, so it must not be divided by its batches again.
        self.model_accepts_loss_kwargs = True
        self._sums = {"": torch.zeros(3, dtype=torch.float64), "eval_": torch.zeros(3, dtype=torch.float64)}

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The module's formula, averaged over the trained tokens of the step (of the batch, in evaluation)."""
        labels = inputs["labels"][:, 1:]
        trained = labels != IGNORED
        logits = logits_where(model, inputs["input_ids"], inputs["attention_mask"], trained)
        ce = cross_entropy(logits.float(), labels[trained], reduction="sum")
        distance = self._distance(logits, trained, inputs)
        if distance is None or self.objective.sample_tokens:
            loss = ce if distance is None else self.objective.weight * distance
        else:
            loss = self.objective.alpha * ce + self.objective.weight * distance
        kl = distance.detach() if distance is not None else torch.zeros(())
        parts = [kl, ce.detach(), trained.sum()]
        self._sums["" if model.training else "eval_"] += torch.stack([part.double().cpu() for part in parts])
        if model.training:
            self._total_train_tokens += int(inputs["attention_mask"].sum())
        if num_items_in_batch is None:
            return loss / trained.sum().clamp(min=1)
        processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return loss * processes / num_items_in_batch

    def _distance(self, logits: Tensor, trained: Tensor, inputs: dict[str, Tensor]) -> Tensor | None:
        """Σ D over the trained tokens; None without a teacher."""
        if self.teacher is None:
            return None
        goal = self.objective
        if goal.divergence == "uld":
            where, branch = inputs["teacher_aligned"][:, :-1] == 1, "teacher_"
            logits = logits[inputs["aligned"][:, :-1][trained] == 1]
        else:
            where, branch = trained, ""
        with torch.no_grad():
            theirs = logits_where(self.teacher, inputs[f"{branch}input_ids"], inputs[f"{branch}attention_mask"], where)
        if goal.divergence == "uld":
            return sorted_distance(logits, theirs, goal.temperature).sum()
        return token_divergence(logits, theirs, goal.divergence, goal.temperature).sum()

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """On-policy, the batches of a step hold answers of the student as it is before the step."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not self.objective.sample_tokens:
            return batches, items
        place = (self.state.global_step, self.accelerator.process_index)
        batches = [self._sampled(batch, f"{place} {at}") for at, batch in enumerate(batches)]
        return batches, self._get_num_items_in_batch(batches, device)

    def prediction_step(self, model: Any, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """On-policy, evaluation samples too, from the same random numbers each time."""
        if self.objective.sample_tokens:
            inputs = self._sampled(self._prepare_inputs(inputs), str(inputs["input_ids"].tolist()))
        return super().prediction_step(model, inputs, *args, **kwargs)

    def _sampled(self, batch: dict[str, Tensor], key: str) -> dict[str, Tensor]:
        """Prompts with answers that the student samples. The random numbers follow from the seed and `key` alone."""
        lengths = batch["attention_mask"].sum(1).tolist()
        prompts = [ids[:length] for ids, length in zip(batch["input_ids"], lengths, strict=True)]
        pad_id = self.data_collator.fill["input_ids"]
        padded = pad_sequence(prompts, batch_first=True, padding_value=pad_id, padding_side="left")
        masks = [torch.ones_like(prompt) for prompt in prompts]
        seed = hashlib.sha256(f"{self.args.seed} {key}".encode()).digest()
        with (
            torch.random.fork_rng(),
            torch.no_grad(),
            unwrap_model_for_generation(self.model_wrapped, self.accelerator) as model,
        ):
            torch.manual_seed(int.from_bytes(seed[:7], "big"))
            training = model.training
            model.eval()
            answers = model.generate(
                input_ids=padded,
                attention_mask=pad_sequence(masks, batch_first=True, padding_side="left"),
                generation_config=GenerationConfig(
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    repetition_penalty=1.0,
                    max_new_tokens=self.objective.sample_tokens,
                    pad_token_id=pad_id,
                    eos_token_id=list(self.objective.stop_ids) or None,
                ),
            )[:, padded.shape[1] :]
            model.train(training)
        return self.data_collator([self._joined(*pair) for pair in zip(prompts, answers, strict=True)])

    def _joined(self, prompt: Tensor, answer: Tensor) -> dict[str, Tensor]:
        """The row of a prompt and a sampled answer up to its first stop token, which is trained too."""
        stops = torch.isin(answer, answer.new_tensor(self.objective.stop_ids)).nonzero()
        answer = answer[: int(stops[0]) + 1] if len(stops) else answer
        labels = torch.cat([torch.full_like(prompt, IGNORED), answer])
        return {"input_ids": torch.cat([prompt, answer]), "labels": labels}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the parts of the loss without their weights, per trained token since the last log."""
        for prefix, sums in self._sums.items():
            if f"{prefix}loss" not in logs:
                continue
            kl, ce, tokens = self.accelerator.reduce(sums.to(self.args.device, torch.float32), "sum").tolist()
            if self.teacher is not None:
                logs[f"{prefix}distillation_kl"] = kl / max(1.0, tokens)
            if not self.objective.sample_tokens:
                logs[f"{prefix}distillation_ce"] = ce / max(1.0, tokens)
            if not prefix:
                logs["num_tokens"] = self._total_train_tokens
            sums.zero_()
        super().log(logs, start_time)


def logits_where(model: Any, input_ids: Tensor, attention_mask: Tensor, where: Tensor) -> Tensor:
    """The logits [N, V] at the marked positions ([B, T − 1]), row by row. The head runs only where some row is marked."""
    keep = where.any(0).nonzero().squeeze(-1)
    logits = model(input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=keep, use_cache=False).logits
    if logits.shape[1] != len(keep):  # an architecture that knows no logits_to_keep gives all
        logits = logits[:, keep]
    return logits[where[:, keep]]


def _teacher(job: Job) -> Any:
    """The teacher in the student's dtype, its adapter on top; None if the run has none."""
    facts = job.manifest.get("teacher")
    if not facts:
        return None
    model = load_model(Path(facts["path"]), dtype=choose_dtype(str(job.request["dtype"])))
    if not facts["adapter_path"]:
        return model
    from peft import PeftModel

    return PeftModel.from_pretrained(model, facts["adapter_path"])


def _objective(job: Job, bundle: TokenizerBundle) -> Objective:
    request = job.request
    uld, sampled = request["distillation_alignment"] == "uld", request["distillation_on_policy"]
    return Objective(
        alpha=float(request["distillation_alpha"]),
        temperature=float(request["teacher_temperature"]),
        divergence="uld" if uld else str(request["distillation_divergence"]),
        sample_tokens=completion_length(request) if sampled else None,
        stop_ids=tuple(sorted(bundle.stop_ids)),
    )


def _datasets(job: Job, bundle: TokenizerBundle) -> tuple[Dataset, Dataset | None, list[SftExample]]:
    """(train, evaluation or None, a few training examples to sample from)."""
    request, facts = job.request, job.manifest.get("teacher") or {}
    uld = facts and request["distillation_alignment"] == "uld"
    teacher = TokenizerBundle.load(Path(facts["path"])) if uld else None
    train, evaluation, samples = list[Row](), list[Row](), list[SftExample]()
    for (example, encoded), held_out in divided(job, lambda path: encoded_rows(bundle, Path(path), request)):
        row = _row(request, bundle, teacher, example, encoded)
        (evaluation if held_out else train).append(row)
        if not held_out and len(samples) < int(request["sample_prompts"]):
            samples.append(example)
    if not train:
        raise fail("dataset_empty", "no row has a trained token at this max_seq_length", fields=["max_seq_length"])
    return Dataset.from_list(train), Dataset.from_list(evaluation) if evaluation else None, samples


def _row(
    request: dict[str, Any],
    bundle: TokenizerBundle,
    teacher: TokenizerBundle | None,
    example: SftExample,
    encoded: Encoded,
) -> Row:
    if request["distillation_on_policy"]:
        prompt = encoded.input_ids[: answer_start(encoded)]
        return {"input_ids": prompt, "labels": [IGNORED] * len(prompt)}
    row: Row = {"input_ids": encoded.input_ids, "labels": encoded.labels}
    if teacher is None:
        return row
    return row | align(bundle, teacher, example, encoded, int(request["max_seq_length"]))


def _text(example: SftExample) -> str:
    """The teacher's answer, as text."""
    answer = example.completion or ""
    return answer if isinstance(answer, str) else str(answer[0].get("content") or "")
