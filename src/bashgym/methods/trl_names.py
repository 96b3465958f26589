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

OWNED = frozenset({
    "output_dir", "save_strategy", "save_total_limit", "save_only_model", "eval_strategy", "bf16", "fp16", "use_cpu",
    "push_to_hub",
    "hub_model_id", "hub_token", "hub_strategy", "hub_private_repo", "data_seed", "disable_tqdm", "logging_nan_inf_filter",
    "dataset_kwargs", "resume_from_checkpoint", "deepspeed", "fsdp", "fsdp_config", "do_train", "do_eval", "do_predict",
    "model_init_kwargs", "trust_remote_code", "chat_template_path",
})  # fmt: skip
"""Arguments that no request may set: the run directory, the registry or a security rule decides them."""
