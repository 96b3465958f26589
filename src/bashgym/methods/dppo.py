"""DPPO: policy updates from recorded rollouts, masked by how far the policy moved. Not a direct strategy."""

from __future__ import annotations

from bashgym.methods import grpo
from bashgym.methods.common import FLOAT, STR
from bashgym.methods.metrics import EXECUTED, OPTIMISATION, REWARD, REWARD_STD, SYSTEM, ZERO_STD
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role

FIELDS = (
    Field(
        "dppo_backend",
        STR,
        "auto",
        "who optimises; auto takes the first that is installed",
        choices=("auto", "verl", "skyrl", "tmax_open_instruct", "grpo_fallback"),
    ),
    Field(
        "dppo_divergence", STR, "binary_tv", "distance between policies at a token", choices=("binary_tv", "binary_kl")
    ),
    Field("dppo_binary_tv_threshold", FLOAT, 0.15, "trust region for binary_tv", minimum=0, maximum=1),
    Field("dppo_binary_kl_threshold", FLOAT, 0.05, "trust region for binary_kl", minimum=0),
)

METRICS = (
    REWARD,
    REWARD_STD,
    ZERO_STD,
    Metric(
        "masked_fraction",
        Role.HEALTH,
        "share of tokens outside the trust region",
        "above 0.95 over 200 tokens or more",
        "the rollouts are too old: sample again with the current policy",
        warn_above=0.95,
    ),
    Metric(
        "logprob_coverage",
        Role.HEALTH,
        "share of tokens with behaviour and training log probabilities",
        "below 1",
        "re-score the replay; uncovered tokens must not be trained",
    ),
    Metric(
        "mean_binary_tv",
        Role.DIAGNOSTIC,
        "mean |p_train - p_behaviour|",
        "growth from batch to batch",
        "smaller steps or fresher rollouts",
    ),
)

DATASET = DatasetContract(
    "replay",
    "one recorded attempt (bashgym.dppo_replay.v1)",
    required=("batch_id", "environment_id", "attempt_index", "reward", "passed", "verifier_status", "behavior_policy"),
    optional=("train_policy", "optimizer", "world_model"),
    rules=("behaviour log probabilities for every sampled token", "token counts equal after enrichment"),
)

EVIDENCE = (
    EvidenceRule(
        EvidenceKind.METRICS, "mask fraction and log probability coverage by step", card_fields=("metrics_path",)
    ),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to this run",
        card_fields=("release_evidence_path",),
    ),
    EvidenceRule(EvidenceKind.REPLAY, "rollout replay with behaviour log probabilities"),
    EvidenceRule(EvidenceKind.REPLAY_ENRICHMENT, "training log probabilities and advantages for every token"),
    EvidenceRule(
        EvidenceKind.SMOKE_BUNDLE, "smoke plan or bundle that is optimizer-ready", card_fields=("smoke_bundle_path",)
    ),
    EvidenceRule(EvidenceKind.PASSK_BEFORE_AFTER, "pass@k before and after on the same tasks"),
    EvidenceRule(EvidenceKind.SAFETY_COMPARISON, "tampering, timeouts and canaries not worse than before"),
)

RECIPE = Recipe(
    when_to_use="You have rollouts with log probabilities, a backend that optimises them, and want updates that stay "
    "near the policy that acted.",
    settings={
        **grpo.RECIPE.settings,
        "dppo_backend": "auto",
        "dppo_divergence": "binary_tv",
        "dppo_binary_tv_threshold": 0.15,
    },
    by_hardware=grpo.RECIPE.by_hardware,
    adjust_when={
        **grpo.RECIPE.adjust_when,
        "dppo_binary_tv_threshold": "lower it when pass@k falls, raise it when nearly all tokens are masked",
    },
    watch=("every record has log probabilities", "masked_fraction below 0.95", "pass@k before and after"),
    steps=(
        "Record rollouts with capture_logprobs.",
        "Score them with the policy to be trained.",
        "Build the smoke bundle.",
        "Run the backend, then compare pass@k.",
    ),
    ladder=grpo.RECIPE.ladder,
    rules=(("masked_fraction above 0.95", "sample fresh rollouts"), *grpo.RECIPE.rules),
    docs=("strategy", "terminal-rl-recipe", "metrics"),
    next=(
        (
            "record rollouts",
            "bashgym api POST /api/eval/environments/model-rollout-passk --data-file rollout-request.json",
        ),
        (
            "add training log probabilities",
            "bashgym api POST /api/eval/environments/dppo-replay/enrich --data-file replay-request.json",
        ),
        (
            "see what is still missing",
            "bashgym training smoke-bundle --replay <replay.jsonl> --output-dir <dir> --base-model <model-id> --json",
        ),
    ),
)

METHOD = Method(
    name="dppo",
    title="DPPO replay",
    summary="Policy gradient on recorded rollouts; tokens that moved out of the trust region are masked.",
    objective="policy gradient on A = reward - group mean, masked where the divergence exceeds its threshold",
    direct=False,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *METRICS, *SYSTEM, *EXECUTED),
    evidence=EVIDENCE,
    recipe=RECIPE,
    own_fields=FIELDS,
    must_emit=("loss", "masked_fraction"),
    workflow="record rollouts with log probabilities, enrich them, then `bashgym training smoke-bundle`",
)
