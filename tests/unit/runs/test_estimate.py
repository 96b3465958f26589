import pytest

from bashgym.core.settings import Settings
from bashgym.models.catalog import resolve
from bashgym.runs import estimate, memory

REQUEST = {
    "use_lora": True,
    "lora_rank": 16,
    "batch_size": 4,
    "max_seq_length": 512,
    "gradient_checkpointing": False,
    "checkpoint_limit": 1,
    "artifact_retention": "adapter_only",
    "dtype": "auto",
}
QWEN_05B = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "intermediate_size": 4864,
    "vocab_size": 151_936,
}


def _total(**changes):
    request = {**REQUEST, **changes}
    return memory.memory_bytes(494_000_000, memory.shape_of(QWEN_05B), request, four_bit=False, bytes_per_value=4)[
        "total"
    ]


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"batch_size": 1}, {"batch_size": 8}),
        ({"max_seq_length": 128}, {"max_seq_length": 2048}),
        ({"use_lora": True}, {"use_lora": False}),
        ({"gradient_checkpointing": True}, {"gradient_checkpointing": False}),
        ({"lora_rank": 4}, {"lora_rank": 256}),
    ],
)
def test_what_costs_memory_costs_it_in_the_estimate(less, more):
    assert _total(**less) < _total(**more)


def test_full_fine_tuning_holds_weights_gradients_and_two_moments():
    parts = memory.memory_bytes(
        494_000_000, memory.shape_of(QWEN_05B), {**REQUEST, "use_lora": False}, four_bit=False, bytes_per_value=4
    )
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == 16 * 494_000_000


def test_disk_grows_with_the_policy():
    shape = memory.shape_of(QWEN_05B)
    lora, deployable, full = (
        estimate.disk_bytes(494_000_000, 988_000_000, shape, {**REQUEST, **change})
        for change in ({}, {"artifact_retention": "deployable"}, {"use_lora": False})
    )
    assert lora < deployable < full


def test_recommendations_are_real_numbers_of_this_machine(tmp_path):
    found = estimate.recommendations(Settings.from_env({"BASHGYM_DIR": str(tmp_path)}, tmp_path))
    assert found["memory_available_gb"] > 0 and found["recommended_models"]
    capacities = found["regime_capacities"]
    assert capacities["inference"] >= capacities["lora"] >= capacities["full_finetune"] >= 0


def test_without_a_probe_no_time_is_claimed(tmp_path):
    settings = Settings.from_env({"BASHGYM_DIR": str(tmp_path)}, tmp_path)
    model = resolve("bashgym/tiny-qwen2", settings)
    facts = {**model.facts(), "weight_bytes": model.weight_bytes}
    found = estimate.estimate(facts, model.config, REQUEST, settings, tokens=1000)
    assert found["seconds"] is None and found["calibrated"] is False and found["fits"] is True


def _parts(**changes):
    request = {**REQUEST, "gradient_accumulation_steps": 4, **changes}
    return memory.memory_bytes(494_000_000, memory.shape_of(QWEN_05B), request, four_bit=False, bytes_per_value=4)


GRPO = {"strategy": "grpo", "max_completion_length": 256}


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"strategy": "sft"}, {"strategy": "dpo"}),
        ({"strategy": "sft"}, {"strategy": "session_distillation"}),
        ({**GRPO, "use_lora": False}, {**GRPO, "use_lora": False, "grpo_beta": 0.1}),
        ({"strategy": "dpo"}, {"strategy": "dpo", "use_lora": False}),
        ({**GRPO, "gradient_accumulation_steps": 1}, {**GRPO, "gradient_accumulation_steps": 512}),
        ({**GRPO, "gradient_accumulation_steps": 1}, {**GRPO, "trainer_args": {"steps_per_generation": 512}}),
        ({"gradient_checkpointing": True, "batch_size": 1}, {"gradient_checkpointing": True, "sample_prompts": 32}),
    ],
)
def test_what_a_strategy_holds_beside_training_is_counted(less, more):
    assert _parts(**less)["total"] < _parts(**more)["total"]


def test_a_reference_model_is_a_whole_copy_only_in_full_fine_tuning():
    assert _parts(strategy="dpo", use_lora=False)["reference"] == 4 * 494_000_000
    assert _parts(strategy="dpo")["reference"] == 0
    assert _parts(**GRPO, use_lora=False)["reference"] == 0, "beta 0 needs none"


def test_the_key_value_cache_is_that_of_the_sequences_sampled_at_once():
    shape = memory.shape_of({**QWEN_05B, "num_key_value_heads": 2})
    assert shape["kv"] == 128
    request = {**REQUEST, **GRPO, "gradient_accumulation_steps": 8}
    parts = memory.memory_bytes(1, shape, request, four_bit=False, bytes_per_value=2)
    cache = 2 * 24 * 128 * 512 * (4 * 8) * 2
    assert cache < parts["generation"] < cache + 2 * 32 * (17 * 256 * 896 + 151_936 * 4)


def test_phases_follow_each_other_so_only_the_largest_counts():
    parts = _parts(**GRPO, eval_split=0.1)
    resident = sum(parts[k] for k in ("process", "weights", "gradients", "optimizer", "reference", "teacher"))
    phases = (parts["activations"] + parts["logits"], parts["generation"], parts["evaluation"])
    assert parts["evaluation"] > 0 and parts["total"] == resident + max(phases)


def test_evaluation_and_sampling_cost_nothing_where_there_is_none():
    parts = _parts(strategy="sft", eval_split=0.0, sample_prompts=0)
    assert parts["evaluation"] == parts["generation"] == 0


@pytest.mark.parametrize(("seconds", "price", "cost"), [(1800.0, 4.0, 2.0), (None, 4.0, None), (60.0, None, None)])
def test_money_is_time_at_a_price(seconds, price, cost):
    assert estimate.cost_of(seconds, {"cost_per_hour": price}) == cost


def test_no_time_is_claimed_where_sampling_decides_it(tmp_path):
    settings = Settings.from_env({"BASHGYM_DIR": str(tmp_path)}, tmp_path)
    (tmp_path / "calibration.json").write_text('{"flops_per_second": 1e9, "memory_factor": 1.0}')
    model = resolve("bashgym/tiny-qwen2", settings)
    facts = {**model.facts(), "weight_bytes": model.weight_bytes}

    def guess(passes=1.0, **changes):
        return estimate.estimate(facts, model.config, {**REQUEST, **changes}, settings, tokens=1000, passes=passes)

    assert guess(strategy="sft", cost_per_hour=3600.0)["cost"] == guess(strategy="sft")["seconds"] > 0
    assert guess(passes=3.0)["seconds"] == pytest.approx(3 * guess()["seconds"], abs=0.2)
    assert guess(**GRPO)["seconds"] is None
