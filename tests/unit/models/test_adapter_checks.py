import json
import struct

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.data.types import Severity
from bashgym.models import adapter_checks, catalog

TIED = {"model_type": "qwen2", "tie_word_embeddings": True, "vocab_size": 151936, "num_hidden_layers": 24}
REQUEST = {"use_lora": True, "lora_target_modules": [], "artifact_retention": "deployable"}


def found(config, base=TIED, merges=True):
    return {finding.code: finding for finding in adapter_checks.config_findings(config, base, merges=merges)}


def lora(**changes):
    base = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "org/base"}
    return {**base, "target_modules": ["q_proj"], **changes}


@pytest.mark.parametrize("tensor", ["base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"])
def test_embeddings_of_another_size_are_refused_with_both_sizes(tensor):
    with pytest.raises(BashGymError) as refused:
        adapter_checks.check_shapes({tensor: [151667, 896]}, TIED, "Qwen/Qwen2.5-0.5B")
    assert all(text in refused.value.message for text in ("151667", "151936", tensor, "Qwen/Qwen2.5-0.5B"))
    assert "resize" in refused.value.hint


@pytest.mark.parametrize(
    "shapes",
    [
        {"base_model.model.model.embed_tokens.weight": [151936, 896]},
        {"base_model.model.lm_head.lora_A.weight": [8, 896], "base_model.model.lm_head.lora_B.weight": [151936, 8]},
        {"base_model.model.model.embed_tokens.lora_embedding_A": [8, 151936]},
        {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta": [3, 896]},
    ],
)
def test_embeddings_of_the_bases_size_and_low_rank_parts_pass(shapes):
    adapter_checks.check_shapes(shapes, TIED, "base")


def test_an_adapter_with_added_tokens_is_refused_from_its_header_alone(tmp_path):
    settings = Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path)
    base, adapter = catalog.ensure_tiny(settings), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(lora(base_model_name_or_path=str(base))))
    entry = {"dtype": "F32", "shape": [642, 128], "data_offsets": [0, 642 * 512]}
    header = json.dumps({"base_model.model.model.embed_tokens.weight": entry}).encode()
    with (adapter / "adapter_model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        out.truncate(8 + len(header) + 642 * 512)
    with pytest.raises(BashGymError, match=r"embed_tokens.* 642 rows.* 640"):
        catalog.resolve(str(adapter), settings)


def test_a_trained_head_on_tied_embeddings_is_a_warning_before_the_start():
    for config in (lora(modules_to_save=["lm_head"]), lora(target_modules=["q_proj", "model.embed_tokens"])):
        finding = found(config)["tied_embeddings"]
        assert finding.severity == Severity.WARNING and "tie_word_embeddings" in finding.message
        assert "lm_head" in finding.message
    assert "tied_embeddings" not in found(lora(modules_to_save=["lm_head"]), {**TIED, "tie_word_embeddings": False})
    assert "tied_embeddings" not in found(lora())


@pytest.mark.parametrize(("targets", "warned"), [(["q_proj", "lm_head"], True), (["q_proj"], False), (None, False)])
def test_a_request_that_would_train_the_head_of_a_tied_base_is_warned(tmp_path, targets, warned):
    request = {**REQUEST, "lora_target_modules": targets}
    codes = [f.code for f in adapter_checks.start_findings(request, tmp_path, None, TIED)]
    assert ("tied_embeddings" in codes) == warned
    assert not adapter_checks.start_findings({**request, "use_lora": False}, tmp_path, None, TIED)


@pytest.mark.parametrize("kind", ["PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING"])
def test_prompts_and_prefixes_block_a_merge_and_nothing_else(kind):
    finding = found(lora(peft_type=kind))["adapter_not_mergeable"]
    assert finding.severity == Severity.ERROR and kind in finding.message
    assert "adapter_not_mergeable" not in found(lora(peft_type=kind), merges=False)


@pytest.mark.parametrize("kind", ["LORA", "IA3", "LOKR", "LOHA"])
def test_kinds_that_become_weights_can_be_merged(kind):
    assert "adapter_not_mergeable" not in found(lora(peft_type=kind))


@pytest.mark.parametrize("base", ["unsloth/qwen2.5-7b-instruct-unsloth-bnb-4bit", "org/model-AWQ", "org/model-GPTQ"])
def test_a_quantised_base_is_named(base):
    assert base in found(lora(base_model_name_or_path=base))["base_quantised"].message


def test_merging_into_quantised_weights_blocks(tmp_path):
    quantised = {"quantization_config": {"quant_method": "bitsandbytes"}}
    (finding,) = adapter_checks.start_findings(REQUEST, tmp_path, None, quantised)
    assert finding.code == "base_quantised" and finding.severity == Severity.ERROR
    assert not adapter_checks.start_findings(
        {**REQUEST, "artifact_retention": "adapter_only"}, tmp_path, None, quantised
    )


def test_a_task_that_is_not_language_modelling_and_few_layers_are_named():
    assert "SEQ_2_SEQ_LM" in found(lora(task_type="SEQ_2_SEQ_LM"))["adapter_odd"].message
    paths = [f"model.layers.31.self_attn.{name}_proj" for name in "qkv"]
    assert "1 of 32" in found(lora(target_modules=paths), {"num_hidden_layers": 32})["adapter_odd"].message


@pytest.mark.parametrize("named", [None, "", "  ", 3])
def test_an_adapter_without_a_base_is_not_looked_up_under_the_name_none(tmp_path, named):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": named}))
    with pytest.raises(BashGymError, match=r"base model of the adapter .* unknown"):
        adapter_checks.base_of(tmp_path)


def test_starting_from_a_checkpoint_says_that_its_optimizer_does_not_come_along(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"global_step": 200}')
    (finding,) = adapter_checks.start_findings(REQUEST, tmp_path, None, {})
    assert finding.severity == Severity.WARNING and "optimizer state is not there" in finding.message
    assert "step 200" in finding.message
    (tmp_path / "optimizer.pt").write_bytes(b"x")
    assert "left behind" in adapter_checks.start_findings(REQUEST, tmp_path, None, {})[0].message


@pytest.mark.parametrize(
    "config", [{}, {"peft_type": None}, {"target_modules": 7}, {"modules_to_save": "lm_head"}, {"r": []}]
)
def test_any_config_gives_findings_and_never_an_exception(config):
    for base in ({}, TIED):
        adapter_checks.config_findings(config, base, merges=False)
