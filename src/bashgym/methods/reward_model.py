"""Reward models: scorers of answers or steps."""

from __future__ import annotations

from bashgym.methods.common import FLOAT, INT, STR, WRAP_PROMPTS, by_hardware
from bashgym.methods.metrics import OPTIMISATION, SYSTEM
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role, Stage

FIELDS = (
    Field(
        "reward_kind",
        STR,
        "auto",
        "what is learnt: which of two answers is better, one number for an answer, or one for each step; auto is what the "
        "rows are, and mixed rows are refused",
        choices=("auto", "preference", "outcome", "process"),
    ),
    Field(
        "reward_loss",
        STR,
        "auto",
        "loss of outcomes and steps: bce reads the score as the log odds of success, mse as the reward itself; auto is bce "
        "where all rewards lie in 0..1. Pairs always use -log sigmoid of the difference",
        choices=("auto", "bce", "mse"),
    ),
    Field(
        "reward_center_coefficient",
        FLOAT,
        0.0,
        "weight of the squared sum of a pair's scores, which keeps scores near zero; 0.01 is usual",
        minimum=0,
        maximum=1,
    ),
    Field(
        "reward_train_split",
        STR,
        "train",
        "rows of this split, and rows without a split, are trained on; the others stay unseen",
        max_length=160,
    ),
    WRAP_PROMPTS,
    Field(
        "sample_prompts",
        INT,
        2,
        "training rows whose scores are kept in samples.jsonl at each save; 0 keeps none",
        minimum=0,
        maximum=32,
    ),
    Field(
        "artifact_retention",
        STR,
        "adapter_only",
        "what is left after success; the adapter carries the scoring head, and merging is for models that write",
        choices=("adapter_only", "adapter_checkpoint"),
    ),
)

METRICS = (
    Metric(
        "reward_accuracy",
        Role.OBJECTIVE,
        "share of trained pairs whose chosen answer scores higher; of rewards in 0..1, the share on the right side of 0.5",
        "0.5 after the first fifth, or 1.0 at once",
        "0.5: labels are noise or the step is too small; 1.0: the answers differ in something trivial such as length",
        warn_below=0.52,
    ),
    Metric(
        "reward_error",
        Role.OBJECTIVE,
        "mean distance of predicted and given reward (outcomes and steps)",
        "as large as the spread of the rewards",
        "more rows or a larger learning_rate; look whether the labels can be told from the text",
    ),
    Metric(
        "mean_score",
        Role.HEALTH,
        "mean score; min_score and max_score beside it",
        "a drift away from zero (pairs), or minimum and maximum that meet",
        "drift: reward_center_coefficient 0.01; meeting: the model is constant",
    ),
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
        "mean predicted score of better minus worse, of trained pairs and of held-out ones",
        "near zero, or growth without bound",
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
        "response | trajectory (outcome)",
        "reward (outcome) | chosen + rejected (preference) | steps, each with text and reward (process)",
    ),
    optional=("reward_scale", "label_source", "provenance", "quality", "domain", "split", "decontamination"),
    rules=(
        "reward_type is preference_reward, outcome_reward, process_reward, orm or prm",
        "process rewards are per step",
        "evaluation rows are never trained on: `split` says which they are",
        "one kind a run",
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
    settings={
        "reward_kind": "auto",
        "learning_rate": 1e-4,
        "num_epochs": 1,
        "batch_size": 1,
        "gradient_accumulation_steps": 16,
        "lora_rank": 16,
        "lora_alpha": 32,
        "reward_train_split": "train",
    },
    by_hardware=by_hardware(local_cpu={"max_seq_length": 1024}),
    adjust_when={
        "reward_kind": "name it where a file holds several kinds",
        "learning_rate": "halve it when accuracy is 1.0 early; scores of an overfitted model spread without meaning",
        "num_epochs": "one is usually right: a second pass learns pairs by heart",
        "reward_train_split": "where your file calls its training rows otherwise",
    },
    watch=("held-out pair accuracy with its interval", "calibration", "length bias", "leakage is zero"),
    steps=(
        "Validate the examples strictly.",
        "Split by source, and name the split in each row.",
        "Train, then score the held-out rows.",
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
        (
            "run it with these settings in run-config.json",
            "bashgym training start --strategy reward_model --model <model-id> --dataset-path <examples.jsonl> "
            "--config run-config.json --json",
        ),
        (
            "score the held-out rows",
            "bashgym training reward-model score --model <run_id> --input <examples.jsonl> --output <predictions.jsonl> --json",
        ),
        (
            "evaluate predictions",
            "bashgym training reward-eval evaluate <predictions.jsonl> --split eval --run-id <run_id> --json",
        ),
    ),
)

METHOD = Method(
    name="reward_model",
    title="Reward model",
    summary="Scores answers, pairs or steps where no program can.",
    objective="-log sigmoid(score of better - score of worse); of outcomes and steps cross-entropy or squared error",
    direct=True,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *METRICS, *SYSTEM),
    evidence=EVIDENCE,
    recipe=RECIPE,
    own_fields=FIELDS,
    builder="bashgym.training.reward_model:build",
    must_emit=("loss", "mean_score"),
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
)
