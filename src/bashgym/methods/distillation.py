"""Distillation from a teacher model."""

from __future__ import annotations

from bashgym.methods.common import BOOL, FLOAT, MAX_COMPLETION_LENGTH, STR, WRAP_PROMPTS, by_hardware
from bashgym.methods.metrics import OPTIMISATION, SYSTEM
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role, Stage

FIELDS = (
    Field(
        "teacher_model",
        STR,
        None,
        "model whose token probabilities are matched; it must share the student's vocabulary; "
        "null trains on teacher_response alone",
        nullable=True,
    ),
    Field("teacher_temperature", FLOAT, 0.7, "softens both distributions", minimum=0.1, maximum=10),
    Field("distillation_alpha", FLOAT, 0.5, "weight of cross-entropy; the rest is the teacher's", minimum=0, maximum=1),
    Field(
        "distillation_divergence",
        STR,
        "forward_kl",
        "forward_kl covers all that the teacher does, reverse_kl seeks its mode, jsd lies between",
        choices=("forward_kl", "reverse_kl", "jsd"),
    ),
    Field(
        "distillation_on_policy",
        BOOL,
        False,
        "match the teacher on answers that the student samples, not on those of the rows; cross-entropy then has no part",
    ),
    Field(
        "distillation_alignment",
        STR,
        "same_vocabulary",
        "same_vocabulary refuses a teacher with another one; uld compares sorted probabilities across tokenizers",
        choices=("same_vocabulary", "uld"),
    ),
    MAX_COMPLETION_LENGTH,
    WRAP_PROMPTS,
)

METRICS = (
    Metric(
        "distillation_kl",
        Role.OBJECTIVE,
        "divergence of the student from the teacher on trained tokens",
        "flat, or zero from the start",
        "flat: student too small or step too small; zero: teacher and student are the same model",
    ),
    Metric(
        "distillation_ce",
        Role.OBJECTIVE,
        "cross-entropy on the teacher's answers",
        "rising while distillation_kl falls",
        "the answers and the teacher disagree: regenerate the answers with this teacher",
    ),
)

DATASET = DatasetContract(
    "distillation",
    "one prompt with the teacher's answer",
    required=("prompt", "teacher_response"),
    optional=("messages", "metadata"),
    rules=(
        "teacher_response is a non-empty string",
        "the teacher that wrote it is named in the metadata",
        "wrong teacher answers are dropped, not learned",
    ),
    example={"prompt": "sort a.txt in reverse", "teacher_response": "sort -r a.txt"},
)

EVIDENCE = (
    EvidenceRule(EvidenceKind.METRICS, "student loss and divergence by step", card_fields=("metrics_path",)),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to this run",
        card_fields=("release_evidence_path",),
    ),
    EvidenceRule(EvidenceKind.BASE_AND_TEACHER_COMPARISON, "held-out comparison with the base student and the teacher"),
    EvidenceRule(EvidenceKind.ENVIRONMENT_PASSK, "pass@k on executed held-out tasks", terminal_only=True),
)

RECIPE = Recipe(
    when_to_use="A larger model does the task well and a smaller one has to do it cheaply. With the teacher's logits "
    "it beats SFT on its text; without them it is SFT on teacher outputs and is called that.",
    settings={
        "teacher_temperature": 0.7,
        "distillation_alpha": 0.5,
        "learning_rate": 2e-5,
        "num_epochs": 3,
        "batch_size": 1,
        "gradient_accumulation_steps": 8,
        "lora_rank": 16,
        "lora_alpha": 32,
    },
    by_hardware=by_hardware(local_cpu={"max_seq_length": 1024}),
    by_data={"small": {"num_epochs": 1}},
    adjust_when={
        "teacher_temperature": "higher when the teacher is almost always certain",
        "distillation_alpha": "lower to trust the teacher's probabilities more, higher when its answers were verified",
        "learning_rate": "halve it when distillation_kl oscillates",
    },
    watch=(
        "distillation_kl falls",
        "student and teacher agree on held-out prompts",
        "both models fit in memory together",
    ),
    steps=(
        "Measure the teacher on the held-out suite: it is the ceiling.",
        "Verify the teacher's answers where possible.",
        "Train, then compare base, student and teacher on the same items.",
    ),
    ladder=(
        Stage(
            "teacher_data_contract", "validated rows, teacher named with revision", "every answer has its provenance"
        ),
        Stage("distillation_smoke", "distillation_kl and distillation_ce of a short run", "both fall"),
        Stage(
            "behavior_gate",
            "three-way held-out comparison",
            "better than the base student; the distance to the teacher is stated",
        ),
    ),
    rules=(
        ("distillation_kl is flat", "check that vocabularies match; raise teacher_temperature"),
        ("student copies phrasing, not results", "verify teacher answers and drop wrong ones"),
    ),
    next=(
        (
            "run it with these settings in run-config.json",
            "bashgym training start --strategy distillation --model <model-id> --dataset-path <rows.jsonl> "
            "--config run-config.json --json",
        ),
        ("read the curves", "bashgym training analyze --run-id <run_id> --models-dir data/models --json"),
    ),
)

METHOD = Method(
    name="distillation",
    title="Teacher distillation",
    summary="A small model learns a larger one's answers and token probabilities.",
    objective="alpha * CE + (1 - alpha) * T^2 * KL(teacher || student), both at temperature T",
    direct=True,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *METRICS, *SYSTEM),
    evidence=EVIDENCE,
    recipe=RECIPE,
    own_fields=FIELDS,
    builder="bashgym.training.distillation:build",
    must_emit=("loss", "distillation_kl", "distillation_ce"),
)
