"""What follows between the fields of grpo and rlvr, and which combinations contradict each other.

Owns the numbers of a rollout batch, and what an open field becomes. A field that a person gave is never changed: if it does
not fit, it is refused with what would. Parsing a filled request again gives the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Refusal = tuple[str, str, str]
"""(field to blame, message, hint)."""

_BY_TOKEN = {"dapo": True, "bnpo": True, "dr_grpo": True, "gspo": False}
"""Losses that leave no choice between averaging over tokens and over answers."""


def fill(values: dict[str, Any], checked: Mapping[str, Any]) -> None:
    """Gives open fields (None in `checked`) the value that others imply."""
    given = checked.get("grpo_num_generations")
    if checked.get("grpo_group_size") is None:
        values["grpo_group_size"] = given or values["grpo_group_size"] or values["grpo_num_generations"]
    if given is None:
        values["grpo_num_generations"] = values["grpo_group_size"]
    if values["grpo_ratio_clip_max"] is None:
        values["grpo_ratio_clip_max"] = 0.28 if values["grpo_loss_type"] == "dapo" else values["grpo_ratio_clip_min"]
    if values.get("rwml_enabled") and checked.get("grpo_reward_mode") is None and values["strategy"] == "grpo":
        values["grpo_reward_mode"] = "rwml"
    if values.get("rwml_enabled") and checked.get("grpo_beta") is None:
        values["grpo_beta"] = values["rwml_kl_beta"]
    environment = values["grpo_reward_mode"] == "environment"
    implied = {
        "token_level_loss": _BY_TOKEN.get(values["grpo_loss_type"], values["token_level_loss"]),
        "filter_zero_std_groups": values["filter_zero_std_groups"] or values["active_sampling"],
        "environment_protocol": values["environment_protocol"] if environment else "text",
    }
    values |= {name: value for name, value in implied.items() if checked.get(name) is None}
    if checked.get("interleaved_thinking") is None:
        values["interleaved_thinking"] = _with_tools(values)
    if checked.get("grpo_use_vllm") is None:
        values["grpo_use_vllm"] = values["grpo_backend"] == "trl_vllm"
    elif values["grpo_use_vllm"] and values["grpo_backend"] == "auto":
        values["grpo_backend"] = "trl_vllm"
    _fill_batch(values, checked)


def _with_tools(values: Mapping[str, Any]) -> bool:
    return bool(values["environment_protocol"] == "tools" and values["grpo_reward_mode"] == "environment")


def _fill_batch(values: dict[str, Any], checked: Mapping[str, Any]) -> None:
    """Prompts per rollout batch from the optimizer step, or accumulation from the prompts."""
    group, per_pass = values["grpo_group_size"], values["batch_size"] * values["num_processes"]
    step = per_pass * values["gradient_accumulation_steps"]
    asked, name = checked.get("prompts_per_rollout_batch"), "gradient_accumulation_steps"
    if asked is None:
        prompts = values["prompts_per_rollout_batch"]
        if not prompts or prompts * group % step:
            values["prompts_per_rollout_batch"] = max(1, step // group)
    elif checked.get(name) is None and asked * group % per_pass == 0 and asked * group // per_pass <= 128:
        values[name] = asked * group // per_pass


def refusals(values: Mapping[str, Any], checked: Mapping[str, Any]) -> list[Refusal]:
    """Everything that contradicts itself."""
    group, count = values["grpo_group_size"], values["grpo_num_generations"]
    if group != count:
        message = f"grpo_group_size {group} and grpo_num_generations {count} are two names for one number"
        return [("grpo_group_size", message, "Give one of them.")]
    return [*_batch(values, checked), *_loss(values), *_turns(values), *_lengths(values), *_world(values)]


def _batch(values: Mapping[str, Any], checked: Mapping[str, Any]) -> list[Refusal]:
    """A rollout batch holds whole groups and whole optimizer steps."""
    group, prompts, processes = values["grpo_group_size"], values["prompts_per_rollout_batch"], values["num_processes"]
    per_pass = values["batch_size"] * processes
    step = per_pass * values["gradient_accumulation_steps"]
    found: list[Refusal] = []
    if step % group and checked.get("prompts_per_rollout_batch") is None:
        message = f"{step} completions per step (batch x processes x accumulation) are not divisible by "
        message += f"grpo_num_generations {group}"
        need = group // math.gcd(group, per_pass)
        found.append(
            ("gradient_accumulation_steps", message, f"Set gradient_accumulation_steps to a multiple of {need}.")
        )
    elif prompts * group % step:
        message = (
            f"prompts_per_rollout_batch {prompts} x group of {group} are {prompts * group} completions, no multiple of the "
            f"{step} of an optimizer step (batch x processes x accumulation)"
        )
        fitting = step // math.gcd(step, group)
        mend = f"Set prompts_per_rollout_batch to a multiple of {fitting}"
        if prompts * group % per_pass == 0:
            mend += f", or gradient_accumulation_steps to {prompts * group // per_pass} or a divisor of it"
        found.append(("prompts_per_rollout_batch", message, mend + "."))
    if values["active_sampling"] and prompts % processes:
        message = (
            f"active_sampling refills whole groups on each process, and {prompts} prompts do not divide by {processes}"
        )
        found.append(("prompts_per_rollout_batch", message, f"Make it a multiple of {processes}."))
    return found


def _loss(values: Mapping[str, Any]) -> list[Refusal]:
    loss, by_token = values["grpo_loss_type"], values["token_level_loss"]
    found: list[Refusal] = []
    if values["grpo_use_vllm"] != (values["grpo_backend"] == "trl_vllm"):
        message = f"grpo_use_vllm is {str(values['grpo_use_vllm']).lower()}, and grpo_backend {values['grpo_backend']}"
        found.append(("grpo_use_vllm", message, "Leave grpo_use_vllm out; grpo_backend trl_vllm samples with vLLM."))
    if loss in _BY_TOKEN and by_token != _BY_TOKEN[loss]:
        how = "over tokens" if _BY_TOKEN[loss] else "over answers"
        message = f"token_level_loss is {str(by_token).lower()}, and the loss {loss} always averages {how}"
        found.append(("token_level_loss", message, "Leave token_level_loss open, or use grpo_loss_type grpo."))
    if values["active_sampling"] and not values["filter_zero_std_groups"]:
        message = "active_sampling replaces filtered groups, and filter_zero_std_groups is false"
        found.append(
            ("active_sampling", message, "Leave filter_zero_std_groups open, or set active_sampling to false.")
        )
    if any(name.split(".")[-1] == "lm_head" for name in values["lora_target_modules"] or []):
        message = "lora_target_modules has lm_head: log probabilities are computed from its weight, past an adapter"
        found.append(("lora_target_modules", message, "Leave lm_head out."))
    return found


def _turns(values: Mapping[str, Any]) -> list[Refusal]:
    found: list[Refusal] = []
    mode, tools = values["grpo_reward_mode"], _with_tools(values)
    if values["environment_protocol"] == "tools" and not tools:
        message = f"environment_protocol is tools, and with grpo_reward_mode {mode} there is no environment to act in"
        found.append(("environment_protocol", message, "Use grpo_reward_mode environment, or leave it open."))
    if values["interleaved_thinking"] and not tools:
        message = "interleaved_thinking is true, and without environment_protocol tools there is only one turn"
        found.append(("interleaved_thinking", message, "Leave it open, or use environment_protocol tools."))
    if tools and not values["interleaved_thinking"]:
        message = (
            "interleaved_thinking is false, and turns with tools are joined as they were sampled, reasoning included"
        )
        found.append(("interleaved_thinking", message, "Leave it open."))
    return found


def _world(values: Mapping[str, Any]) -> list[Refusal]:
    """ECHO needs observations, RWML its own rows."""
    found: list[Refusal] = []
    mode = values["grpo_reward_mode"]
    if values["echo_enabled"] and not _with_tools(values):
        message = "echo_enabled is true, and answers of a single turn hold no observation to predict"
        mend = "Use grpo_reward_mode environment with environment_protocol tools, or set echo_enabled to false."
        found.append(("echo_enabled", message, mend))
    if values["rwml_enabled"] != (mode == "rwml"):
        message = f"rwml_enabled is {str(values['rwml_enabled']).lower()}, and grpo_reward_mode {mode}"
        found.append(("rwml_enabled", message, "With strategy grpo, set rwml_enabled and leave grpo_reward_mode out."))
    if values["rwml_enabled"] and values["grpo_beta"] != values["rwml_kl_beta"]:
        message = f"rwml_kl_beta {values['rwml_kl_beta']} and grpo_beta {values['grpo_beta']} are one pull"
        found.append(("rwml_kl_beta", message, "Leave grpo_beta out."))
    return found


def _lengths(values: Mapping[str, Any]) -> list[Refusal]:
    whole, answer = values["max_seq_length"], values["max_completion_length"]
    if answer is not None and answer >= whole:
        message = f"max_completion_length {answer} leaves nothing of max_seq_length {whole} for the prompt"
        return [("max_completion_length", message, f"Set it below {whole}, or raise max_seq_length.")]
    buffer, answer = values["overlong_buffer"], answer or whole // 2
    if buffer is not None and buffer > answer:
        message = f"overlong_buffer {buffer} is longer than the longest answer, {answer} tokens"
        return [("overlong_buffer", message, f"Set it to at most {answer}.")]
    return []
