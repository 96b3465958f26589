"""Fields of grpo that depend on each other: what open ones become, and which combinations are refused by name."""

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.preflight import DatasetQuery, check
from bashgym.methods.request import parse_request
from bashgym.methods.trl_names import METHOD_OWNED

BODY = {"strategy": "grpo", "base_model": "m", "dataset_path": "d.jsonl"}
ENVIRONMENT = {"grpo_reward_mode": "environment", "environment_protocol": "tools"}


def parsed(**fields):
    return parse_request({**BODY, **fields})


def refused(**fields):
    with pytest.raises(BashGymError) as caught:
        parsed(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("batch", "steps", "group", "prompts"), [(1, 8, 4, 2), (8, 1, 4, 2), (4, 1, 4, 1), (8, 8, 8, 8)]
)
def test_an_open_rollout_batch_is_one_optimizer_step(batch, steps, group, prompts):
    request = parsed(batch_size=batch, gradient_accumulation_steps=steps, grpo_group_size=group)
    assert request["prompts_per_rollout_batch"] == prompts


def test_prompts_per_rollout_batch_sets_an_open_accumulation():
    assert parsed(prompts_per_rollout_batch=6, batch_size=2)["gradient_accumulation_steps"] == 12


def test_given_both_several_steps_share_a_rollout_batch():
    request = parsed(prompts_per_rollout_batch=6, batch_size=2, gradient_accumulation_steps=4)
    assert (request["prompts_per_rollout_batch"], request["gradient_accumulation_steps"]) == (6, 4)


def test_a_rollout_batch_that_holds_no_whole_steps_is_refused_with_numbers_that_work():
    error = refused(prompts_per_rollout_batch=3, batch_size=4, gradient_accumulation_steps=2)
    assert error.fields == ["prompts_per_rollout_batch"] and "multiple of 2" in error.hint
    assert parsed(prompts_per_rollout_batch=2, batch_size=4, gradient_accumulation_steps=2)
    assert parsed(prompts_per_rollout_batch=3, batch_size=4, gradient_accumulation_steps=3)


def test_the_terminal_profile_samples_eight_prompts_for_eight_steps():
    request = parsed(training_profile="tmax")
    assert request["prompts_per_rollout_batch"] == 8 and request["gradient_accumulation_steps"] == 32


def test_a_profile_gives_way_to_a_batch_that_it_does_not_fit():
    request = parsed(training_profile="tmax", batch_size=16, gradient_accumulation_steps=32)
    assert request["prompts_per_rollout_batch"] == 16


def test_refills_need_whole_groups_on_each_process():
    fields = {"active_sampling": True, "num_processes": 2, "batch_size": 2, "gradient_accumulation_steps": 3}
    assert refused(**fields).fields == ["prompts_per_rollout_batch"]
    assert parsed(**{**fields, "gradient_accumulation_steps": 4})["prompts_per_rollout_batch"] == 4


@pytest.mark.parametrize(("loss", "by_token"), [("dapo", True), ("bnpo", True), ("dr_grpo", True), ("gspo", False)])
def test_a_loss_fixes_what_it_averages_over(loss, by_token):
    assert parsed(grpo_loss_type=loss)["token_level_loss"] is by_token
    error = refused(grpo_loss_type=loss, token_level_loss=not by_token)
    assert error.fields == ["token_level_loss"] and loss in error.message


@pytest.mark.parametrize("by_token", [True, False])
def test_grpo_leaves_the_choice(by_token):
    assert parsed(token_level_loss=by_token)["token_level_loss"] is by_token


def test_active_sampling_brings_the_filter_and_contradicts_its_absence():
    assert parsed(active_sampling=True)["filter_zero_std_groups"] is True
    assert refused(active_sampling=True, filter_zero_std_groups=False).fields == ["active_sampling"]


def test_tools_need_an_environment_and_keep_reasoning():
    assert refused(environment_protocol="tools").fields == ["environment_protocol"]
    assert parsed(**ENVIRONMENT)["interleaved_thinking"] is True
    assert refused(**ENVIRONMENT, interleaved_thinking=False).fields == ["interleaved_thinking"]
    assert refused(interleaved_thinking=True).fields == ["interleaved_thinking"]


def test_a_profile_never_contradicts_the_reward_mode():
    request = parsed(training_profile="tmax", grpo_reward_mode="execution")
    assert request["environment_protocol"] == "text" and request["interleaved_thinking"] is False


def test_an_answer_leaves_room_for_the_prompt():
    assert refused(max_completion_length=2048).fields == ["max_completion_length"]


def test_the_overlong_buffer_lies_within_the_answer():
    assert refused(overlong_buffer=1025).fields == ["overlong_buffer"]
    assert parsed(overlong_buffer=1024)["overlong_buffer"] == 1024


def test_a_penalty_without_a_buffer_is_said_to_have_no_effect():
    (warning,) = parsed(overlong_penalty=2).warnings
    assert warning["field"] == "overlong_penalty"


def test_an_adapter_on_the_output_head_is_refused():
    assert refused(lora_target_modules=["q_proj", "lm_head"]).fields == ["lora_target_modules"]


@pytest.mark.parametrize("strategy", ["grpo", "rlvr"])
def test_arguments_behind_our_fields_are_owned(strategy):
    owned = METHOD_OWNED[strategy]
    assert (
        owned["epsilon_high"] == "grpo_ratio_clip_max" and owned["steps_per_generation"] == "prompts_per_rollout_batch"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"training_profile": "tmax"},
        {"prompts_per_rollout_batch": 6, "batch_size": 2},
        {"active_sampling": True},
        ENVIRONMENT,
    ],
)
def test_a_filled_request_parses_to_itself(fields):
    request = parsed(**fields)
    assert parse_request(request.as_dict()).values == request.values


@pytest.mark.parametrize(("rows", "steps", "codes"), [(10, 8, []), (4, 4, []), (3, 0, ["too_few_rows"])])
def test_preflight_counts_the_steps_of_whole_rollout_batches(tmp_path, rows, steps, codes):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "question {i}", "answer": "{i}"}}\n' for i in range(rows)))
    request = parsed(prompts_per_rollout_batch=4, batch_size=2, gradient_accumulation_steps=2)
    query = DatasetQuery(
        path=path, method="grpo", batch_size=2, gradient_accumulation_steps=2, num_epochs=1, options=request.values
    )
    report = check(query)
    assert report.total_steps == steps and [f.code for f in report.findings if f.code == "too_few_rows"] == codes
