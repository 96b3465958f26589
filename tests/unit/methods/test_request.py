"""The request parser: strict, complete in what it reports, and stable when its result is parsed again."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashgym.core.canonical import canonical_json
from bashgym.core.errors import BashGymError
from bashgym.methods import registry
from bashgym.methods.request import CONTROLLED, check_config_keys, parse_request

BODY: dict[str, object] = {"base_model": "bashgym/tiny-qwen2", "dataset_path": "train.jsonl"}
GRPO = {**BODY, "strategy": "grpo"}


def refused(body: dict[Any, object]) -> BashGymError:
    with pytest.raises(BashGymError) as caught:
        parse_request(body)
    return caught.value


def test_the_smallest_body_gets_every_default() -> None:
    request = parse_request(BODY)
    assert request.strategy == "sft"
    assert set(request.values) == set(registry.FIELDS)
    assert request["num_epochs"] == 3 and request["load_in_4bit"] is None and request["seed"] == 42
    assert request.given == set(BODY) and request.warnings == []


def test_defaults_are_not_shared_between_requests() -> None:
    parse_request(BODY)["report_to"].append("wandb")
    parse_request(BODY)["trainer_args"]["x"] = 1
    assert parse_request(BODY)["report_to"] == [] and parse_request(BODY)["trainer_args"] == {}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("epochs", "num_epochs"),
        ("num_train_epochs", "num_epochs"),
        ("lr", "learning_rate"),
        ("model", "base_model"),
        ("batch", "batch_size"),
        ("per_device_train_batch_size", "batch_size"),
        ("max_length", "max_seq_length"),
        ("lora_r", "lora_rank"),
        ("dataset", "dataset_path"),
        ("learning-rate", "learning_rate"),
        ("learningRate", "learning_rate"),
        ("num_epoch", "num_epochs"),
        ("batchsize", "batch_size"),
        ("gradient_acumulation_steps", "gradient_accumulation_steps"),
    ],
)
def test_an_alias_or_typo_is_refused_with_the_right_name(wrong: str, right: str) -> None:
    error = refused({**BODY, wrong: 1})
    assert error.code == "unknown_field" and error.fields == [wrong]
    assert right in error.message and right in error.hint


def test_the_nearest_name_prefers_fields_of_the_strategy() -> None:
    assert "grpo_temperature" in refused({**GRPO, "temperature": 1.0}).hint
    assert "teacher_temperature" in refused({**BODY, "strategy": "distillation", "temperature": 1.0}).hint


def test_all_faults_are_reported_together() -> None:
    error = refused({"epochs": 1, "batch_size": 0, "lora_rank": True, "base_model": "m"})
    assert error.code == "unknown_field"
    assert set(error.fields) == {"epochs", "batch_size", "lora_rank", "dataset_path"}
    assert all(name in error.message for name in error.fields)


@pytest.mark.parametrize("name", ["base_model", "dataset_path"])
@pytest.mark.parametrize("value", [None, "", "  "])
def test_model_and_data_are_required(name: str, value: object) -> None:
    error = refused({**BODY, name: value})
    assert error.code == "missing_field" and error.fields == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_epochs", 0),
        ("num_epochs", 101),
        ("num_epochs", True),
        ("num_epochs", 1.0),
        ("num_epochs", "3"),
        ("num_epochs", None),
        ("num_epochs", 10**400),
        ("learning_rate", 0),
        ("learning_rate", -1e-5),
        ("learning_rate", 1.0000001),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("learning_rate", False),
        ("learning_rate", "2e-5"),
        ("learning_rate", 10**400),
        ("max_seq_length", 7),
        ("lora_rank", 0),
        ("lora_rank", 1025),
        ("lora_dropout", 0.51),
        ("seed", -1),
        ("seed", 2**32),
        ("use_lora", 1),
        ("use_lora", "true"),
        ("dtype", "bf16"),
        ("report_to", "wandb"),
        ("report_to", ["wand"]),
        ("report_to", [1]),
        ("report_to", ["none", "wandb"]),
        ("trainer_args", []),
        ("trainer_args", {"a": math.nan}),
        ("trainer_args", {"a": {1}}),
        ("trainer_args", {1: 2}),
        ("origin", {"kind": "cli", "password": "x"}),
        ("origin", {"kind": 1}),
        ("run_id", "../up"),
        ("run_id", "a..b"),
        ("run_id", "a/b"),
        ("run_id", ""),
        ("idempotency_key", "k" * 161),
        ("base_model", "a\0b"),
        ("base_model", "\ud800"),
        ("max_minutes", 0),
        ("eval_split", 0.6),
        ("artifact_retention", "everything"),
        ("data_source", "traces"),
        ("data_source", "security_dataset"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    error = refused({**BODY, name: value})
    assert error.code == "invalid_field" and error.fields == [name]
    assert name in error.message and len(error.message) < 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_epochs", 100),
        ("learning_rate", 1),
        ("max_seq_length", 1_048_576),
        ("seed", 2**32 - 1),
        ("save_steps", 1),
        ("load_in_4bit", None),
        ("load_in_4bit", True),
        ("max_steps", 1),
        ("lora_target_modules", ["q_proj"]),
        ("origin", {"kind": "cli", "agent": None}),
        ("run_id", "run_1"),
        ("compute_target", "ssh:box"),
        ("use_remote_ssh", True),
        ("device_id", "box"),
        ("tracking", {"workspace_id": "w"}),
        ("report_to", ["none"]),
    ],
)
def test_a_good_value_is_taken(name: str, value: object) -> None:
    assert parse_request({**BODY, name: value})[name] == value


def test_an_integer_of_a_float_field_becomes_a_float() -> None:
    assert type(parse_request({**BODY, "learning_rate": 1})["learning_rate"]) is float


def test_a_bad_value_names_what_was_given_and_what_is_allowed() -> None:
    message = refused({**BODY, "num_epochs": 101}).message
    assert "101" in message and "[1, 100]" in message


def test_deep_objects_are_refused_without_recursion_errors() -> None:
    deep: dict[str, object] = {}
    for _ in range(10_000):
        deep = {"a": deep}
    assert refused({**BODY, "trainer_args": deep}).fields == ["trainer_args"]


def test_push_needs_a_repository() -> None:
    error = refused({**BODY, "auto_push_hf": True})
    assert error.code == "invalid_field" and error.fields == ["hf_repo_name"]
    assert parse_request({**BODY, "auto_push_hf": True, "hf_repo_name": "me/model"})["hf_private"] is True


@pytest.mark.parametrize("policy", ["adapter_only", "adapter_checkpoint"])
def test_merged_upload_needs_a_policy_that_keeps_merged(policy: str) -> None:
    error = refused({**BODY, "hf_upload_artifact": "merged", "artifact_retention": policy})
    assert error.fields == ["hf_upload_artifact"] and policy in error.message


@pytest.mark.parametrize("policy", ["deployable", "full_run"])
def test_merged_upload_is_taken_where_merged_is_kept(policy: str) -> None:
    parse_request({**BODY, "hf_upload_artifact": "merged", "artifact_retention": policy})


def test_full_training_of_4bit_weights_is_refused() -> None:
    assert refused({**BODY, "use_lora": False, "load_in_4bit": True}).fields == ["load_in_4bit"]


def test_two_sources_of_evaluation_rows_are_refused() -> None:
    assert refused({**BODY, "eval_split": 0.1, "eval_dataset_path": "e.jsonl"}).fields == ["eval_split"]


def test_a_field_of_another_method_is_a_warning() -> None:
    request = parse_request({**BODY, "dpo_beta": 0.2})
    assert request.warnings == [
        {"code": "field_not_used", "field": "dpo_beta", "message": "sft does not use dpo_beta; it belongs to dpo"}
    ]
    assert request["dpo_beta"] == 0.2


def test_a_field_without_a_reader_is_a_warning() -> None:
    assert [w["field"] for w in parse_request({**BODY, "selected_repos": ["a"]}).warnings] == ["selected_repos"]


def test_settings_that_another_setting_disables_are_warnings() -> None:
    body = {**BODY, "use_lora": False, "lora_rank": 8, "num_epochs": 1, "max_steps": 5}
    assert {w["field"] for w in parse_request(body).warnings} == {"lora_rank", "num_epochs"}


def test_strategy_alias_is_stored_by_name() -> None:
    assert parse_request({**BODY, "strategy": "session-distillation"})["strategy"] == "session_distillation"


@pytest.mark.parametrize("name", ["world_model", "cascade", "embedding_retriever"])
def test_a_method_with_its_own_workflow_is_not_started(name: str) -> None:
    assert refused({"strategy": name, "base_model": "m"}).code == "not_direct_strategy"


@pytest.mark.parametrize("value", [None, 1, ["sft"]])
def test_a_strategy_that_is_no_string_is_refused(value: object) -> None:
    assert refused({**BODY, "strategy": value}).fields == ["strategy"]


@pytest.mark.parametrize("name", ["tmax", "tmax_like", "terminal_rl", "terminal_rl_tmax_like"])
def test_the_terminal_profile_fills_what_is_open(name: str) -> None:
    request = parse_request({**GRPO, "training_profile": name, "grpo_reward_mode": "environment"})
    assert request["training_profile"] == "terminal_rl_tmax_like"
    assert request["grpo_group_size"] == request["grpo_num_generations"] == 32
    assert request["grpo_loss_type"] == "dapo" and request["grpo_ratio_clip_max"] == 0.28
    assert request["sft_warm_start_policy"] == "weak_models_only"
    knobs = ("token_level_loss", "filter_zero_std_groups", "active_sampling", "lm_head_fp32", "interleaved_thinking")
    assert all(request[knob] is True for knob in knobs)


def test_what_is_given_wins_over_the_profile() -> None:
    request = parse_request({**GRPO, "training_profile": "tmax", "active_sampling": False, "grpo_num_generations": 8})
    assert request["active_sampling"] is False and request["grpo_group_size"] == 8


def test_the_default_profile_turns_the_terminal_knobs_off() -> None:
    request = parse_request(GRPO)
    assert request["filter_zero_std_groups"] is False and request["grpo_group_size"] == 4
    assert request["grpo_ratio_clip_max"] == request["grpo_ratio_clip_min"] == 0.2


def test_an_unknown_profile_is_refused_before_the_run() -> None:
    assert refused({**GRPO, "training_profile": "tmaxx"}).fields == ["training_profile"]


def test_a_group_that_does_not_divide_the_batch_is_refused_with_the_mend() -> None:
    error = refused({**GRPO, "grpo_group_size": 32})
    assert error.fields == ["gradient_accumulation_steps"] and "multiple of 32" in error.hint
    parse_request({**GRPO, "grpo_group_size": 32, "gradient_accumulation_steps": 32})
    request = parse_request({**GRPO, "grpo_group_size": 32, "prompts_per_rollout_batch": 2})
    assert request["gradient_accumulation_steps"] == 64


def test_two_sizes_for_one_group_are_refused() -> None:
    assert refused({**GRPO, "grpo_group_size": 8, "grpo_num_generations": 4}).fields == ["grpo_group_size"]


def test_rlvr_is_scored_by_a_verifier_only() -> None:
    assert parse_request({**BODY, "strategy": "rlvr"})["grpo_reward_mode"] == "verification"
    assert refused({**BODY, "strategy": "rlvr", "grpo_reward_mode": "syntax"}).fields == ["grpo_reward_mode"]


@pytest.mark.parametrize("name", sorted(CONTROLLED))
def test_a_config_file_cannot_set_what_has_a_flag(name: str) -> None:
    with pytest.raises(BashGymError) as caught:
        check_config_keys({name: "x", "num_epochs": 1})
    assert caught.value.code == "field_has_flag" and caught.value.fields == [name]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
DIRECT = st.sampled_from(registry.direct_names())


@given(st.dictionaries(st.text(max_size=30), JSON, min_size=1, max_size=4), DIRECT)
@settings(max_examples=60, deadline=None)
def test_any_unknown_key_is_refused_by_name(extra: dict[str, object], strategy: str) -> None:
    extra = {k: v for k, v in extra.items() if k not in registry.FIELDS}
    if extra:
        error = refused({**BODY, "strategy": strategy, **extra})
        assert error.code == "unknown_field" and error.fields == list(extra)


@given(st.dictionaries(st.sampled_from(sorted(set(registry.FIELDS) - {"strategy"})), JSON, max_size=5), DIRECT)
@settings(max_examples=150, deadline=None)
def test_any_values_parse_or_give_a_typed_refusal(extra: dict[str, object], strategy: str) -> None:
    try:
        request = parse_request({**BODY, "strategy": strategy, **extra})
    except BashGymError as error:
        assert error.code in ("invalid_field", "missing_field") and error.fields
        json.dumps(error.detail())
    else:
        canonical_json(request.as_dict())
        again = parse_request(request.as_dict())
        assert again.as_dict() == request.as_dict() and again.values == request.values


def _valid(name: str) -> st.SearchStrategy[object]:
    field = registry.FIELDS[name]
    low = 1e-6 if field.open_minimum else (field.minimum or 0)
    high = 1e6 if field.maximum is None else field.maximum - (1e-6 if field.open_maximum else 0)
    if field.kind == "int":
        return st.integers(int(low), int(high))
    return st.floats(low, high) if field.kind == "float" else st.booleans()


NUMERIC = sorted(
    name
    for name, field in registry.FIELDS.items()
    if field.kind in ("int", "float") and not name.startswith(("grpo_", "eval_split")) and not name.endswith("_steps")
)


@given(st.data(), st.sampled_from(NUMERIC), DIRECT)
@settings(max_examples=100, deadline=None)
def test_every_value_within_its_bounds_is_taken(data: st.DataObject, name: str, strategy: str) -> None:
    # These must fit each other; tests/unit/training_pure/test_grpo_rules.py has the rules.
    bound = ("batch_size", "num_processes", "prompts_per_rollout_batch", "max_completion_length", "overlong_buffer")
    if strategy in ("grpo", "rlvr") and name in bound:
        return
    value = data.draw(_valid(name))
    priced = {"cost_per_hour": 1.0} if name == "max_cost" else {}
    assert parse_request({**BODY, **priced, "strategy": strategy, name: value})[name] == value


@given(st.sampled_from(NUMERIC), st.floats(1e-3, 1e9))
@settings(max_examples=60, deadline=None)
def test_every_value_beyond_its_bounds_is_refused(name: str, excess: float) -> None:
    field = registry.FIELDS[name]
    step = excess if field.kind == "float" else math.ceil(excess)
    for bound, sign in ((field.minimum, -1), (field.maximum, 1)):
        if bound is not None:
            value = bound + sign * step
            assert refused({**BODY, name: value if field.kind == "float" else int(value)}).fields == [name]
