"""Direct preference optimisation."""

from __future__ import annotations

from bashgym.methods.common import FLOAT, STR, WRAP_PROMPTS, by_hardware
from bashgym.methods.metrics import OPTIMISATION, SYSTEM
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role, Stage

FIELDS = (
    Field("dpo_beta", FLOAT, 0.1, "pull to the reference: small moves far, large stays close", minimum=0.01, maximum=1),
    Field(
        "dpo_backend",
        STR,
        "auto",
        "auto is plain TRL unless Unsloth is installed",
        choices=("auto", "unsloth", "plain"),
    ),
    WRAP_PROMPTS,
)

METRICS = (
    Metric(
        "preference_accuracy",
        Role.OBJECTIVE,
        "share of pairs whose chosen answer gets the larger implicit reward",
        "0.5 after the first fifth, or 1.0 at once",
        "0.5: labels are noise or the step is too small; 1.0: pairs differ in something trivial such as length",
        logged_as="rewards/accuracies",
        aliases=("dpo_accuracy", "pair_accuracy", "train_rewards/accuracies"),
        warn_below=0.52,
    ),
    Metric(
        "reward_margin",
        Role.OBJECTIVE,
        "mean implicit reward of chosen minus rejected",
        "growth without bound",
        "raise dpo_beta or stop earlier",
        logged_as="rewards/margins",
        aliases=("chosen_reward_margin", "margin"),
    ),
    Metric(
        "chosen_logps",
        Role.HEALTH,
        "log probability of the chosen answers",
        "falling together with the rejected ones",
        "the model forgets good answers: smaller learning_rate, an SFT pass on the chosen answers first",
        logged_as="logps/chosen",
    ),
    Metric(
        "rejected_logps",
        Role.HEALTH,
        "log probability of the rejected answers",
        "not falling at all",
        "the pairs are not told apart: look at identical or near-identical pairs",
        logged_as="logps/rejected",
    ),
    Metric(
        "chosen_reward",
        Role.DIAGNOSTIC,
        "implicit reward of the chosen answers: dpo_beta times their log probability above the reference's",
        "falling while the margin grows: the margin comes from pushing the rejected ones down further",
        "lower learning_rate, or an SFT pass on the chosen answers first",
        logged_as="rewards/chosen",
    ),
    Metric(
        "rejected_reward",
        Role.DIAGNOSTIC,
        "implicit reward of the rejected answers",
        "growing together with that of the chosen ones",
        "the pairs are not told apart: look at identical or near-identical pairs",
        logged_as="rewards/rejected",
    ),
)

DATASET = DatasetContract(
    "dpo",
    "one pair: two answers to the same prompt, the better one named",
    required=("prompt", "chosen", "rejected"),
    optional=("tools", "pair_id", "prompt_hash", "chosen_trace_id", "rejected_trace_id", "label_source", "metadata"),
    rules=(
        "chosen and rejected differ",
        "both answer the same prompt, given by itself or as the first turns of both",
        "their lengths are within a factor of three",
        "the columns have exactly these names",
    ),
    example={"prompt": "list hidden files", "chosen": "ls -A", "rejected": "ls"},
)

EVIDENCE = (
    EvidenceRule(
        EvidenceKind.METRICS,
        "preference metrics: accuracy, margin, chosen and rejected log probability",
        card_fields=("metrics_path",),
    ),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to this run",
        card_fields=("release_evidence_path",),
    ),
    EvidenceRule(
        EvidenceKind.PREFERENCE_PAIRS,
        "the pairs pass strict validation: same prompt, provenance, split",
        card_fields=("preference_pairs_path",),
    ),
    EvidenceRule(EvidenceKind.HELDOUT_PREFERENCE, "accuracy on pairs that were not trained on, with its interval"),
    EvidenceRule(EvidenceKind.NO_REGRESSION, "held-out behaviour not worse than that of the SFT or base model"),
    EvidenceRule(EvidenceKind.ENVIRONMENT_PASSK, "pass@k on executed held-out tasks", terminal_only=True),
)

RECIPE = Recipe(
    when_to_use="You have pairs of answers to the same prompt and know which is better, and an SFT model that already "
    "produces both kinds. It sharpens choices; it does not teach new abilities.",
    settings={
        "dpo_beta": 0.1,
        "learning_rate": 1e-5,
        "num_epochs": 1,
        "batch_size": 1,
        "gradient_accumulation_steps": 8,
        "lora_rank": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
    },
    by_hardware=by_hardware(local_cpu={"max_seq_length": 1024}),
    adjust_when={
        "dpo_beta": "raise it when answers drift or get longer, lower it when margins stay flat",
        "lora_dropout": "above 0 only against overfitting: the reference has none, so it blurs the margins",
        "learning_rate": "halve it when chosen log probabilities fall; it wants to be far below that of SFT",
        "num_epochs": "one is usually right: pairs are learned by heart quickly",
    },
    watch=(
        "rewards/accuracies above 0.6 on held-out pairs",
        "rewards/margins grows and levels off",
        "logps/chosen does not fall",
        "answer length against the SFT model",
    ),
    steps=(
        "Validate the pairs strictly.",
        "Split by source session, not by pair.",
        "Start from the SFT adapter, merged.",
        "Compare with the SFT model on the same suite.",
    ),
    ladder=(
        Stage(
            "pair_contract",
            "strict pair validation and split manifest",
            "no identical pairs, provenance on both sides, no shared prompts between splits",
        ),
        Stage("preference_smoke", "accuracy and margin of a short run", "both move; the path works"),
        Stage(
            "behavior_gate",
            "held-out preference and paired behaviour report",
            "preference improves and behaviour is not worse than that of the SFT model",
        ),
    ),
    rules=(
        ("accuracy near 0.5", "inspect label source and ties; raise learning_rate once the labels are sound"),
        ("accuracy 1.0 within a few steps", "look for a shortcut: length, a marker, a fixed ending"),
        ("both log probabilities fall", "halve learning_rate, raise dpo_beta"),
    ),
    next=(
        ("check the pairs", "bashgym training dpo-pairs validate <pairs.jsonl> --strict --json"),
        (
            "run it with these settings in run-config.json",
            "bashgym training start --strategy dpo --model <model-id> --dataset-path <pairs.jsonl> "
            "--config run-config.json --json",
        ),
        ("read the curves", "bashgym training analyze --run-id <run_id> --models-dir data/models --json"),
    ),
)

METHOD = Method(
    name="dpo",
    title="Direct preference optimisation",
    summary="Learns to prefer the better of two answers.",
    objective="-log sigmoid(beta * (log-ratio of chosen - log-ratio of rejected)), policy against reference",
    direct=True,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *METRICS, *SYSTEM),
    evidence=EVIDENCE,
    recipe=RECIPE,
    own_fields=FIELDS,
    builder="bashgym.training.dpo:build",
    must_emit=("loss", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"),
)
