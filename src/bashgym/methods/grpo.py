"""Group-relative policy optimisation, and the terminal profile that goes with it."""

from __future__ import annotations

from dataclasses import replace

from bashgym.methods import world_model
from bashgym.methods.common import BOOL, FLOAT, INT, MAX_COMPLETION_LENGTH, STR, WRAP_PROMPTS, by_hardware
from bashgym.methods.metrics import (
    CLIPPED,
    ENTROPY,
    EVAL_REWARD,
    EXECUTED,
    KL,
    OPTIMISATION,
    REWARD,
    REWARD_STD,
    SAMPLING,
    SYSTEM,
    TOOL_CALLS,
    ZERO_STD,
)
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Field, Method, Metric, Recipe, Role, Stage

TERMINAL = "terminal_rl_tmax_like"
"""The profile for agents that act in a shell."""

REWARD_MODE = Field(
    "grpo_reward_mode",
    STR,
    "syntax",
    "syntax: the code parses; execution: it runs; verification: share of its tests that pass; answer: the final answer "
    "is the row's; environment: the row's environment is solved; rwml: a replay's next observation is predicted (what "
    "rwml_enabled sets); python:<file.py>:<function>: your own function",
    choices=("syntax", "execution", "verification", "answer", "environment", "rwml"),
    prefixes=("python:",),
)

NEEDS = {"verification": "tests", "answer": "answer", "environment": "environment"}
"""Reward mode -> what a row must hold beside the prompt; the other modes look at the completion alone, or decide themselves."""
ENVIRONMENT_CHECK = "bashgym.envs.rewards.environment:parse_environment"
"""`module:function` that refuses a row's environment with `environment_invalid`."""

FIELDS = (
    Field(
        "grpo_num_generations",
        INT,
        4,
        "completions per prompt, at least 2: they are compared with each other",
        minimum=2,
        maximum=64,
    ),
    Field(
        "grpo_group_size",
        INT,
        None,
        "another name for grpo_num_generations; null follows it",
        nullable=True,
        minimum=2,
        maximum=64,
    ),
    Field("grpo_temperature", FLOAT, 0.7, "sampling temperature", minimum=0.1, maximum=2),
    REWARD_MODE,
    Field("reward_timeout_s", FLOAT, 30.0, "seconds for the reward of one completion", minimum=0.1, maximum=3600),
    Field(
        "reward_workers",
        INT,
        None,
        "completions that are judged at a time; null is the number of CPU cores",
        nullable=True,
        minimum=1,
        maximum=256,
    ),
    Field(
        "reward_health",
        STR,
        "warn",
        "what happens when a reward rule is broken (no contrast, verifier errors, drift of KL, entropy or length): an "
        "event and a log line, and with pause or stop a checkpoint and the end of the attempt",
        choices=("off", "warn", "pause", "stop"),
    ),
    Field(
        "environment_protocol",
        STR,
        "text",
        "text: one answer holds the commands; tools: many turns with a bash tool, for templates that know tool calls",
        choices=("text", "tools"),
    ),
    MAX_COMPLETION_LENGTH,
    WRAP_PROMPTS,
    Field("grpo_beta", FLOAT, 0.0, "pull to the reference model (KL); 0 needs no reference", minimum=0, maximum=10),
    Field(
        "overlong_buffer",
        INT,
        None,
        "tokens before max_completion_length in which a penalty grows; null gives none",
        nullable=True,
        minimum=1,
    ),
    Field("overlong_penalty", FLOAT, 1.0, "penalty of an answer that reaches max_completion_length", minimum=0),
    Field(
        "grpo_loss_type",
        STR,
        "grpo",
        "loss form; gspo is the sequence-level ratio",
        choices=("grpo", "gspo", "dr_grpo", "dapo", "bnpo"),
    ),
    Field(
        "grpo_ratio_clip_min", FLOAT, 0.2, "how far a ratio may fall below 1", minimum=0, maximum=1, open_maximum=True
    ),
    Field(
        "grpo_ratio_clip_max",
        FLOAT,
        None,
        "how far it may rise; null is 0.28 for dapo, else grpo_ratio_clip_min",
        nullable=True,
        minimum=0,
    ),
    Field("grpo_backend", STR, "auto", "who samples and trains", choices=("auto", "unsloth", "plain", "trl_vllm")),
    Field("grpo_use_vllm", BOOL, False, "sample with vLLM; GPU only"),
    Field(
        "training_profile",
        STR,
        "default",
        "default, or terminal_rl_tmax_like for shell agents",
        choices=("default", TERMINAL),
        value_aliases={"tmax": TERMINAL, "tmax_like": TERMINAL, "terminal_rl": TERMINAL},
    ),
    Field(
        "prompts_per_rollout_batch",
        INT,
        None,
        "prompts sampled at a time; null is what one optimizer step takes (batch x accumulation x processes / group; it "
        "was 8, and only printed). A given value sets gradient_accumulation_steps if that is open; else several optimizer "
        "steps share one rollout batch, and the clip range bounds their ratios",
        nullable=True,
        minimum=1,
        maximum=128,
    ),
    Field("max_tool_calls_per_episode", INT, 64, "commands before an episode is cut", minimum=1, maximum=512),
    Field(
        "token_level_loss",
        BOOL,
        None,
        "average over the tokens of a step, not over answers; null follows the loss (dapo, bnpo, dr_grpo do, gspo does "
        "not), and for grpo the profile",
        nullable=True,
    ),
    Field(
        "filter_zero_std_groups",
        BOOL,
        None,
        "groups of equal rewards leave the loss and its mean; null follows active_sampling and the profile",
        nullable=True,
    ),
    Field(
        "active_sampling",
        BOOL,
        None,
        "sample other prompts in place of filtered groups, in at most 4 rounds; null follows the profile",
        nullable=True,
    ),
    Field(
        "lm_head_fp32",
        BOOL,
        None,
        "compute the logits in float32, in sampling and in the loss; null follows the profile",
        nullable=True,
    ),
    Field(
        "interleaved_thinking",
        BOOL,
        None,
        "keep the reasoning of earlier turns in view; always so with environment_protocol tools, where turns are joined as "
        "sampled; null follows the profile",
        nullable=True,
    ),
    Field(
        "sft_warm_start_policy",
        STR,
        None,
        "which models must have had an SFT pass: always refuses others, weak_models_only warns below 4 billion parameters",
        nullable=True,
        choices=("none", "weak_models_only", "always"),
    ),
    *world_model.FIELDS,
)

_KNOBS = ("token_level_loss", "filter_zero_std_groups", "active_sampling", "lm_head_fp32", "interleaved_thinking")
PROFILES: dict[str, dict[str, object]] = {
    "default": dict.fromkeys(_KNOBS, False),
    TERMINAL: {
        "grpo_group_size": 32,
        "prompts_per_rollout_batch": 8,
        "max_tool_calls_per_episode": 64,
        "environment_protocol": "tools",
        "grpo_loss_type": "dapo",
        "sft_warm_start_policy": "weak_models_only",
        # A group of 32 needs a batch that it divides; with the usual 1 x 8 the trainer would refuse to start.
        "gradient_accumulation_steps": 32,
        **dict.fromkeys(_KNOBS, True),
    },
}

METRICS = (
    REWARD,
    REWARD_STD,
    ZERO_STD,
    KL,
    ENTROPY,
    Metric(
        "clip_ratio",
        Role.HEALTH,
        "share of tokens whose ratio was clipped",
        "above a third",
        "fewer updates per rollout batch or a smaller learning_rate",
        logged_as="clip_ratio/region_mean",
    ),
    Metric(
        "completion_length",
        Role.DIAGNOSTIC,
        "mean tokens per completion",
        "growth without reward, or the window reached",
        "penalise overlong answers; check that the stop token is learned",
        logged_as="completions/mean_length",
    ),
    replace(TOOL_CALLS, logged_as="tools/call_frequency"),
    CLIPPED,
    EVAL_REWARD,
    *SAMPLING,
    *world_model.TRAINED,
)

DATASET = DatasetContract(
    "grpo",
    "one prompt, with what its answers are judged by",
    required=("prompt",),
    optional=("tests", "answer", "environment", "reward_target", "metadata"),
    rules=(
        "prompt is a non-empty string or a list of messages",
        "grpo_reward_mode verification needs tests, answer an answer, environment an environment in every row",
        "prompts differ in difficulty",
        "nothing in the prompt gives the answer away",
    ),
    example={
        "prompt": "Write f(x) that doubles x.",
        "tests": "from solution import f\n\ndef test_f():\n    assert f(2) == 4",
    },
)

EVIDENCE = (
    EvidenceRule(EvidenceKind.METRICS, "reward, its spread, KL and timeouts by step", card_fields=("metrics_path",)),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to this run",
        card_fields=("release_evidence_path",),
    ),
    EvidenceRule(EvidenceKind.ENVIRONMENT_PASSK, "rollout pass@k on held-out tasks, before and after"),
    EvidenceRule(EvidenceKind.HOLDOUT_GATE, "held-out task families pass the gate"),
    EvidenceRule(EvidenceKind.CANARIES, "every reward-hacking canary is guarded"),
    EvidenceRule(EvidenceKind.ZERO_STD_DIAGNOSTICS, "frac_reward_zero_std and reward_std for the whole run"),
)


def _sizes(group: int, prompts: int, batch: int) -> dict[str, object]:
    """Settings under which one optimizer step takes `prompts` whole groups."""
    return {
        "grpo_group_size": group,
        "prompts_per_rollout_batch": prompts,
        "batch_size": batch,
        "gradient_accumulation_steps": group * prompts // batch,
    }


RECIPE = Recipe(
    when_to_use="A program can judge an answer, the model already succeeds sometimes, and you want it to succeed more "
    "often. With no success at all there is no contrast to learn from: do SFT first.",
    settings={
        "training_profile": TERMINAL,
        "grpo_loss_type": "dapo",
        "filter_zero_std_groups": True,
        "active_sampling": True,
        "token_level_loss": True,
        "lm_head_fp32": True,
        "max_tool_calls_per_episode": 64,
        "learning_rate": 1e-5,
        "lora_rank": 16,
        "lora_alpha": 32,
    },
    by_hardware=by_hardware(
        local_cpu=_sizes(4, 2, 8),
        local_12gb=_sizes(8, 8, 1),
        local_24gb=_sizes(8, 8, 2),
        private_compute=_sizes(32, 8, 8),
        cloud=_sizes(32, 8, 8),
    ),
    adjust_when={
        "grpo_group_size": "larger when many groups have no contrast; it must divide batch x accumulation x processes",
        "prompts_per_rollout_batch": "larger when the reward curve is noisy",
        "learning_rate": "halve it when KL or clip ratio climbs",
        "grpo_loss_type": "dr_grpo when answers grow without gain, gspo when token ratios are unstable",
        "max_tool_calls_per_episode": "lower it when episodes run to the limit without passing",
        "batch_size": "as large as memory allows; keep batch x accumulation a multiple of grpo_group_size",
        "training_profile": "default when answers are single turns without tools",
        "active_sampling": "off when sampling takes more time than training",
        "token_level_loss": "off when short answers must not lose against long ones",
        "lm_head_fp32": "off when memory is short and log probabilities of sampler and trainer agree",
        "filter_zero_std_groups": "leave it on; off only to measure how many groups it drops",
    },
    watch=(
        "reward rises together with held-out pass@1",
        "frac_reward_zero_std below one half",
        "reward_std above zero",
        "KL, entropy and answer length without drift",
        "timeouts below 10 %, verifier errors below 2 %, tampering zero",
    ),
    steps=(
        "Measure pass@k of the base model first: it must be neither 0 nor 1.",
        "Run the canaries against the verifier.",
        "Train a few steps and check that groups have contrast.",
        "Judge on held-out task families, not on reward.",
    ),
    ladder=(
        Stage(
            "rollout_contrast",
            "reward spread and zero-std share of a few rollout batches",
            "at least half of the groups have contrast",
        ),
        Stage(
            "replay_contract", "rollout records with token log probabilities", "every sampled token is accounted for"
        ),
        Stage(
            "backend_smoke", "a few optimizer steps on the chosen backend", "weights change and nothing is clipped away"
        ),
        Stage(
            "release_gate",
            "held-out pass@k, holdout gate, canaries, release evidence",
            "the gain's interval excludes zero and no canary is open",
        ),
    ),
    rules=(
        ("frac_reward_zero_std at or above 0.5", "change the prompt mix; larger groups; filter_zero_std_groups"),
        ("reward up, held-out flat", "reward hacking: read samples, run canaries, stop the run"),
        ("entropy collapses", "raise grpo_temperature or grpo_ratio_clip_max"),
        ("tamper_rate above zero", "stop, close the hole, discard the rollouts"),
        ("timeout_rate above 0.1", "cut episodes earlier or give them more time; do not read timeouts as failures"),
    ),
    docs=("strategy", "terminal-rl-recipe", "metrics", "glossary"),
    next=(
        (
            "run it with these settings in run-config.json",
            "bashgym training start --strategy grpo --model <model-id> --dataset-path <prompts.jsonl> "
            "--config run-config.json --json",
        ),
        ("read the curves", "bashgym training analyze --run-id <run_id> --models-dir data/models --json"),
        ("measure held-out pass@k", "bashgym api POST /api/eval/environments/passk --data-file passk-request.json"),
    ),
)

METHOD = Method(
    name="grpo",
    title="Group-relative policy optimisation",
    summary="Samples a group of answers per prompt and reinforces those above the group's mean.",
    objective="min(ratio * A, clip(ratio, 1 - min, 1 + max) * A) with A = (r - mean) / (std + eps) within the group",
    direct=True,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *METRICS, *SYSTEM, *EXECUTED),
    evidence=EVIDENCE,
    recipe=RECIPE,
    own_fields=FIELDS,
    profile_field="training_profile",
    profiles=PROFILES,
    builder="bashgym.training.grpo:build",
    must_emit=("loss", "reward", "reward_std", "frac_reward_zero_std"),
)
