"""Group-relative policy optimisation: the builder for the strategies grpo and rlvr.

Owns: which prompts are trained and how our fields become TRL's. The training loop beyond TRL's is `policy`'s, rewards are
`envs.rewards`', and what preflight counted as trainable is decided by the same function here.
"""

from __future__ import annotations

import atexit
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from datasets import Dataset
from trl import GRPOConfig

from bashgym.core.errors import fail
from bashgym.core.settings import Settings
from bashgym.data.grpo_checks import completion_length, trainable, uses_tools
from bashgym.data.preferences import PromptRow
from bashgym.data.tokens import TokenizerBundle
from bashgym.envs.rewards import RewardItem, RewardResult, make_rewarder, rwml
from bashgym.envs.rewards.tools import BashEnvironment
from bashgym.inference.local import stop_ids
from bashgym.methods.trl_names import GRPO
from bashgym.models.catalog import resolve
from bashgym.training.embedding import model_embedding
from bashgym.training.load import load_tokenizer, student
from bashgym.training.loop import Built, Job
from bashgym.training.policy import Judge, PolicyTrainer, ReferenceOff, Shaping
from bashgym.training.rollouts import HealthCallback, RolloutLog
from bashgym.training.rows import divided
from bashgym.training.tool_calls import read_tool_calls
from bashgym.training.trainer_args import shared_args

LOSSES = {
    "grpo": ("grpo", "token", "group"),
    "gspo": ("grpo", "sequence", "group"),
    "dr_grpo": ("dr_grpo", "token", "none"),
    "dapo": ("dapo", "token", "group"),
    "bnpo": ("bnpo", "token", "group"),
}
"""Our loss -> TRL's loss_type, importance_sampling_level and scale_rewards.

With ratio r_t = pi(y_t) / pi_old(y_t) and advantage A = (R - mean) / (std + 1e-4) in the group (sample std), every token has
l_t = -min(r_t A, clip(r_t, 1 - clip_min, 1 + clip_max) A) + beta KL_t, KL_t = p_ref/p - log(p_ref/p) - 1. Then:

- grpo: mean over answers of the mean over their tokens (Shao et al. 2024, arXiv 2402.03300, eq. 3). With
  token_level_loss: as dapo, with this clip range.
- gspo: as grpo with one ratio per answer, r = (pi(y) / pi_old(y))^(1 / |y|) (Zheng et al. 2025, arXiv 2507.18071, eq. 5-7);
  so each answer counts once.
- dapo: sum over all tokens of the optimizer step / their number (Yu et al. 2025, arXiv 2503.14476, eq. 8); clip_max is 0.28.
- dr_grpo: sum over tokens / (answers x max_completion_length), A = R - mean (Liu et al. 2025, arXiv 2503.20783, sec. 3.2).
- bnpo: per micro-batch, sum over tokens / their number. The name and the form are TRL's; the rescaling of rewards by a Beta
  distribution in the paper of that name (Xiao et al. 2025, arXiv 2506.02864) is not part of it.
"""


class Episode(BashEnvironment):
    """TRL hands `reset` the columns of its dataset; one of them is the row as it stands in the file."""

    def reset(self, row: dict[str, Any], **_: Any) -> str | None:
        """Begins an episode in the environment of `row`; what it returns is shown after the prompt."""
        return super().reset(**row)


def build(job: Job) -> Built:
    """A ready PolicyTrainer for the run."""
    request, folder = job.request, Path(job.manifest["model"]["path"])
    tools = uses_tools(request)
    train, evaluation = _rows(job, TokenizerBundle.load(folder))
    print(f"[bashgym] {len(train)} training prompts, {len(evaluation)} evaluation prompts", flush=True)
    if len(train) < request["prompts_per_rollout_batch"]:
        raise fail(
            "dataset_empty",
            f"a rollout batch takes {request['prompts_per_rollout_batch']} prompts and only {len(train)} can be trained on",
            hint="Lower prompts_per_rollout_batch (and gradient_accumulation_steps), or add rows.",
            fields=["prompts_per_rollout_batch"],
        )
    tokenizer = load_tokenizer(folder)
    if tools:
        read_tool_calls(tokenizer, str(job.manifest["model"]["name"]))
    model, peft_config = student(request, job.manifest)
    model.generation_config.eos_token_id = sorted(stop_ids(model, tokenizer))
    trainer = PolicyTrainer(
        model=model,
        args=config(job, with_eval=bool(evaluation)),
        judge=_judge(job),
        shaping=shaping(request),
        log=RolloutLog(job.run),
        train_dataset=dataset(train),
        eval_dataset=dataset(evaluation) if evaluation else None,
        processing_class=tokenizer,
        peft_config=peft_config,
        environment_factory=partial(Episode, request) if tools else None,
    )
    shown = train[: int(request["sample_prompts"])]
    return Built(
        trainer,
        tokenizer,
        [row.prompt for row in shown],
        [_expected(row) for row in shown],
        [ReferenceOff(), HealthCallback(job.run, str(request["reward_health"]))],
    )


def shaping(request: dict[str, Any]) -> Shaping:
    """What stands between verdicts and loss."""
    return Shaping(
        filter_groups=bool(request["filter_zero_std_groups"]),
        active_sampling=bool(request["active_sampling"]),
        overlong_buffer=request["overlong_buffer"],
        overlong_penalty=float(request["overlong_penalty"]),
        head_fp32=bool(request["lm_head_fp32"]),
        echo_lambda=float(request["echo_aux_lambda"]) if request["echo_enabled"] else None,
        easy=(float(request["rwml_easy_pass_rate_threshold"]), float(request["rwml_easy_keep_probability"]))
        if request["rwml_enabled"]
        else None,
    )


def config(job: Job, *, with_eval: bool) -> GRPOConfig:
    """TRL's arguments for the run."""
    request = job.request
    group = int(request["grpo_group_size"])
    loss, level, scale = LOSSES[str(request["grpo_loss_type"])]
    if request["token_level_loss"] and loss == "grpo":
        loss = "dapo"
    args = shared_args(request, str(job.run.path), with_eval=with_eval)
    if with_eval:
        # An evaluation batch holds whole groups.
        args["per_device_eval_batch_size"] = group * -(-int(request["batch_size"]) // group)
    return GRPOConfig(
        **args,
        **{theirs: request[ours] for ours, theirs in GRPO.items()},
        loss_type=loss,
        importance_sampling_level=level,
        scale_rewards=scale,
        max_completion_length=completion_length(request),
        generation_batch_size=int(request["prompts_per_rollout_batch"]) * group,
        max_tool_calling_iterations=int(request["max_tool_calls_per_episode"]),
        use_vllm=job.manifest["backend"]["name"] == "trl_vllm",
    )


def _rows(job: Job, bundle: TokenizerBundle) -> tuple[list[PromptRow], list[PromptRow]]:
    """(training rows, evaluation rows)."""
    train: list[PromptRow] = []
    evaluation: list[PromptRow] = []
    for row, held_out in divided(job, lambda path: trainable(Path(path), bundle, job.request)):
        (evaluation if held_out else train).append(row)
    return train, evaluation


def dataset(rows: list[PromptRow]) -> Dataset:
    """One JSON text a row, decoded on access: Arrow would make one type of a column, 7 of "007"."""
    lines = [
        msgspec.json.encode({"prompt": row.prompt, "row": row.value, "number": row.number, "index": index}).decode()
        for index, row in enumerate(rows)
    ]
    return Dataset(pa.table({"line": pa.array(lines, type=pa.large_string())})).with_transform(_decoded)


def _decoded(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
    rows = [msgspec.json.decode(line) for line in batch["line"]]
    return {name: [row[name] for row in rows] for name in ("prompt", "row", "number", "index")}


def _judge(job: Job) -> Judge:
    request = job.request
    if uses_tools(request):
        return _tool_judge(int(request["reward_workers"] or 8))
    return _prediction_judge(request) if request["rwml_enabled"] else _text_judge(job)


def _prediction_judge(request: dict[str, Any]) -> Judge:
    """RWML: an answer is judged by its distance from the observation that followed."""
    embed: rwml.Embed = rwml.hashed_ngrams
    if name := str(request["rwml_embedding_model"]):
        embed = model_embedding(resolve(name, Settings.from_env()).path)
    compare = rwml.reward_factory(embed, float(request["rwml_distance_threshold"]))

    def judge(_: list[Any], completions: list[Any], rows: list[dict[str, Any]], __: Any) -> list[RewardResult]:
        return compare([_text(c) for c in completions], [str(row["answer"]) for row in rows])

    return judge


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")


def _text_judge(job: Job) -> Judge:
    rewarder = make_rewarder(job.request, job.run.path)
    atexit.register(rewarder.close)

    def judge(prompts: list[Any], completions: list[Any], rows: list[dict[str, Any]], _: Any) -> list[RewardResult]:
        texts = [_text(c) for c in completions]
        return rewarder.score([RewardItem(*item) for item in zip(prompts, texts, rows, strict=True)])

    return judge


def _tool_judge(workers: int) -> Judge:
    """Each episode's environment judges it; their verifiers run side by side."""

    def judge(_: list[Any], __: list[Any], ___: list[dict[str, Any]], environments: Any) -> list[RewardResult]:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda environment: environment.get_reward(), environments))
        return [environment.result for environment in environments]

    return judge


def _expected(row: PromptRow) -> str:
    """The ground truth of a row, for a person to compare."""
    return next((str(row.value[name]) for name in ("answer", "tests") if row.value.get(name) is not None), "")
