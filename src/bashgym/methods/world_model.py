"""World-model objectives ECHO and RWML: diagnostics beside a policy, never a reason to promote. Not direct."""

from __future__ import annotations

from bashgym.methods.common import BOOL, FLOAT, INT, STR
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role, Stage

FIELDS = (
    Field(
        "echo_enabled",
        BOOL,
        False,
        "auxiliary loss that predicts terminal output; needs environment_protocol tools, whose turns hold observations",
    ),
    Field("echo_aux_lambda", FLOAT, 0.05, "weight of that loss", minimum=0),
    Field(
        "rwml_enabled",
        BOOL,
        False,
        "reward for predicting the next observation in embedding space; dataset_path is a replay with rwml_transitions",
    ),
    Field(
        "rwml_distance_threshold",
        FLOAT,
        0.2,
        "cosine distance that still counts as right",
        minimum=0,
        open_minimum=True,
        maximum=2,
    ),
    Field(
        "rwml_easy_pass_rate_threshold", FLOAT, 0.8, "pass rate from which a transition is easy", minimum=0, maximum=1
    ),
    Field("rwml_easy_keep_probability", FLOAT, 0.1, "share of easy transitions kept in the loss", minimum=0, maximum=1),
    Field("rwml_history_window", INT, 4, "earlier (action, state) pairs shown", minimum=0, maximum=64),
    Field(
        "rwml_embedding_model",
        STR,
        "",
        "local model that embeds observations, by its mean-pooled last hidden states; empty compares hashed character "
        "n-grams, which see spelling only",
    ),
    Field("rwml_kl_beta", FLOAT, 0.0, "pull to the reference, in the place of grpo_beta", minimum=0, maximum=10),
)

TRAINED = (
    Metric(
        "echo_loss",
        Role.DIAGNOSTIC,
        "cross-entropy of predicted terminal output",
        "rising",
        "lower echo_aux_lambda or clean the observations",
    ),
    Metric(
        "echo_observation_tokens",
        Role.DIAGNOSTIC,
        "observation tokens of an optimizer step",
        "zero",
        "the policy calls no tool: there is nothing to predict",
    ),
    Metric(
        "rwml_easy_groups_dropped",
        Role.DIAGNOSTIC,
        "easy transitions that a rollout batch left out of the loss",
        "nearly all of them",
        "the replay holds nothing new: record other tasks, or tighten rwml_distance_threshold",
    ),
    Metric(
        "rwml_pass_rate",
        Role.DIAGNOSTIC,
        "share of predicted observations within the distance threshold",
        "below 0.5",
        "inspect distances and the embedding model",
        warn_below=0.5,
    ),
    Metric(
        "embedding_distance_mean",
        Role.DIAGNOSTIC,
        "mean cosine distance of predicted and real observation",
        "above 0.2",
        "shorter windows or more transitions",
        aliases=("rwml_embedding_distance_mean",),
        warn_above=0.2,
    ),
    Metric(
        "embedding_distance_p95",
        Role.DIAGNOSTIC,
        "its 95th percentile",
        "a long tail",
        "look at the worst transitions",
        aliases=("rwml_embedding_distance_p95",),
    ),
)
"""What a grpo run with echo_enabled or rwml_enabled reports."""

METRICS = (
    *TRAINED,
    Metric(
        "exit_code_accuracy",
        Role.DIAGNOSTIC,
        "exit codes predicted right",
        "no better than the most frequent code",
        "balance failures and successes",
        aliases=("rwml_exit_code_accuracy",),
    ),
    Metric(
        "test_result_accuracy",
        Role.DIAGNOSTIC,
        "test results predicted right",
        "no better than the majority",
        "balance them",
        aliases=("rwml_test_result_accuracy",),
    ),
)

DATASET = DatasetContract(
    "replay",
    "a rollout with its observations, or <instruction, prior, action, next_state> transitions",
    required=("world_model.rwml_transitions | world_model.echo.segments",),
    rules=("observations are kept whole", "system and prompt segments are not predicted"),
)

EVIDENCE = (
    EvidenceRule(EvidenceKind.REPLAY, "replay that covers the environments"),
    EvidenceRule(
        EvidenceKind.WORLD_MODEL_QUALITY,
        "diagnostic metrics; on their own they promote nothing",
        required_for_promotion=False,
    ),
    EvidenceRule(EvidenceKind.CORRELATED_PASSK, "held-out pass@k or fewer failures that go along with them"),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to this run",
        card_fields=("release_evidence_path",),
    ),
)

RECIPE = Recipe(
    when_to_use="You have many terminal transitions and suspect that the policy fails because it does not foresee what "
    "its commands do.",
    settings={
        "echo_enabled": True,
        "echo_aux_lambda": 0.05,
        "rwml_enabled": True,
        "rwml_distance_threshold": 0.2,
        "rwml_history_window": 4,
    },
    adjust_when={
        "echo_aux_lambda": "lower it when reward falls as echo_loss does",
        "rwml_distance_threshold": "tighten it when nearly all predictions pass",
    },
    watch=("coverage of environments", "rwml_pass_rate and distances", "whether pass@k moves with them"),
    steps=(
        "Record replay with observations.",
        "Train grpo with echo_enabled (episodes with tools) or rwml_enabled (on the replay).",
        "Report the metrics beside held-out pass@k.",
    ),
    ladder=(
        Stage("replay_coverage", "summary of transitions by environment", "every family is covered"),
        Stage("backend_probe", "smoke bundle with a world-model payload", "a backend reads it"),
        Stage("diagnostic_quality", "the metrics with held-out pass@k", "they move together; else drop the objective"),
    ),
    rules=(("rwml_pass_rate below 0.5", "inspect distances"), ("echo_loss rises", "lower echo_aux_lambda")),
    docs=("world-models", "metrics", "glossary"),
    next=(
        (
            "record replay with observations",
            "bashgym api POST /api/eval/environments/model-rollout-passk --data-file rollout-request.json",
        ),
        (
            "probe a backend",
            "bashgym training smoke-bundle --replay <replay.jsonl> --output-dir <dir> --base-model <model-id> --json",
        ),
    ),
)

METHOD = Method(
    name="world_model",
    title="World-model diagnostics (ECHO, RWML)",
    summary="Predicts what the terminal will show; explains a policy, promotes none.",
    objective="ECHO: policy loss + lambda * mean CE of observation tokens; RWML: 1 if 1 - cos(guess, real) < threshold",
    direct=False,
    dataset=DATASET,
    metrics=METRICS,
    evidence=EVIDENCE,
    recipe=RECIPE,
    aliases=("world-model", "world-models", "world_models", "echo", "rwml"),
    own_fields=FIELDS,
    workflow="`training start --strategy grpo` with echo_enabled or rwml_enabled; diagnostics only",
)
