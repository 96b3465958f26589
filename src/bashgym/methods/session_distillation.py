"""Session distillation: a model learns from its own sessions, seen again with a hint."""

from __future__ import annotations

from bashgym.methods.common import FLOAT, STR, WRAP_PROMPTS, by_hardware
from bashgym.methods.metrics import OPTIMISATION, SYSTEM
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role, Stage

FIELDS = (
    Field(
        "session_distillation_alpha",
        FLOAT,
        0.7,
        "weight of the divergence; the rest is cross-entropy",
        minimum=0,
        maximum=1,
    ),
    Field(
        "session_distillation_temperature",
        FLOAT,
        1.0,
        "softens both distributions",
        minimum=0,
        open_minimum=True,
        maximum=10,
    ),
    Field(
        "session_distillation_min_confidence",
        FLOAT,
        0.6,
        "records below this reader confidence are left out",
        minimum=0,
        maximum=1,
    ),
    Field(
        "session_distillation_mask_policy",
        STR,
        "target_span_only",
        "which tokens are trained",
        choices=("target_span_only",),
    ),
    Field(
        "session_distillation_context_mode",
        STR,
        "hint_injected",
        "how the hinted view differs",
        choices=("hint_injected",),
    ),
    Field(
        "session_distillation_reader",
        STR,
        "heuristic",
        "who finds the decision and writes the hint",
        choices=("heuristic",),
    ),
    WRAP_PROMPTS,
)

METRICS = (
    Metric(
        "session_distillation_loss",
        Role.OBJECTIVE,
        "weighted sum of the two parts",
        "flat from the start",
        "check the mask and the confidence filter",
        aliases=("train.session_distillation_loss",),
    ),
    Metric(
        "session_distillation_kl",
        Role.OBJECTIVE,
        "divergence between the answer with and without the hint",
        "zero: the hint changes nothing",
        "write more specific hints",
        aliases=("train.session_distillation_kl",),
    ),
    Metric(
        "session_distillation_ce",
        Role.OBJECTIVE,
        "cross-entropy on the target span",
        "rising",
        "targets may be failed actions: rebuild the records",
        aliases=("train.session_distillation_ce",),
    ),
    Metric(
        "session_distillation_masked_tokens",
        Role.HEALTH,
        "trained tokens per step",
        "zero: nothing is trained",
        "targets were cut off: raise max_seq_length or shorten contexts",
        aliases=("train.session_distillation_masked_tokens",),
        block_below=1.0,
    ),
)

DATASET = DatasetContract(
    "session_distillation",
    "one decision of a session, with and without the hint",
    required=(
        "record_id",
        "trace_id",
        "session_id",
        "decision_id",
        "step_index",
        "original_context",
        "hinted_context",
        "hint_text",
        "target_text",
        "target_type",
        "target_span",
        "loss_mask",
        "reader_model",
        "reader_confidence",
        "quality_score",
        "verifier_outcome",
        "source_metadata",
    ),
    rules=(
        "the two contexts differ, and only the hinted one has the hint",
        "target_span covers the whole target_text",
        "target_text is the repaired action, never the failed one",
        "reader_confidence and quality_score are in 0..1",
        "hint_text does not hold the whole target, nor target_text the hint",
    ),
    example={
        "original_context": "Output: No such file.\nNext action:",
        "hinted_context": "Output: No such file.\n[Session Distillation Hint] The file is notes.txt.\nNext action:",
        "target_text": "cat notes.txt",
    },
)

EVIDENCE = (
    EvidenceRule(EvidenceKind.METRICS, "loss, KL and CE by step", card_fields=("metrics_path",)),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to this run",
        card_fields=("release_evidence_path",),
    ),
    EvidenceRule(
        EvidenceKind.SESSION_RECORDS,
        "validated records with reader, confidence, hint and mask policy",
        card_fields=(
            "session_distillation_records_path",
            "session_distillation_reader_model",
            "session_distillation_confidence_threshold",
            "session_distillation_hint_policy",
            "session_distillation_mask_policy",
        ),
    ),
    EvidenceRule(
        EvidenceKind.MASKED_TOKEN_METRICS,
        "number of trained tokens, above zero",
        card_fields=("session_distillation_metrics_path", "session_distillation_target_token_count"),
    ),
    EvidenceRule(EvidenceKind.HELDOUT_RECOVERY, "held-out decisions after a failure, paired with the base model"),
    EvidenceRule(EvidenceKind.ENVIRONMENT_PASSK, "pass@k on executed held-out tasks", terminal_only=True),
)

RECIPE = Recipe(
    when_to_use="You have sessions in which an action failed and was repaired, and want the repair to come first next "
    "time, without a larger teacher.",
    settings={
        "session_distillation_alpha": 0.7,
        "session_distillation_temperature": 1.0,
        "session_distillation_min_confidence": 0.6,
        "session_distillation_mask_policy": "target_span_only",
        "session_distillation_context_mode": "hint_injected",
        "session_distillation_reader": "heuristic",
        "learning_rate": 2e-5,
        "num_epochs": 1,
        "batch_size": 1,
        "gradient_accumulation_steps": 8,
    },
    by_hardware=by_hardware(local_cpu={"max_seq_length": 1024}),
    adjust_when={
        "session_distillation_alpha": "lower it when hints are weak and targets are verified",
        "session_distillation_min_confidence": "raise it when records look wrong, lower it when too few are left",
        "learning_rate": "halve it when the model repeats hints that it was not given",
    },
    watch=(
        "session_distillation_masked_tokens above zero at every step",
        "KL and CE both fall",
        "no hint text in the model's own answers",
    ),
    steps=(
        "Build records from verified sessions.",
        "Read twenty of them.",
        "Train briefly and check masked tokens.",
        "Judge on held-out recoveries.",
    ),
    ladder=(
        Stage("record_contract", "record validation report", "all records valid, targets repaired, split by session"),
        Stage(
            "masked_loss_smoke", "the four session metrics of a short run", "trained tokens above zero and loss falls"
        ),
        Stage(
            "behavior_gate",
            "held-out recovery, and pass@k if it acts in a terminal",
            "recovers more often than the base model and gets no worse elsewhere",
        ),
    ),
    rules=(
        ("masked tokens are zero", "stop: raise max_seq_length or rebuild the records"),
        ("KL is near zero", "hints carry no information: rebuild them"),
        ("the model writes hint markers", "targets contain hints: rebuild the records"),
    ),
    docs=("strategy", "session-distillation", "metrics", "glossary"),
    next=(
        (
            "build the records",
            "bashgym training session-records build <traces-dir> --out data/session_distillation/records.jsonl --json",
        ),
        (
            "run it with these settings in run-config.json",
            "bashgym training start --strategy session_distillation --model <model-id> "
            "--dataset-path data/session_distillation/records.jsonl --config run-config.json --json",
        ),
        ("read the curves", "bashgym training analyze --run-id <run_id> --models-dir data/models --json"),
    ),
)

METHOD = Method(
    name="session_distillation",
    title="Session distillation",
    summary="Moves what a hint would have changed into the weights, on the target tokens only.",
    objective="alpha * T^2 * KL(hinted || original) + (1 - alpha) * CE, over the target span",
    direct=True,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *METRICS, *SYSTEM),
    evidence=EVIDENCE,
    recipe=RECIPE,
    aliases=("session-distillation", "session", "session-distill", "opsd", "opd", "targeted_opsd"),
    own_fields=FIELDS,
    builder="bashgym.training.session_distillation:build",
    must_emit=tuple(m.name for m in METRICS),
)
