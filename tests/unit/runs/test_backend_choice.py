"""Which backend a run gets, from facts about a machine that is not this one."""

import re
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.methods.request import parse_request
from bashgym.runs.backend import UNSLOTH_LIMITS, owned_args, resolve_backend

PLAIN = {"torch": "2.13.0", "transformers": "5.24.0", "trl": "1.16.0", "peft": "0.21.2", "datasets": "5.2.0"}
PLAIN |= {"accelerate": "1.15.0"}
UNSLOTH = {**PLAIN, "transformers": "5.17.0", "trl": "1.15.0", "datasets": "4.3.0", "unsloth": "2026.10.9"}
ROOT = Path(__file__).parents[3]


def resolve(packages=PLAIN, gpus=0, strategy="sft", **fields):
    body = {
        "strategy": strategy,
        "base_model": "m",
        "dataset_path": "d.jsonl",
        "gradient_accumulation_steps": 8,
        **fields,
    }
    return resolve_backend(parse_request(body).values, {"packages": packages}, gpus)


def refusal(*args, **fields):
    with pytest.raises(BashGymError) as caught:
        resolve(*args, **fields)
    return caught.value


def test_auto_is_plain_and_says_why():
    chosen = resolve()
    assert (chosen["name"], chosen["asked"], chosen["processes"]) == ("plain", "auto", "1")
    assert chosen["reason"] == "auto: the training interpreter has no unsloth"


@pytest.mark.parametrize("strategy", ["sft", "dpo", "grpo", "rlvr"])
def test_auto_takes_unsloth_where_it_runs(strategy):
    assert resolve(UNSLOTH, 1, strategy)["name"] == "unsloth"


@pytest.mark.parametrize(
    ("packages", "gpus", "fields", "reason"),
    [
        (UNSLOTH, 0, {}, "no CUDA device"),
        ({**UNSLOTH, "trl": "1.16.0"}, 1, {}, "trl up to 1.15, and 1.16.0"),
        ({**UNSLOTH, "transformers": "5.18.0"}, 1, {}, "transformers up to 5.17"),
        ({**UNSLOTH, "datasets": "5.0.0"}, 1, {}, "datasets up to 4"),
        (UNSLOTH, 2, {"num_processes": 2}, "one process"),
    ],
)
def test_unsloth_is_passed_over_by_auto_and_refused_when_asked_for(packages, gpus, fields, reason):
    assert reason in resolve(packages, gpus, **fields)["reason"]
    error = refusal(packages, gpus, sft_backend="unsloth", **fields)
    assert error.code == "missing_extra" and error.fields == ["sft_backend"] and reason in error.message
    assert "BASHGYM_TRAINING_PYTHON" in error.hint and "constraints-unsloth.txt" in error.hint


def test_the_constraints_file_is_within_the_limits():
    text = (ROOT / "constraints-unsloth.txt").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", text, re.MULTILINE))
    for name, limit in UNSLOTH_LIMITS.items():
        assert tuple(map(int, pinned[name].split(".")))[: len(limit)] <= limit
    assert resolve({**PLAIN, **pinned}, 1)["name"] == "unsloth"


def test_vllm_is_refused_without_package_or_device():
    assert refusal(strategy="grpo", grpo_backend="trl_vllm").code == "missing_extra"
    assert refusal({**PLAIN, "vllm": "0.33.0"}, strategy="grpo", grpo_backend="trl_vllm").code == "target_unavailable"
    assert resolve({**PLAIN, "vllm": "0.33.0"}, 1, "rlvr", grpo_backend="trl_vllm")["name"] == "trl_vllm"


def test_the_two_spellings_of_vllm_agree_or_are_refused():
    packages = {**PLAIN, "vllm": "0.33.0"}
    assert resolve(packages, 1, "grpo", grpo_use_vllm=True)["name"] == "trl_vllm"
    for backend, use in (("plain", True), ("unsloth", True), ("trl_vllm", False)):
        error = refusal(packages, 1, strategy="grpo", grpo_backend=backend, grpo_use_vllm=use)
        assert error.code == "invalid_field" and error.fields == ["grpo_use_vllm"]


def test_processes_need_devices_or_a_cpu_with_ddp():
    assert resolve(num_processes=2)["processes"] == "2 with ddp over gloo"
    assert resolve(gpus=2, num_processes=2, distributed="fsdp")["processes"] == "2 with fsdp over nccl"
    assert refusal(gpus=1, num_processes=2).fields == ["num_processes"]
    assert refusal(num_processes=2, distributed="fsdp").code == "target_unavailable"
    error = refusal(gpus=2, num_processes=2, distributed="deepspeed")
    assert error.code == "missing_extra" and error.fields == ["distributed"]
    kept = refusal(gpus=2, num_processes=2, distributed="fsdp", artifact_retention="deployable")
    assert kept.code == "export_unavailable"


def test_sharding_options_without_shards_are_refused():
    for fields in ({"num_processes": 2}, {"distributed": "fsdp"}):
        assert refusal(distributed_config={"version": 2}, **fields).fields == ["distributed_config"]


def test_packing_on_a_gpu_needs_a_kernel():
    assert refusal(gpus=1, packing=True).fields == ["packing"]
    assert resolve({**PLAIN, "flash-attn": "2.8"}, 1, packing=True)["attention"] == "flash_attention_2"
    assert resolve({**PLAIN, "kernels": "0.9"}, 1, packing=True)["attention"].startswith("kernels-community/")
    assert resolve({**PLAIN, "flash-attn": "2.8"}, 1)["attention"] is None


@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow", "tensorboard"])
def test_an_absent_tracker_is_refused_by_name(tracker):
    error = refusal(report_to=[tracker])
    assert error.code == "missing_extra" and error.hint == f"pip install {tracker}"


def test_liger_needs_its_package_and_a_device():
    assert refusal(use_liger=True).code == "missing_extra"
    assert refusal({**PLAIN, "liger-kernel": "0.6"}, use_liger=True).code == "target_unavailable"


def test_four_bit_follows_the_machine():
    packages = {**PLAIN, "bitsandbytes": "0.49"}
    assert resolve(packages, 1)["load_in_4bit"] and not resolve(packages, 0)["load_in_4bit"]
    assert not resolve(packages, 1, use_lora=False)["load_in_4bit"]
    assert refusal(packages, 0, load_in_4bit=True).code == "quantization_unavailable"


def test_arguments_that_a_field_decides_name_that_field():
    owned = owned_args("sft")
    assert owned["activation_checkpointing"] == "gradient_checkpointing" and owned["fsdp"] == "the run"
