"""Plans can be used as they stand: their settings parse, their numbers fit, their commands exist."""

import pytest

from bashgym.core.errors import BashGymError
from bashgym.methods import registry
from bashgym.methods.catalog import COMMANDS, PLANNED_COMMANDS
from bashgym.methods.common import DATA, HARDWARE, STORAGE
from bashgym.methods.docs import TOPICS
from bashgym.methods.plan import make_plan
from bashgym.methods.request import parse_request

KEYS = {
    "title",
    "ok",
    "strategy",
    "hardware",
    "data",
    "when_to_use",
    "starting_settings",
    "settings_help",
    "watch",
    "metric_guide",
    "recommended_next_steps",
    "readiness_ladder",
    "adjustment_rules",
    "docs",
    "next",
}
DIRECT = registry.direct_names()


@pytest.mark.parametrize("strategy", registry.METHODS)
def test_a_plan_has_exactly_the_documented_keys_and_content_in_each(strategy: str) -> None:
    plan = make_plan(strategy)
    assert set(plan) == KEYS and plan["ok"] is True and plan["strategy"] == strategy
    for key in ("watch", "metric_guide", "recommended_next_steps", "readiness_ladder", "adjustment_rules", "next"):
        assert plan[key] or strategy == "cascade", key
    assert [h["setting"] for h in plan["settings_help"]] == list(plan["starting_settings"])
    assert all(set(h) == {"setting", "means", "start_here", "adjust_when"} for h in plan["settings_help"])
    assert all(set(m) == {"metric", "role", "means", "watch_for", "action"} for m in plan["metric_guide"])
    assert all(set(s) == {"stage", "evidence", "promote_when"} for s in plan["readiness_ladder"])


@pytest.mark.parametrize("strategy", DIRECT)
@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("data", DATA)
def test_starting_settings_are_a_valid_request_without_warnings(strategy: str, hardware: str, data: str) -> None:
    settings = make_plan(strategy, hardware, data)["starting_settings"]
    assert set(settings) <= set(registry.FIELDS)
    body = {"strategy": strategy, "base_model": "m", "dataset_path": "d", **settings}
    # Like the model, the teacher is nothing that a plan can choose.
    request = parse_request(body | ({"teacher_model": "t"} if strategy == "distillation" else {}))
    assert request.warnings == []
    assert {name: request[name] for name in settings} == settings


@pytest.mark.parametrize("strategy", DIRECT)
def test_direct_plans_carry_the_storage_block(strategy: str) -> None:
    settings = make_plan(strategy, "private_compute")["starting_settings"]
    assert {name: settings[name] for name in STORAGE} == STORAGE
    assert STORAGE == {
        "checkpoint_limit": 1,
        "artifact_retention": "adapter_only",
        "auto_push_hf": False,
        "hf_private": True,
        "hf_upload_artifact": "auto",
    }


@pytest.mark.parametrize("strategy", ["world_model"])
def test_plans_of_other_workflows_have_no_storage_block(strategy: str) -> None:
    assert not set(STORAGE) & set(make_plan(strategy)["starting_settings"])


@pytest.mark.parametrize("strategy", ["grpo", "rlvr"])
@pytest.mark.parametrize("hardware", HARDWARE)
def test_group_and_batch_of_policy_plans_fit(strategy: str, hardware: str) -> None:
    s = make_plan(strategy, hardware)["starting_settings"]
    rows = s["batch_size"] * s["gradient_accumulation_steps"]
    assert rows == s["grpo_group_size"] * s["prompts_per_rollout_batch"]


@pytest.mark.parametrize(
    ("hardware", "group"), [("local_12gb", 8), ("local_24gb", 8), ("private_compute", 32), ("cloud", 32)]
)
def test_group_size_follows_hardware(hardware: str, group: int) -> None:
    assert make_plan("grpo", hardware)["starting_settings"]["grpo_group_size"] == group


@pytest.mark.parametrize(
    ("hardware", "rate", "length", "four_bit"),
    [
        ("local_12gb", 2e-4, 2048, True),
        ("local_24gb", 2e-4, 4096, True),
        ("private_compute", 2e-5, 4096, False),
        ("cloud", 2e-5, 4096, True),
    ],
)
def test_sft_settings_follow_hardware(hardware: str, rate: float, length: int, four_bit: bool) -> None:
    s = make_plan("sft", hardware)["starting_settings"]
    assert (s["learning_rate"], s["max_seq_length"], s["load_in_4bit"]) == (rate, length, four_bit)
    assert (s["num_epochs"], s["batch_size"], s["gradient_accumulation_steps"]) == (3, 1, 8)
    assert (s["lora_rank"], s["lora_alpha"]) == (16, 32)


def test_few_rows_get_one_epoch() -> None:
    assert make_plan("sft", data="small")["starting_settings"]["num_epochs"] == 1


@pytest.mark.parametrize("name", ["private-compute", "remote", "remote_gpu"])
def test_hardware_aliases(name: str) -> None:
    assert make_plan("sft", name)["hardware"] == "private_compute"


@pytest.mark.parametrize(("hardware", "data", "field"), [("tpu", "small", "hardware"), ("cloud", "web", "data")])
def test_unknown_hardware_or_data_is_refused(hardware: str, data: str, field: str) -> None:
    with pytest.raises(BashGymError) as caught:
        make_plan("sft", hardware, data)
    assert caught.value.code == "invalid_field" and caught.value.fields == [field]


@pytest.mark.parametrize("strategy", registry.METHODS)
def test_commands_and_topics_of_a_plan_exist(strategy: str) -> None:
    plan = make_plan(strategy)
    known = (*COMMANDS, *PLANNED_COMMANDS)
    for step in plan["next"]:
        assert any(step["command"].startswith(f"bashgym {command} ") for command in known), step
    assert {entry["topic"] for entry in plan["docs"]} <= set(TOPICS)


def test_a_plan_says_when_a_step_is_not_in_this_version() -> None:
    for strategy in registry.METHODS:
        for step in make_plan(strategy)["next"]:
            planned = any(step["command"].startswith(f"bashgym {command}") for command in PLANNED_COMMANDS)
            assert planned == ("not in this version" in step["reason"]), step
