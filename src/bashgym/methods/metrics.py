"""Metrics that more than one method reports, and the groups that methods compose. Data only."""

from __future__ import annotations

from bashgym.methods.spec import Metric, Role

LOSS = Metric(
    "loss",
    Role.OBJECTIVE,
    "training objective, averaged over the tokens or pairs of one logging interval",
    "rising over the last third, flat from the start, NaN or infinity",
    "halve learning_rate; if it is flat, look at the trained-token mask with `bashgym data preview`",
    aliases=("train_loss", "train/loss", "train.loss"),
)
EVAL_LOSS = Metric(
    "eval_loss",
    Role.EVALUATION,
    "the same objective on rows that are not trained on",
    "turning up while loss still falls",
    "stop at its minimum: fewer epochs, or more and more varied rows",
    aliases=("eval/loss", "eval.loss", "valid_loss"),
)
GRAD_NORM = Metric(
    "grad_norm",
    Role.HEALTH,
    "gradient length before clipping",
    "spikes of ten times its median, or values near zero",
    "spikes: lower learning_rate or max_grad_norm and inspect the rows of that step; zero: nothing is trained",
    aliases=("train/grad_norm", "train.grad_norm", "gradient_norm"),
)
LEARNING_RATE = Metric(
    "learning_rate",
    Role.HEALTH,
    "step size that the schedule gave",
    "zero before the last step, or no warm-up where one was asked for",
    "check max_steps, num_epochs and warmup_ratio against the number of optimizer steps",
    aliases=("train/learning_rate", "train.learning_rate", "lr"),
)
TOKEN_ACCURACY = Metric(
    "mean_token_accuracy",
    Role.DIAGNOSTIC,
    "share of trained tokens whose most likely prediction is the target",
    "near 1.0 within the first steps",
    "the rows are too easy, repeated or leaked into the prompt: look for duplicates",
    aliases=("token_accuracy",),
)
ENTROPY = Metric(
    "entropy",
    Role.HEALTH,
    "mean uncertainty of the next-token distribution, in nats",
    "a fall to near zero: the policy has collapsed on one answer",
    "raise the sampling temperature or the upper clip, stop earlier",
    aliases=("mean_entropy", "policy_entropy"),
    warn_below=0.01,
)
KL = Metric(
    "kl",
    Role.HEALTH,
    "divergence of the policy from its reference",
    "steady growth while held-out results stand still",
    "lower learning_rate, fewer steps per batch, or a stronger pull to the reference",
    aliases=("kl_divergence", "approx_kl", "mean_kl", "objective/kl"),
)
NUM_TOKENS = Metric(
    "num_tokens",
    Role.SYSTEM,
    "tokens read since the start",
    "less than rows x mean length x epochs",
    "rows were truncated or dropped: run `bashgym data check`",
)
TOKENS_PER_SECOND = Metric(
    "tokens_per_second",
    Role.SYSTEM,
    "training throughput",
    "a drop below half of its early median",
    "look for swapping, a shared device or a much longer batch",
    aliases=("throughput_tokens_per_sec", "train_tokens_per_second", "system.tokens_per_second"),
)
PEAK_MEMORY = Metric(
    "peak_memory_gb",
    Role.SYSTEM,
    "largest memory use so far, in GiB",
    "within a tenth of what the device has",
    "shorten max_seq_length, halve batch_size and double gradient_accumulation_steps",
    aliases=("gpu_memory_peak_gb", "gpu_memory_gb", "max_memory_gb", "system.gpu_memory_gb"),
)
OOM = Metric(
    "oom_count",
    Role.HEALTH,
    "allocations that failed",
    "anything above zero",
    "halve batch_size, double gradient_accumulation_steps, turn gradient_checkpointing on",
    aliases=("ooms",),
    warn_above=0.0,
)
PASS_AT_1 = Metric(
    "pass_at_1",
    Role.EVALUATION,
    "chance that one attempt passes the verifier, over held-out tasks",
    "an interval that still holds the baseline's value",
    "more tasks or attempts before any claim; read the flip list",
    aliases=("pass@1", "heldout_pass@1", "bashgym_env_pass@1", "bashgym_env_holdout_pass@1", "heldout_pass_at_1"),
)
PASS_AT_K = Metric(
    "pass_at_k",
    Role.EVALUATION,
    "chance that at least one of k attempts passes: 1 - C(n-c, k) / C(n, k)",
    "pass@k up while pass@1 stands still, or the reverse",
    "the first is more variety, the second is sharpening; say which one is wanted",
    aliases=("pass@k", "heldout_pass@k", "bashgym_env_pass@k", "bashgym_env_holdout_pass@k", "heldout_pass_at_k"),
)
TIMEOUT_RATE = Metric(
    "timeout_rate",
    Role.HEALTH,
    "share of attempts that ran out of time",
    "more than one in ten",
    "shorter tasks, larger limits, or a penalty on length; timeouts are not wrong answers",
    warn_above=0.10,
)
TAMPER_RATE = Metric(
    "tamper_rate",
    Role.HEALTH,
    "share of attempts that touched what they must not",
    "anything above zero",
    "stop: close the hole in the environment, then discard the affected rollouts",
    block_above=0.0,
)
VERIFIER_ERROR_RATE = Metric(
    "verifier_error_rate",
    Role.HEALTH,
    "share of attempts whose verifier itself failed",
    "more than one in fifty",
    "mend the verifier; its failures are missing observations, not zero rewards",
    warn_above=0.02,
)
REWARD = Metric(
    "reward",
    Role.OBJECTIVE,
    "mean reward of the sampled completions",
    "up while held-out pass@1 is flat or down",
    "treat as reward hacking: run the canaries, read samples.jsonl",
    aliases=("train_reward_mean", "valid_reward_mean", "reward_mean", "mean_reward"),
)
REWARD_STD = Metric(
    "reward_std",
    Role.HEALTH,
    "spread of rewards within a group",
    "zero: every advantage is zero and nothing is learned",
    "mix harder and easier prompts, raise grpo_temperature or the group size",
)
ZERO_STD = Metric(
    "frac_reward_zero_std",
    Role.HEALTH,
    "share of groups whose completions all got the same reward",
    "half or more of the groups",
    "drop prompts that always pass or always fail; turn filter_zero_std_groups on",
    aliases=("zero_std_fraction", "frac_zero_std"),
    warn_above=0.499999,
)
TOOL_CALLS = Metric(
    "tool_calls",
    Role.DIAGNOSTIC,
    "commands per episode",
    "growth towards the limit without a better pass rate",
    "lower max_tool_calls_per_episode or reward shorter solutions",
    aliases=("command_count",),
)
CLIPPED = Metric(
    "truncated_ratio",
    Role.HEALTH,
    "share of the sampled answers that max_completion_length cut",
    "most of them, from the start",
    "raise max_completion_length, or teach the stop token with SFT first",
    logged_as="completions/clipped_ratio",
)
EVAL_REWARD = Metric(
    "eval_reward",
    Role.EVALUATION,
    "mean reward on prompts that are not trained on",
    "flat or falling while reward rises",
    "treat as reward hacking or memorised prompts: read samples.jsonl, stop",
)


def _groups(name: str, means: str, watch_for: str, action: str) -> Metric:
    return Metric(name, Role.DIAGNOSTIC, means, watch_for, action)


_MIX = "change the mix of prompts: those that always pass or always fail cost sampling and teach nothing"
SAMPLING = (
    _groups("requested_prompt_groups", "prompt groups that a rollout batch asks for", "nothing", "none"),
    _groups("effective_prompt_groups", "groups with contrast in the batch that is trained on", "below requested", _MIX),
    _groups("candidate_prompt_groups", "groups sampled in all, refills included", "several times requested", _MIX),
    _groups("active_sampling_refills", "groups walked beyond those requested", "as many as requested", _MIX),
    _groups("zero_std_groups_dropped", "groups of equal rewards that left the loss", "half or more", _MIX),
    _groups(
        "all_zero_groups_dropped",
        "groups in which no answer was rewarded",
        "nearly all dropped ones",
        "easier prompts, larger groups, or SFT first",
    ),
    _groups(
        "all_one_groups_dropped",
        "groups in which every answer got full reward",
        "nearly all dropped ones",
        "harder prompts, or stop",
    ),
    _groups("maintained_batch", "1 if every requested group was filled", "0 for many steps", _MIX),
)
"""What filtering and active sampling did; logged with filter_zero_std_groups."""

OPTIMISATION = (LOSS, EVAL_LOSS, GRAD_NORM, LEARNING_RATE)
SYSTEM = (NUM_TOKENS, TOKENS_PER_SECOND, PEAK_MEMORY, OOM)
EXECUTED = (PASS_AT_1, PASS_AT_K, TIMEOUT_RATE, TAMPER_RATE, VERIFIER_ERROR_RATE)
