"""Fields that every direct strategy has, by group, and the value tables that belong to them. Data only.

Bounds and defaults follow the training request of the product's specification; where they differ, `help` says why.
"""

from __future__ import annotations

from bashgym.methods.spec import Field, Kind

STR, INT, FLOAT, BOOL, LIST, OBJECT = Kind.STR, Kind.INT, Kind.FLOAT, Kind.BOOL, Kind.LIST, Kind.OBJECT

HARDWARE: dict[str, str] = {
    "local_cpu": "no accelerator; tiny models, or a small model for a few steps",
    "local_12gb": "one consumer GPU with about 12 GB",
    "local_24gb": "one GPU with about 24 GB",
    "private_compute": "a private GPU host or unified-memory machine with 48 GB or more",
    "cloud": "a rented GPU",
}
HARDWARE_ALIASES = {"private-compute": "private_compute", "remote": "private_compute", "remote_gpu": "private_compute"}

DATA: dict[str, str] = {
    "gold_traces": "agent sessions whose outcome was verified",
    "small": "fewer than about a thousand rows",
    "custom_jsonl": "a JSONL file of your own",
    "terminal_envs": "tasks with an executed verifier",
    "security": "a security data set, converted to one of our row formats first",
}

RETENTION: dict[str, dict[str, bool]] = {
    "adapter_only": {"checkpoints": False, "final": True, "merged": False},
    "adapter_checkpoint": {"checkpoints": True, "final": True, "merged": False},
    "deployable": {"checkpoints": False, "final": True, "merged": True},
    "full_run": {"checkpoints": True, "final": True, "merged": True},
}
"""Policy -> what is left after success. GGUF needs `merged` and auto_export_gguf."""

STORAGE: dict[str, object] = {
    "checkpoint_limit": 1,
    "artifact_retention": "adapter_only",
    "auto_push_hf": False,
    "hf_private": True,
    "hf_upload_artifact": "auto",
}
"""The storage block that every direct plan carries."""

ADJUST: dict[str, str] = {
    "checkpoint_limit": "two or three when a run is long and a late checkpoint may turn out worse than an earlier one",
    "artifact_retention": "adapter_checkpoint to continue or branch later, deployable to serve, full_run for an audit",
    "auto_push_hf": "only with an approved repository in hf_repo_name",
    "hf_private": "false only after licence, provenance and privacy were reviewed",
    "hf_upload_artifact": "adapter saves storage; merged needs a retention policy that keeps merged weights",
    "num_epochs": "fewer when eval_loss turns up, more while held-out behaviour still improves",
    "batch_size": "as large as memory allows; divide gradient_accumulation_steps by the same factor",
    "gradient_accumulation_steps": "together with batch_size, so that their product stays",
    "max_seq_length": "raise it when preflight counts truncated rows, lower it when memory is short",
    "learning_rate": "halve it when loss or grad_norm spikes, double it when loss is flat after warm-up",
    "use_lora": "false when the adapter underfits and every weight with its optimizer state fits in memory",
    "lora_rank": "double it when the adapter underfits a large, varied data set",
    "lora_alpha": "with lora_rank, at twice its value",
    "load_in_4bit": "false when memory allows: 4-bit costs a little quality",
}
"""When to move a setting, where the method has nothing more exact to say."""

FOUR_BIT: dict[str, dict[str, object]] = {
    "local_cpu": {"load_in_4bit": False},
    "local_12gb": {"load_in_4bit": True},
    "local_24gb": {"load_in_4bit": True},
    "private_compute": {"load_in_4bit": False},
    "cloud": {"load_in_4bit": True},
}
"""4-bit base weights by hardware: a private host with enough memory trains better without."""


def by_hardware(**settings: dict[str, object]) -> dict[str, dict[str, object]]:
    """`FOUR_BIT` with further settings per hardware."""
    return {name: {**block, **settings.get(name, {})} for name, block in FOUR_BIT.items()}


CORE = (
    Field("strategy", STR, "sft", "training method: the name of a direct strategy"),
    Field(
        "base_model", STR, None, "model to train: built-in name, Hub id, local path or run id; required", nullable=True
    ),
    Field(
        "model_type",
        STR,
        None,
        "model family that you expect; a model whose config says another is refused",
        nullable=True,
    ),
    Field("dataset_path", STR, None, "training rows, JSONL or JSON; required", nullable=True),
    Field("num_epochs", INT, 3, "passes over the rows; max_steps wins if given", minimum=1, maximum=100),
    Field("max_steps", INT, None, "optimizer steps in all, instead of num_epochs", nullable=True, minimum=1),
    Field("batch_size", INT, 1, "rows per device and forward pass", minimum=1, maximum=64),
    Field("gradient_accumulation_steps", INT, 8, "forward passes per optimizer step", minimum=1, maximum=128),
    Field("max_seq_length", INT, 2048, "longest sequence in tokens; the rest is cut", minimum=8, maximum=1_048_576),
    Field("seed", INT, 42, "seed of data order, initialisation and sampling", minimum=0, maximum=2**32 - 1),
)
OPTIMIZER = (
    Field("learning_rate", FLOAT, 2e-5, "peak step size", minimum=0, open_minimum=True, maximum=1),
    Field("warmup_ratio", FLOAT, 0.1, "share of the steps with a rising learning rate", minimum=0, maximum=1),
    Field("weight_decay", FLOAT, 0.0, "decoupled weight decay", minimum=0, maximum=1),
    Field("max_grad_norm", FLOAT, 1.0, "gradients are scaled down to this norm; 0 turns clipping off", minimum=0),
    Field(
        "lr_scheduler_type",
        STR,
        "linear",
        "shape of the learning rate after warm-up",
        choices=("linear", "cosine", "constant", "constant_with_warmup"),
    ),
    Field("optim", STR, "adamw_torch", "optimizer by its Transformers name", max_length=64),
    Field(
        "dtype",
        STR,
        "auto",
        "weights and compute; auto is bfloat16 where the device has it, float32 on CPU",
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    Field("gradient_checkpointing", BOOL, False, "recompute activations: less memory, about a third slower"),
)
LORA = (
    Field("use_lora", BOOL, True, "train a LoRA adapter; false trains every weight"),
    Field("lora_rank", INT, 16, "rank of the adapter", minimum=1, maximum=1024),
    Field("lora_alpha", INT, 32, "adapter scale; twice the rank is usual", minimum=1),
    Field("lora_dropout", FLOAT, 0.05, "dropout on the adapter's input", minimum=0, maximum=0.5),
    Field("lora_target_modules", LIST, None, "module names; null adapts every linear layer", nullable=True),
    Field(
        "load_in_4bit",
        BOOL,
        None,
        "4-bit base weights; null uses them only where CUDA and bitsandbytes are; true is refused elsewhere",
        nullable=True,
    ),
)
DATASET = (
    Field(
        "data_source",
        STR,
        "dataset_path",
        "where rows come from; `traces`, once the default, trained SFT on traces whatever the strategy was, and it "
        "and `security_dataset` are not in this version",
        choices=("dataset_path", "traces", "security_dataset"),
    ),
    Field(
        "dataset_format",
        STR,
        "auto",
        "row format; auto looks at the first rows",
        choices=("auto", "messages", "prompt_completion", "text", "alpaca", "sharegpt"),
    ),
    Field("column_mapping", OBJECT, {}, 'your column name for each of ours, e.g. {"prompt": "question"}'),
    Field("eval_dataset_path", STR, None, "rows for eval_loss that are never trained on", nullable=True),
    Field("eval_split", FLOAT, 0.0, "share of the rows set aside for eval_loss", minimum=0, maximum=0.5),
    Field("eval_steps", INT, None, "steps between evaluations; null is once per epoch", nullable=True, minimum=1),
)
RUN = (
    Field("save_steps", INT, 100, "steps between checkpoints; small values are for tiny runs", minimum=1),
    Field("logging_steps", INT, 1, "steps between metric points", minimum=1),
    Field(
        "sample_prompts",
        INT,
        2,
        "prompts answered at each evaluation or save and kept in samples.jsonl; 0 keeps none",
        minimum=0,
        maximum=32,
    ),
    Field("num_processes", INT, 1, "training processes, started through accelerate", minimum=1, maximum=64),
    Field(
        "distributed",
        STR,
        "ddp",
        "how several processes share the work; has no effect with num_processes 1",
        choices=("ddp", "fsdp", "deepspeed"),
    ),
    Field("distributed_config", OBJECT, {}, "FSDP options or a DeepSpeed config, as accelerate names them"),
    Field(
        "torch_threads",
        INT,
        None,
        "CPU threads of one process; null leaves it to torch",
        nullable=True,
        minimum=1,
        maximum=1024,
    ),
    Field(
        "report_to",
        LIST,
        [],
        "further trackers that the trainer reports to",
        choices=("none", "wandb", "trackio", "mlflow", "tensorboard"),
    ),
    Field("trainer_args", OBJECT, {}, "further arguments of the TRL config class, checked against the installed one"),
    Field(
        "max_minutes",
        FLOAT,
        None,
        "hard stop after so many minutes of all attempts together, with a checkpoint",
        nullable=True,
        minimum=0,
        open_minimum=True,
    ),
    Field(
        "max_cost",
        FLOAT,
        None,
        "hard stop at so much money, with a checkpoint; needs cost_per_hour",
        nullable=True,
        minimum=0,
        open_minimum=True,
    ),
    Field("cost_per_hour", FLOAT, None, "price of the machine, in the currency of max_cost", nullable=True, minimum=0),
)
STORAGE_FIELDS = (
    Field("checkpoint_limit", INT, 1, "checkpoints kept at a time", minimum=1, maximum=20),
    Field("artifact_retention", STR, "adapter_only", "what is left after success", choices=tuple(RETENTION)),
    Field("auto_export_gguf", BOOL, True, "export GGUF where the retention policy keeps merged weights"),
    Field("gguf_quantization", STR, "q4_k_m", "GGUF quantization", max_length=32),
    Field("auto_deploy_ollama", BOOL, False, "register the GGUF with a local Ollama"),
    Field("ollama_model_name", STR, "", "name for Ollama; empty derives one", max_length=160),
    Field("auto_push_hf", BOOL, False, "push to the Hub after success; needs hf_repo_name"),
    Field("hf_repo_name", STR, "", "approved Hub repository", max_length=200),
    Field("hf_private", BOOL, True, "whether the Hub repository is private"),
    Field(
        "hf_upload_artifact",
        STR,
        "auto",
        "auto is merged weights if present, else the adapter",
        choices=("auto", "adapter", "merged"),
    ),
)
WRAP_PROMPTS = Field(
    "wrap_prompts",
    BOOL,
    False,
    "put plain-string prompts and answers into the chat template, as one user and one assistant turn; false trains them "
    "as plain text, as TRL does",
)
"""For the methods whose rows are prompts."""
MAX_COMPLETION_LENGTH = Field(
    "max_completion_length",
    INT,
    None,
    "longest sampled answer in tokens; the prompt gets the rest of max_seq_length; null is half of it",
    nullable=True,
    minimum=1,
)
"""For the methods that sample."""

ROUTING = (
    Field(
        "compute_target",
        STR,
        None,
        "where it runs: local, ssh:<device>, ...; null is local",
        nullable=True,
        max_length=200,
    ),
    Field("use_remote_ssh", BOOL, False, "older spelling of compute_target ssh:remote"),
    Field("device_id", STR, None, "registered SSH device", nullable=True, max_length=160),
    Field("use_nemo_customizer", BOOL, False, "older spelling of compute_target cloud:nemo-customizer"),
    Field("use_nemo_gym", BOOL, False, "deprecated spelling of use_nemo_customizer"),
)
LINEAGE = (
    Field("run_id", STR, None, "id of the run, if you choose it", nullable=True, identifier=True),
    Field("idempotency_key", STR, None, "the same key gives the same run", nullable=True, max_length=160),
    Field("correlation_id", STR, None, "joins this run to other records", nullable=True, max_length=160),
    Field("origin", OBJECT, None, "who asked", nullable=True, keys=("kind", "terminal_id", "panel_id", "agent")),
    Field("tracking", OBJECT, None, "tracking context; null leaves the run unassigned", nullable=True),
)
COMMON = (*CORE, *OPTIMIZER, *LORA, *DATASET, *RUN, *STORAGE_FIELDS, *ROUTING, *LINEAGE)
"""Used by every direct strategy."""

OTHER_SOURCES = (
    Field("selected_repos", LIST, [], "repositories whose traces are used; needs data_source traces"),
    Field("security_dataset_type", STR, None, "kind of security data set", nullable=True, max_length=160),
    Field("security_dataset_path", STR, None, "its file", nullable=True),
    Field("security_conversion_mode", STR, "direct", "how its rows become examples", max_length=160),
    Field("security_max_samples", INT, None, "most rows of it", nullable=True, minimum=1),
    Field("security_balance_classes", BOOL, True, "equal counts per class"),
)
"""Fields of data sources that no strategy of this version reads: accepted, with a warning."""

GROUPS: dict[str, tuple[Field, ...]] = {
    "Model and data": CORE,
    "Optimizer": OPTIMIZER,
    "LoRA and precision": LORA,
    "Dataset": DATASET,
    "Run": RUN,
    "Artifacts": STORAGE_FIELDS,
    "Routing": ROUTING,
    "Lineage": LINEAGE,
    "Other data sources": OTHER_SOURCES,
}
