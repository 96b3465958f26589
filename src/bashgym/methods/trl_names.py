"""Our field names and TRL's: one table, read by the trainer (to build its config) and by the start (to refuse doubles)."""

from __future__ import annotations

SHARED = {
    "batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "learning_rate": "learning_rate",
    "num_epochs": "num_train_epochs",
    "max_steps": "max_steps",
    "warmup_ratio": "warmup_steps",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
    "lr_scheduler_type": "lr_scheduler_type",
    "optim": "optim",
    "logging_steps": "logging_steps",
    "save_steps": "save_steps",
    "eval_steps": "eval_steps",
    "seed": "seed",
    "gradient_checkpointing": "gradient_checkpointing",
    "report_to": "report_to",
    "packing": "packing",
    "max_seq_length": "max_length",
    "use_liger": "use_liger_kernel",
    "assistant_only_loss": "assistant_only_loss",
    "completion_only_loss": "completion_only_loss",
}
"""Our field → the argument of TRL's config classes (transformers' TrainingArguments included)."""

DECIDED = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing",
    "gradient_checkpointing_kwargs": "gradient_checkpointing",
    "logging_strategy": "logging_steps",
    "auto_find_batch_size": "batch_size",
    "ddp_backend": "distributed",
    "run_name": "run_id",
}
"""Further arguments that a field of ours decides without having their name or form → that field."""

CONFIG_CLASS = {
    "sft": "SFTConfig",
    "dpo": "DPOConfig",
    "grpo": "GRPOConfig",
    "rlvr": "GRPOConfig",
    "distillation": "SFTConfig",
    "session_distillation": "SFTConfig",
    "dppo": "SFTConfig",
    "reward_model": "RewardConfig",
}
"""Direct strategy → the class of TRL whose arguments `trainer_args` may name."""

GRPO = {
    "grpo_group_size": "num_generations",
    "grpo_temperature": "temperature",
    "grpo_beta": "beta",
    "grpo_ratio_clip_min": "epsilon",
    "grpo_ratio_clip_max": "epsilon_high",
}
"""Fields of grpo and rlvr → the argument of GRPOConfig."""

GRPO_OWNED = {
    "loss_type": "grpo_loss_type",
    "importance_sampling_level": "grpo_loss_type",
    "scale_rewards": "grpo_loss_type",
    "max_completion_length": "max_completion_length",
    "steps_per_generation": "prompts_per_rollout_batch",
    "generation_batch_size": "prompts_per_rollout_batch",
    "num_generations_eval": "grpo_group_size",
    "max_tool_calling_iterations": "max_tool_calls_per_episode",
    "cast_lm_head_to_fp32": "lm_head_fp32",
    "use_vllm": "grpo_backend",
    "reward_weights": "the run",
    "multi_objective_aggregation": "the run",
    "sync_ref_model": "the run",
    "shuffle_dataset": "the run",
    "log_completions": "the run",
}
"""Arguments of GRPOConfig that need more than copying → the field of ours (or `the run`) that decides them."""

DPO_OWNED = {
    "beta": "dpo_beta",
    "truncation_mode": "the run",
    "precompute_ref_log_probs": "the run",
    "sync_ref_model": "the run",
}
"""The same of DPOConfig."""

DISTILLATION_OWNED = {
    "loss_type": "distillation_divergence",
    "label_smoothing_factor": "distillation_alpha",
    "remove_unused_columns": "the run",
    "padding_free": "the run",
    "eos_token": "the run",
}
"""Arguments of SFTConfig that the loss on the teacher's logits does not have, or that the collator decides."""

REWARD_OWNED = {
    "center_rewards_coefficient": "reward_center_coefficient",
    "remove_unused_columns": "the run",
    "pad_token": "the run",
    "eos_token": "the run",
}
"""The same of RewardConfig."""

METHOD_OWNED: dict[str, dict[str, str]] = {
    **dict.fromkeys(("grpo", "rlvr"), {theirs: ours for ours, theirs in GRPO.items()} | GRPO_OWNED),
    "dpo": DPO_OWNED,
    "distillation": DISTILLATION_OWNED,
    "reward_model": REWARD_OWNED,
}
"""Method → the arguments of its TRL config that are decided elsewhere, and by what."""

OWNED = frozenset({
    "output_dir", "save_strategy", "save_total_limit", "save_only_model", "eval_strategy", "bf16", "fp16", "use_cpu",
    "push_to_hub",
    "hub_model_id", "hub_token", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision",
    "data_seed", "disable_tqdm", "logging_nan_inf_filter",
    "dataset_kwargs", "resume_from_checkpoint", "deepspeed", "fsdp", "fsdp_config", "do_train", "do_eval", "do_predict",
    "model_init_kwargs", "trust_remote_code", "chat_template_path", "ignore_data_skip",
})  # fmt: skip
"""Arguments that no request may set: the run directory, the registry or a security rule decides them."""
