"""Reward models: scorers of answers or steps. Not a direct strategy."""

from __future__ import annotations

from bashgym.methods.metrics import LOSS
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Method, Metric, Recipe, Role, Stage

METRICS = (
    LOSS,
    Metric(
        "heldout_pair_accuracy",
        Role.EVALUATION,
        "share of held-out pairs ranked as labelled; a tie is one half",
        "below 0.7",
        "more and cleaner pairs; below 0.6 do not use it",
        warn_below=0.6,
    ),
    Metric(
        "calibration_error",
        Role.EVALUATION,
        "distance between stated and observed success, in bins",
        "above 0.2",
        "calibrate on a separate split",
        aliases=("ece",),
        warn_above=0.2,
    ),
    Metric(
        "reward_model_margin",
        Role.EVALUATION,
        "mean predicted score of better minus worse",
        "near zero",
        "labels or features do not separate",
    ),
    Metric(
        "length_bias",
        Role.DIAGNOSTIC,
        "correlation of score and answer length",
        "far from zero",
        "balance lengths within pairs",
    ),
    Metric(
        "reward_variance", Role.HEALTH, "spread of predicted scores", "zero", "the model is constant: training failed"
    ),
    Metric(
        "eval_only_leakage_rate",
        Role.HEALTH,
        "share of evaluation rows that were trained on",
        "above zero",
        "rebuild the splits; earlier results are void",
        block_above=0.0,
    ),
)

DATASET = DatasetContract(
    "reward",
    "one judged answer, pair or trajectory",
    required=(
        "example_id",
        "reward_type",
        "prompt",
        "response | trajectory",
        "reward | chosen + rejected | step rewards",
    ),
    optional=("reward_scale", "label_source", "provenance", "quality", "domain", "split", "decontamination"),
    rules=(
        "reward_type is preference_reward, outcome_reward, process_reward, orm or prm",
        "process rewards are per step",
        "evaluation rows are never trained on",
    ),
    example={
        "example_id": "r1",
        "reward_type": "outcome_reward",
        "prompt": "sort a.txt",
        "response": "sort a.txt",
        "reward": 1.0,
    },
)

EVIDENCE = (
    EvidenceRule(EvidenceKind.METRICS, "training metrics of the scorer", card_fields=("metrics_path",)),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to this run",
        card_fields=("release_evidence_path",),
    ),
    EvidenceRule(
        EvidenceKind.REWARD_EXAMPLES, "examples pass strict validation", card_fields=("reward_examples_path",)
    ),
    EvidenceRule(
        EvidenceKind.REWARD_EVAL, "held-out accuracy, calibration, bias and leakage", card_fields=("reward_eval_path",)
    ),
    EvidenceRule(
        EvidenceKind.SELECTED_VS_RANDOM,
        "answers that it selects beat random ones on an independent verifier",
        required_for_promotion=False,
    ),
)

RECIPE = Recipe(
    when_to_use="No program can judge the answers and you have labels. Where a verifier exists, use it instead.",
    settings={},
    watch=("held-out pair accuracy with its interval", "calibration", "length bias", "leakage is zero"),
    steps=(
        "Validate the examples strictly.",
        "Split by source.",
        "Evaluate on held-out pairs before any use.",
        "Compare selected with random answers where it will be used.",
    ),
    ladder=(
        Stage(
            "reward_artifact_contract",
            "strict validation of the examples",
            "scale, source, split and provenance are there",
        ),
        Stage(
            "heldout_reward_eval",
            "bashgym.reward_model_eval.v1",
            "pair accuracy 0.7 or more, calibration error 0.2 or less",
        ),
        Stage(
            "use_site_gate", "selected-against-random comparison", "its choices win on a judge it was not trained on"
        ),
    ),
    rules=(
        ("pair accuracy below 0.6", "do not use it; inspect labels"),
        ("length bias", "rebalance pairs"),
        ("reward variance zero", "training failed"),
    ),
    next=(
        ("check the examples", "bashgym training reward-examples validate <examples.jsonl> --strict --json"),
        ("prove the path", "bashgym training reward-model smoke <examples.jsonl> --output-dir <dir> --json"),
        ("evaluate predictions", "bashgym training reward-eval evaluate <predictions.jsonl> --split eval --json"),
    ),
)

METHOD = Method(
    name="reward_model",
    title="Reward model",
    summary="Scores answers, pairs or steps where no program can.",
    objective="-log sigmoid(score of better - score of worse), or regression on the given reward",
    direct=False,
    dataset=DATASET,
    metrics=METRICS,
    evidence=EVIDENCE,
    recipe=RECIPE,
    aliases=(
        "reward-model",
        "rm",
        "preference-rm",
        "preference_rm",
        "orm",
        "prm",
        "process_reward",
        "process_reward_model",
    ),
    workflow="`bashgym training reward-examples validate`, `reward-model smoke`, then `reward-eval evaluate`",
)
