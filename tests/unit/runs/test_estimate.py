import pytest

from bashgym.core.settings import Settings
from bashgym.models.catalog import resolve
from bashgym.runs import estimate

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
    return estimate.memory_bytes(494_000_000, estimate.shape_of(QWEN_05B), request, four_bit=False, bytes_per_value=4)[
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
    parts = estimate.memory_bytes(
        494_000_000, estimate.shape_of(QWEN_05B), {**REQUEST, "use_lora": False}, four_bit=False, bytes_per_value=4
    )
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == 16 * 494_000_000


def test_disk_grows_with_the_policy():
    shape = estimate.shape_of(QWEN_05B)
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
