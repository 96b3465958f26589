"""Distillation from a teacher model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bashgym.methods.common import BOOL, FLOAT, MAX_COMPLETION_LENGTH, STR, WRAP_PROMPTS, by_hardware
from bashgym.methods.metrics import OPTIMISATION, SYSTEM
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role, Stage

TEXT_ONLY = "sft_on_teacher_outputs"
"""The objective of a run without a teacher: SFT on the text of one, and called that."""

FIELDS = (
    Field(
        "teacher_model",
        STR,
        None,
        "model or run whose token probabilities are matched; it must share the student's vocabulary, see "
        f"distillation_alignment; null trains on teacher_response alone, and the run says {TEXT_ONLY}",
        nullable=True,
    ),
    Field(
        "teacher_temperature",
        FLOAT,
        0.7,
        "softens both distributions in the divergence; sampling is at temperature 1 whatever it is",
        minimum=0.1,
        maximum=10,
    ),
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
        "same_vocabulary refuses a teacher with another one; uld compares sorted probabilities wherever both tokenizers "
        "stand at the same character, and then has no use for distillation_divergence",
        choices=("same_vocabulary", "uld"),
    ),
    MAX_COMPLETION_LENGTH,
    WRAP_PROMPTS,
)

METRICS = (
    Metric(
        "distillation_kl",
        Role.OBJECTIVE,
        "divergence of the student from the teacher, averaged over trained tokens and without weights; with uld their "
        "distance, 0 to 2, to which tokens without a counterpart add nothing",
        "flat, or zero from the start",
        "flat: student too small or step too small; zero: teacher and student are the same model",
    ),
    Metric(
        "distillation_ce",
        Role.OBJECTIVE,
        "cross-entropy on the teacher's answers, averaged over trained tokens and without weights",
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
        "messages stand for the prompt where there is no prompt column; an assistant turn at their end is left out",
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
            "run it with these settings and teacher_model in run-config.json",
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
    objective="alpha * CE + (1 - alpha) * T^2 * D(teacher, student), both of D at temperature T; on-policy "
    "T^2 * D on sampled answers; with uld alpha * CE + (1 - alpha) * distance; CE alone without a teacher",
    direct=True,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *METRICS, *SYSTEM),
    evidence=EVIDENCE,
    recipe=RECIPE,
    own_fields=FIELDS,
    builder="bashgym.training.distillation:build",
    must_emit=("loss", "distillation_kl", "distillation_ce"),
)


def objective(request: Mapping[str, object]) -> str:
    """What a request optimises: its strategy, but `sft_on_teacher_outputs` for distillation without a teacher."""
    strategy = str(request.get("strategy") or "")
    return TEXT_ONLY if strategy == METHOD.name and not request.get("teacher_model") else strategy


def emitted(request: Mapping[str, object]) -> tuple[str, ...]:
    """Those of `must_emit` that a request can have: no divergence without a teacher, no CE on sampled answers."""
    absent = {
        "distillation_kl": objective(request) == TEXT_ONLY,
        "distillation_ce": bool(request.get("distillation_on_policy")),
    }
    return tuple(name for name in METHOD.must_emit if not absent.get(name))


def refusals(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What single fields cannot see: (field, message, hint)."""
    if values["teacher_model"] and values["distillation_alignment"] == "uld" and not values["distillation_alpha"]:
        yield (
            "distillation_alpha",
            "distillation_alpha 0 with distillation_alignment uld: sorted probabilities say how sure the teacher is, and "
            "only cross-entropy says of which token",
            "Set distillation_alpha above 0; 0.5 is usual.",
        )
    if not values["distillation_on_policy"]:
        return
    if not values["teacher_model"]:
        yield (
            "distillation_on_policy",
            "distillation_on_policy without teacher_model: nobody judges what the student samples",
            "Name a teacher_model, or set distillation_on_policy to false.",
        )
    if values["distillation_alignment"] == "uld":
        yield (
            "distillation_alignment",
            "distillation_alignment uld aligns the answers of the rows, not sampled ones",
            "Set distillation_on_policy to false, or take a teacher with the student's vocabulary.",
        )
    if (values["max_completion_length"] or 0) >= values["max_seq_length"]:
        yield (
            "max_completion_length",
            f"max_completion_length {values['max_completion_length']} leaves no room for a prompt in max_seq_length "
            f"{values['max_seq_length']}",
            "Lower max_completion_length or raise max_seq_length.",
        )


def without_effect(values: Mapping[str, object]) -> dict[str, str]:
    """Own fields that have no effect beside the others -> why."""
    unused: dict[str, str] = {}
    if not values["teacher_model"]:
        names = ("teacher_temperature", "distillation_alpha", "distillation_divergence", "distillation_alignment")
        unused |= dict.fromkeys(names, "without teacher_model")
    elif values["distillation_on_policy"]:
        unused["distillation_alpha"] = "with distillation_on_policy"
    if values["teacher_model"] and values["distillation_alignment"] == "uld":
        unused["distillation_divergence"] = "with distillation_alignment uld"
    if not values["distillation_on_policy"]:
        unused["max_completion_length"] = "without distillation_on_policy"
    return unused
