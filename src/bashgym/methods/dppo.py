"""DPPO: policy updates from recorded rollouts, masked by how far the policy moved."""

from __future__ import annotations

from bashgym.methods import grpo
from bashgym.methods.common import FLOAT, STR, by_hardware
from bashgym.methods.metrics import EXECUTED, OPTIMISATION, REWARD, REWARD_STD, SYSTEM, ZERO_STD
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role

BACKENDS = ("bashgym", "verl", "skyrl", "tmax_open_instruct", "grpo_fallback")
"""Who could carry the update out; `training start` runs the first, the others stand in launch plans only."""

FIELDS = (
    Field(
        "lora_dropout",
        FLOAT,
        0.0,
        "dropout on the adapter's input; above 0 the ratios are those of a noisier policy than the one that acts",
        minimum=0,
        maximum=0.5,
    ),
    Field(
        "dppo_backend",
        STR,
        "auto",
        "who optimises; auto is bashgym, the reference update of this package. The others are planned and probed by "
        "`training smoke-bundle` and run outside; grpo_fallback is ordinary GRPO and never DPPO",
        choices=("auto", *BACKENDS),
    ),
    Field(
        "dppo_divergence", STR, "binary_tv", "distance between policies at a token", choices=("binary_tv", "binary_kl")
    ),
    Field("dppo_binary_tv_threshold", FLOAT, 0.15, "trust region for binary_tv", minimum=0, maximum=1),
    Field("dppo_binary_kl_threshold", FLOAT, 0.05, "trust region for binary_kl", minimum=0),
    Field(
        "dppo_scale_rewards",
        STR,
        "none",
        "group divides advantages by the spread of their group's rewards, as GRPO does; none leaves reward minus group mean, "
        "which is what the replay records",
        choices=("none", "group"),
    ),
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
    required=(
        "batch_id",
        "environment_id",
        "attempt_index",
        "prompt",
        "reward",
        "passed",
        "verifier_status",
        "behavior_policy",
    ),
    optional=("trajectory", "train_policy", "optimizer", "world_model"),
    rules=(
        "behaviour log probabilities for every sampled token",
        "token counts equal after enrichment",
        "the recorded tokens are those of the model's tokenizer",
        "several attempts at an environment in one batch, with rewards that differ",
    ),
    example={
        "schema_version": "bashgym.dppo_replay.v1",
        "batch_id": "b1",
        "environment_id": "env_1",
        "attempt_index": 0,
        "prompt": "Show note7.",
        "reward": 1.0,
        "passed": True,
        "verifier_status": "passed",
        "trajectory": {
            "messages": [
                {"role": "user", "content": "Show note7."},
                {"role": "assistant", "content": "cat note7"},
            ]
        },
        "behavior_policy": {
            "model": "policy-1",
            "response_logprobs": [{"turn": 1, "tokens": ["cat", " note", "7"], "logprobs": [-0.1, -0.4, -0.02]}],
        },
    },
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
    when_to_use="You have recorded rollouts with log probabilities, several attempts a task with rewards that differ, and "
    "want an update that stays near the policy that acted.",
    settings={
        "dppo_backend": "auto",
        "dppo_divergence": "binary_tv",
        "dppo_binary_tv_threshold": 0.15,
        "learning_rate": 1e-5,
        "num_epochs": 1,
        "batch_size": 1,
        "gradient_accumulation_steps": 32,
        "lora_rank": 16,
        "lora_alpha": 32,
    },
    by_hardware=by_hardware(local_cpu={"batch_size": 4, "gradient_accumulation_steps": 8}),
    adjust_when={
        "dppo_backend": "another name only to plan a launch outside with `training smoke-bundle`",
        "dppo_divergence": "binary_kl to be stricter about tokens that were likely to the policy that acted",
        "dppo_binary_tv_threshold": "lower it when pass@k falls, raise it when nearly all tokens are masked",
        "num_epochs": "more only while masked_fraction stays low: every pass moves the policy away from the rollouts",
    },
    watch=(
        "every record has log probabilities",
        "masked_fraction below 0.95, and near zero at the first step",
        "frac_reward_zero_std below one half",
        "pass@k before and after",
    ),
    steps=(
        "Record rollouts with capture_logprobs.",
        "Score them with the policy to be trained: bashgym eval replay-score.",
        "Build the smoke bundle and mend what it names.",
        "Train, then compare pass@k.",
    ),
    ladder=grpo.RECIPE.ladder,
    rules=(
        ("masked_fraction above 0.95", "sample fresh rollouts with the current policy"),
        (
            "mean_binary_tv is not near zero at the first step",
            "the replay is of another policy or was recorded wrongly",
        ),
        ("frac_reward_zero_std at or above 0.5", "record more attempts, at tasks of middling difficulty"),
    ),
    docs=("strategy", "terminal-rl-recipe", "metrics"),
    next=(
        (
            "record rollouts",
            "bashgym api POST /api/eval/environments/model-rollout-passk --data-file rollout-request.json",
        ),
        (
            "add training log probabilities",
            "bashgym eval replay-score --replay <replay.jsonl> --model <model-id> --output <scored.jsonl> --json",
        ),
        (
            "see what is still missing",
            "bashgym training smoke-bundle --replay <scored.jsonl> --output-dir <dir> --base-model <model-id> --json",
        ),
        (
            "run it with these settings in run-config.json",
            "bashgym training start --strategy dppo --model <model-id> --dataset-path <scored.jsonl> "
            "--config run-config.json --json",
        ),
    ),
)

METHOD = Method(
    name="dppo",
    title="DPPO replay",
    summary="Policy gradient on recorded rollouts; tokens that moved out of the trust region are masked.",
    objective="-A * p/q over the sampled tokens, A = reward - group mean, masked where the divergence exceeds its threshold",
    direct=True,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *METRICS, *SYSTEM, *EXECUTED),
    evidence=EVIDENCE,
    recipe=RECIPE,
    own_fields=FIELDS,
    builder="bashgym.training.dppo:build",
    must_emit=("loss", "masked_fraction", "logprob_coverage", "reward", "reward_std", "frac_reward_zero_std"),
)
