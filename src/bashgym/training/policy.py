"""TRL's GRPOTrainer with what it lacks: groups without contrast leave the loss, others are sampled in their place.

Owns: scoring through our verifiers, the reward columns, the filter and its refills, the normaliser of the loss over what
is left, and what a checkpoint needs to continue within a rollout batch. Does not own: the loss itself (TRL's, see
`grpo.LOSSES`), rewards (`envs.rewards`), records (`rollouts`), group arithmetic (`groups`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather, gather_object
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import (
    RepeatSampler,
    add_fused_lm_head,
    shuffle_sequence_dict,
    split_tensor_dict,
)

from bashgym.envs.rewards import RewardResult
from bashgym.envs.rewards.rwml import distance_metrics
from bashgym.training import echo, groups
from bashgym.training.batches import EpochSampler, normalise, replace_groups
from bashgym.training.head import use_float32_head
from bashgym.training.rollouts import Rollout, RolloutLog, status_metrics

Judge = Callable[[list[Any], list[Any], list[dict[str, Any]], list[Any] | None], list[RewardResult]]
"""(prompts, completions, dataset rows, environments or None) -> one verdict each, in their order."""


@dataclass(frozen=True)
class Shaping:
    """What is done with rewards between the verifier and the loss."""

    filter_groups: bool = False
    active_sampling: bool = False
    overlong_buffer: int | None = None
    overlong_penalty: float = 1.0
    head_fp32: bool = False
    """Logits in float32, in sampling and in the loss, whatever the weights are in."""
    echo_lambda: float | None = None
    """Weight of the loss on observation tokens (`echo`); None goes without."""
    easy: tuple[float, float] | None = None
    """(pass rate from which a group is easy, probability with which an easy one stays in the loss)."""


@dataclass
class _Scored:
    """One call's answers, as this process saw them, and everyone's rewards."""

    prompts: list[Any]
    completions: list[Any]
    lengths: list[int]
    truncated: list[bool]
    results: list[RewardResult]
    parts: list[dict[str, float]]
    own_rewards: list[float]
    rewards: list[float]
    """Of all processes, in the order of their ranks; NaN without a verdict."""


class PolicyTrainer(GRPOTrainer):
    """GRPO over `judge`'s verdicts.

    Without a filter, a shaping or a verifier fault, its loss is TRL's to the bit, except that `dapo` divides each
    optimizer step by that step's own tokens also where a rollout batch spans several steps.
    """

    def __init__(self, *, model: Any, args: Any, judge: Judge, shaping: Shaping, log: RolloutLog, **rest: Any) -> None:
        beta, full = args.beta, not hasattr(model, "peft_config") and rest.get("peft_config") is None
        reference = copy.deepcopy(model) if full and beta else None
        if reference is not None:
            # TRL would load the reference from the folder of the base model, which is not where an adapter that was
            # merged for full fine-tuning starts from.
            args.beta = 0.0
        super().__init__(model=model, args=args, reward_funcs=[_no_verdict], **rest)
        args.beta = self.beta = beta
        self._judge, self._shaping, self._rollouts = judge, shaping, log
        if shaping.head_fp32:
            self._score_in_float32(self.model if full else self.model.get_base_model())
        if reference is not None:
            self.ref_model = self._prepared_reference(reference)
        columns = ["task", *(["overlong"] if shaping.overlong_buffer else [])]
        # TRL adds a column for an environment that has get_reward; `judge` asks the environments itself.
        self.reward_func_names, self.reward_funcs = columns, [_no_verdict] * len(columns)
        self.reward_processing_classes = [None] * len(columns)
        self.reward_weights = torch.ones(len(columns))
        self._buffered_inputs: list[dict[str, Any]] | None = None
        self._scored: _Scored
        self._logprobs: torch.Tensor

    def _score_in_float32(self, model: Any) -> None:
        use_float32_head(model)
        add_fused_lm_head(
            model, temperature=self.temperature, cast_lm_head_to_fp32=True, outputs=("log_probs", "entropy")
        )

    def _prepared_reference(self, reference: Any) -> Any:
        reference.eval().requires_grad_(False)
        if self._shaping.head_fp32:
            self._score_in_float32(reference)
        else:
            add_fused_lm_head(reference, temperature=self.temperature)
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    # -- sampling and scoring ---------------------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Any = None) -> EpochSampler:
        return EpochSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed,
        )

    def _get_eval_sampler(self, eval_dataset: Any) -> RepeatSampler:
        return RepeatSampler(eval_dataset, mini_repeat_count=self.num_generations_eval, shuffle=False)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Samples with the same draws at every evaluation, and leaves the training's draws as they were."""
        with torch.random.fork_rng():
            torch.manual_seed(self.args.seed + self.accelerator.process_index)
            return dict(super().evaluate(*args, **kwargs))

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: Any
    ) -> torch.Tensor:
        """Rewards (completions of all processes, columns); NaN in every column of an answer without a verdict."""
        results = self._judge(prompts, completions, [row["row"] for row in inputs], self.environments)
        task = [math.nan if result.reward is None else float(result.reward) for result in results]
        lengths, columns, shaping = [len(ids) for ids in completion_ids_list], {"task": task}, self._shaping
        if shaping.overlong_buffer:
            limit, buffer, most = self.max_completion_length, shaping.overlong_buffer, shaping.overlong_penalty
            penalties = [groups.overlong_penalty(length, limit, buffer, most) for length in lengths]
            # Without a verdict the sum stays NaN, as TRL wants it.
            columns["overlong"] = [math.nan if math.isnan(r) else p for r, p in zip(task, penalties, strict=True)]
        for result in results:
            for name, value in status_metrics(result).items():
                self._log_metric(name, value)
        for name, value in distance_metrics(results).items():
            self._log_metric(name, value)
        table = torch.tensor(list(columns.values()), dtype=torch.float32, device=self.accelerator.device)
        per_column = gather(table.T.contiguous())
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        own = [math.fsum(values) for values in zip(*columns.values(), strict=True)]
        shaped = [{"overlong": p} for p in columns.get("overlong", [])] or [{} for _ in results]
        self._scored = _Scored(
            prompts=prompts,
            completions=completions,
            lengths=lengths,
            truncated=[not ids or ids[-1] not in ends for ids in completion_ids_list],
            results=results,
            parts=[{**r.parts, **s} if r.reward is not None else r.parts for r, s in zip(results, shaped, strict=True)],
            own_rewards=own,
            rewards=per_column.sum(dim=1).tolist(),
        )
        return per_column

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollout batch with `kept` (B,): the answers that the loss is made of."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        training = self.model.training
        size = self.num_generations if training else self.num_generations_eval
        filtering = training and self._shaping.filter_groups
        tally = groups.Tally(requested=len(self._scored.rewards) // size)
        keep = [tally.add(group) or not filtering for group in _grouped(self._scored.rewards, size)]
        if training and self._shaping.easy is not None:
            keep = self._without_easy(keep, size)
        output["kept"] = self._kept(keep, size, len(inputs))
        self._record(inputs, output, size)
        if filtering:
            if self._shaping.active_sampling:
                self._refill(inputs, output, keep, tally)
            for name, value in tally.metrics().items():
                self._metrics["train"][name].append(value)
            if not tally.effective:
                step = self.state.global_step + 1
                print(f"[bashgym] step {step}: no group has contrast, so nothing is trained on this batch", flush=True)
        return output

    def _without_easy(self, keep: list[bool], size: int) -> list[bool]:
        """Leaves out most groups whose answers pass anyway: the same ones on every process, and after a resume."""
        rate, probability = self._shaping.easy or (math.inf, 1.0)
        step = int(self.state.global_step)
        kept = [
            stays and not (groups.is_easy(group, rate) and groups.draw((self.args.seed, step, g)) >= probability)
            for g, (stays, group) in enumerate(zip(keep, _grouped(self._scored.rewards, size), strict=True))
        ]
        self._metrics["train"]["rwml_easy_groups_dropped"].append(sum(keep) - sum(kept))
        return kept

    def _kept(self, keep: list[bool], size: int, count: int) -> torch.Tensor:
        """Bool (own answers,): in a kept group, and with a verdict."""
        start = self.accelerator.process_index * count
        own = [keep[(start + i) // size] and not math.isnan(r) for i, r in enumerate(self._scored.own_rewards)]
        return torch.tensor(own, device=self.accelerator.device)

    def _record(self, inputs: list[dict[str, Any]], output: dict[str, Any], size: int, refill: int = 0) -> None:
        """Every answer goes to samples.jsonl, those that are not trained on too."""
        scored, first = self._scored, self.accelerator.process_index * len(inputs)
        advantages, kept = output["advantages"].tolist(), output["kept"].tolist()
        self._rollouts.write(
            Rollout(
                step=self.state.global_step + 1,
                split="train" if self.model.training else "eval",
                refill=refill,
                group=(first + i) // size,
                row=inputs[i]["number"],
                prompt=scored.prompts[i],
                completion=_said(scored.completions[i]),
                tokens=scored.lengths[i],
                truncated=scored.truncated[i],
                reward=None if math.isnan(scored.own_rewards[i]) else scored.own_rewards[i],
                parts=scored.parts[i],
                status=str(scored.results[i].status),
                detail=scored.results[i].detail,
                advantage=advantages[i],
                kept=kept[i],
            )
            for i in range(len(inputs))
        )

    # -- active sampling --------------------------------------------------------------------------------------------

    def _refill(
        self, inputs: list[dict[str, Any]], output: dict[str, Any], keep: list[bool], tally: groups.Tally
    ) -> None:
        """Samples further prompts in the place of groups without contrast, at most `REFILL_ROUNDS` times.

        Each process refills the groups it holds; all know everyone's rewards, so they agree on the number without asking.
        """
        size, processes, rank = self.num_generations, self.accelerator.num_processes, self.accelerator.process_index
        held = len(keep) // processes
        seen = set(gather_object([row["index"] for row in inputs]))
        for attempt in range(1, groups.REFILL_ROUNDS + 1):
            open_slots = [[g for g in range(p * held, (p + 1) * held) if not keep[g]] for p in range(processes)]
            count = max(len(slots) for slots in open_slots)
            if not count:
                return
            key = (int(self.args.seed), int(self.state.global_step), attempt)
            drawn = groups.draw_rows(len(self.train_dataset), count * processes, key, seen)
            own = drawn[rank * count : (rank + 1) * count]
            rows = [self.train_dataset[index] for index in own for _ in range(size)]
            seen.update(drawn)
            extra = self._sampled_aside(rows)
            used: list[tuple[int, int]] = []
            candidates = _grouped(self._scored.rewards, size)
            for p in range(processes):
                waiting = open_slots[p]
                for c, group in enumerate(candidates[p * count : (p + 1) * count]):
                    if waiting and tally.add(group):
                        slot = waiting.pop(0)
                        keep[slot] = True
                        used += [(slot - rank * held, c)] if p == rank else []
            chosen = {c for _, c in used}
            contrast = [c in chosen for c in range(count)]
            extra["kept"] = self._kept([False] * rank * count + contrast, size, len(rows))
            self._record(rows, extra, size, refill=attempt)
            replace_groups(output, extra, used, size, self._tokenizer.pad_token_id)

    def _sampled_aside(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A further rollout whose metrics do not mix with those of the batch: they would hide the raw zero-std share."""
        metrics = self._metrics["train"]
        before = {name: list(values) for name, values in metrics.items()}
        extra: dict[str, Any] = super()._generate_and_score_completions(rows)
        tokens = metrics["num_tokens"]
        metrics.clear()
        metrics.update(before, num_tokens=tokens)
        return extra

    # -- the loss over what is kept ---------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if not self.model.training:
            return dict(super()._prepare_inputs(generation_batch))
        steps = self.args.steps_per_generation
        if self._step % (steps * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = shuffle_sequence_dict(self._generate_and_score_completions(generation_batch))
            self._buffered_inputs = normalise(
                split_tensor_dict(batch, steps),
                window=self.args.gradient_accumulation_steps,
                processes=self.accelerator.num_processes,
                loss_type=self.loss_type,
                total=self._over_processes,
            )
            if self._shaping.echo_lambda is not None:
                echo.count(self._buffered_inputs, self.args.gradient_accumulation_steps, self._over_processes)
        return dict(self._buffered_inputs[self._step % steps])

    def _over_processes(self, counts: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.accelerator.reduce(counts, reduction="sum")
        return total

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._logprobs = found[0]
        return found

    def _echo(self, inputs: dict[str, Any]) -> torch.Tensor:
        """This micro-batch's part of the step's loss on observations; the parts of all add up to it."""
        tokens, special = inputs["observation_tokens"], self._tokenizer.all_special_ids
        left_out = echo.excluded(inputs["completion_ids"], special)
        part = echo.observation_loss(self._logprobs, echo.observed(inputs), left_out, tokens)
        window = self.args.gradient_accumulation_steps
        # TRL logs the mean over a step's micro-batches, and each has a part of the sum.
        self._metrics["train"]["echo_loss"].append(self._over_processes(part.detach()).item() * window)
        self._metrics["train"]["echo_observation_tokens"].append(float(tokens))
        return part * self.accelerator.num_processes

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if "loss_scale" not in inputs:
            return super()._compute_loss(model, inputs)
        metrics = self._metrics["train"]
        before = {name: len(values) for name, values in metrics.items()}
        loss = super()._compute_loss(model, inputs)
        if not inputs["rows_in_part"]:
            # Means over no token: an entropy of zero that nobody measured.
            for name, values in metrics.items():
                del values[before.get(name, 0) :]
        loss = loss * inputs["loss_scale"]
        if self._shaping.echo_lambda is not None:
            loss = loss + self._shaping.echo_lambda * self._echo(inputs)
        return loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One micro-batch. After the last one of an optimizer step that kept nothing, there are no gradients at all."""
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.args.gradient_accumulation_steps == 0 and self._buffered_inputs is not None:
            done = self._buffered_inputs[(self._step - 1) % self.args.steps_per_generation]
            # Zero gradients would still move the weights, by Adam's momentum and by decay. A loss scaler needs some.
            if not done["rows_in_step"] and self.accelerator.scaler is None and not self.is_deepspeed_enabled:
                model.zero_grad(set_to_none=True)
        return loss

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Within a rollout batch, the rest of it belongs to the state: an older policy sampled it."""
        super()._save_checkpoint(model, trial)
        if self._buffered_inputs is None or self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            return
        tensors = {f"{i}.{k}": v.clone() for i, part in enumerate(self._buffered_inputs) for k, v in part.items()}
        folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        save_file(tensors | {"step": torch.tensor(self._step)}, folder / self._buffer_name())
        self.accelerator.wait_for_everyone()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = Path(checkpoint or "") / self._buffer_name()
        if checkpoint is None or not path.is_file():
            return
        tensors = load_file(path, device=str(self.accelerator.device))
        self._step = int(tensors.pop("step"))
        parts: list[dict[str, Any]] = [{} for _ in range(self.args.steps_per_generation)]
        for name, tensor in tensors.items():
            place, _, key = name.partition(".")
            parts[int(place)][key] = tensor
        self._buffered_inputs = parts

    def _buffer_name(self) -> str:
        return f"rollouts-{self.accelerator.process_index}.safetensors"


class ReferenceOff(TrainerCallback):
    """An adapter that training started from stands twice in the model, once frozen as the reference; only one is saved."""

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the frozen copy out, before final/ is written."""
        model = kwargs["model"]
        if "ref" in getattr(model, "peft_config", {}):
            model.delete_adapter("ref")


def _no_verdict(**_: Any) -> list[float | None]:
    """Stands where TRL wants a function and a name; `PolicyTrainer._calculate_rewards` asks the judge instead."""
    raise AssertionError("rewards come from the judge")


def _said(completion: Any) -> Any:
    """The text of an answer; the messages where there are several, or calls."""
    turn = completion[0] if isinstance(completion, list) and len(completion) == 1 else {}
    return turn["content"] if turn.get("content") is not None and not turn.get("tool_calls") else completion


def _grouped(rewards: list[float], size: int) -> list[list[float]]:
    return [rewards[i : i + size] for i in range(0, len(rewards), size)]
