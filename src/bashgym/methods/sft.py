"""Supervised fine-tuning."""

from __future__ import annotations

from bashgym.methods.common import BOOL, STR, by_hardware
from bashgym.methods.metrics import ENTROPY, EXECUTED, OPTIMISATION, SYSTEM, TOKEN_ACCURACY
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Recipe, Stage

FIELDS = (
    Field("packing", BOOL, False, "several rows in one sequence; faster, needs attention that keeps rows apart"),
    Field("assistant_only_loss", BOOL, None, "train assistant turns only; null decides by row format", nullable=True),
    Field("completion_only_loss", BOOL, None, "train the completion only; null decides by row format", nullable=True),
    Field(
        "sft_backend",
        STR,
        "auto",
        "auto is plain TRL unless Unsloth is installed",
        choices=("auto", "unsloth", "plain"),
    ),
    Field("use_liger", BOOL, False, "Liger kernels; GPU only"),
)

DATASET = DatasetContract(
    "sft",
    "one example: a conversation, a prompt with its completion, or a text",
    required=("messages | prompt + completion | text",),
    optional=("tools", "metadata"),
    rules=(
        "roles are system, user, assistant and tool",
        "content may be absent only on an assistant turn that has tool_calls",
        "at least one assistant turn with trained tokens after truncation",
        "failed attempts are not targets",
    ),
    example={
        "messages": [
            {"role": "user", "content": "count the lines of a.txt"},
            {"role": "assistant", "content": "wc -l < a.txt"},
        ]
    },
)

EVIDENCE = (
    EvidenceRule(
        EvidenceKind.METRICS, "the run's own metrics.jsonl with loss at every step", card_fields=("metrics_path",)
    ),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to this run and to the candidate's digest",
        card_fields=("release_evidence_path",),
    ),
    EvidenceRule(EvidenceKind.HELDOUT_BEHAVIOUR, "paired comparison with the base model on held-out items"),
    EvidenceRule(EvidenceKind.ENVIRONMENT_PASSK, "pass@k on executed held-out tasks", terminal_only=True),
    EvidenceRule(EvidenceKind.HOLDOUT_GATE, "held-out task families pass the gate", terminal_only=True),
    EvidenceRule(
        EvidenceKind.FORMAT_VALIDITY, "share of answers that parse as the asked format or tool call", terminal_only=True
    ),
)

RECIPE = Recipe(
    when_to_use="You have good demonstrations: verified agent sessions, written answers, or outputs of a stronger "
    "model. Begin here; preference and reward methods work on a model that already follows the format.",
    settings={
        "num_epochs": 3,
        "batch_size": 1,
        "gradient_accumulation_steps": 8,
        "use_lora": True,
        "lora_rank": 16,
        "lora_alpha": 32,
    },
    by_hardware=by_hardware(
        local_cpu={"learning_rate": 2e-4, "max_seq_length": 1024},
        local_12gb={"learning_rate": 2e-4, "max_seq_length": 2048},
        local_24gb={"learning_rate": 2e-4, "max_seq_length": 4096},
        private_compute={"learning_rate": 2e-5, "max_seq_length": 4096},
        cloud={"learning_rate": 2e-5, "max_seq_length": 4096},
    ),
    by_data={"small": {"num_epochs": 1}},
    adjust_when={
        "gradient_accumulation_steps": "double it when loss is noisy and batch_size cannot grow",
    },
    watch=(
        "loss falls in the first fifth and eval_loss follows",
        "grad_norm without spikes",
        "no truncated targets in preflight",
        "answers in samples.jsonl end where they should",
    ),
    steps=(
        "Freeze the held-out suite before the first run.",
        "Run preflight and look at the mask of a few rows.",
        "Train a few steps on the tiny model to prove the path.",
        "Train, then compare with the base model, paired.",
    ),
    ladder=(
        Stage(
            "data_contract",
            "preflight report without blocking findings, split manifest",
            "every row has trained tokens and nothing held out is in the training rows",
        ),
        Stage(
            "training_smoke",
            "metrics.jsonl, final/ and samples.jsonl of a short run",
            "loss falls and the saved adapter loads; says nothing about quality",
        ),
        Stage(
            "behavior_gate",
            "paired held-out report against the base model",
            "the interval of the gain excludes zero and no guarded slice gets worse",
        ),
    ),
    rules=(
        ("eval_loss rises while loss falls", "stop at the minimum of eval_loss, add varied rows, lower num_epochs"),
        ("loss is flat from step one", "check the mask and the stop token; then double learning_rate"),
        (
            "loss is good, held-out behaviour is not",
            "the rows teach style, not the task: compare samples with the suite",
        ),
        ("out of memory", "halve batch_size, double gradient_accumulation_steps, turn gradient_checkpointing on"),
    ),
    next=(
        (
            "run it with these settings in run-config.json",
            "bashgym training start --strategy sft --model <model-id> --dataset-path <train.jsonl> "
            "--config run-config.json --json",
        ),
        ("read the curves", "bashgym training analyze --run-id <run_id> --models-dir data/models --json"),
        (
            "bind the evidence",
            "bashgym training runcard create --run-id <run_id> --training-method sft --base-model <model-id> "
            "--compute-target local --output data/models/<run_id>/run_card.json "
            "--metrics data/models/<run_id>/metrics.jsonl",
        ),
    ),
)

METHOD = Method(
    name="sft",
    title="Supervised fine-tuning",
    summary="Learns to continue as the demonstrations do.",
    objective="cross-entropy on the trained tokens",
    direct=True,
    dataset=DATASET,
    metrics=(*OPTIMISATION, TOKEN_ACCURACY, ENTROPY, *SYSTEM, *EXECUTED),
    evidence=EVIDENCE,
    recipe=RECIPE,
    own_fields=FIELDS,
    builder="bashgym.training.sft:build",
    must_emit=("loss", "grad_norm", "learning_rate"),
)
