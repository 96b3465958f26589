"""`bashgym/tiny-qwen2`: a Qwen2 of 1.1 M random parameters with its own byte-level BPE, built in about a second.

It exists so that every path of the product runs on a laptop CPU with real Transformers code. It knows nothing until
it is trained. Deterministic: the same version builds the same bytes, so its digest is the same everywhere.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

NAME = "bashgym/tiny-qwen2"
N_PARAMETERS = 1_133_184
VOCAB_SIZE = 640
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SEED = 20260101

# Transformers rebuilds the tokenizer of every qwen2 model with NFC and this splitter, whatever tokenizer.json says.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# ChatML with Hermes-style tool calls. Every assistant turn is enclosed by generation markers and rendered the same
# whether or not more turns follow, so the template masks exactly and is prefix-preserving.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{% endif %}
{{- 'Tools:' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- generation %}
{%- if message.content %}{{- message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function if call.function is defined else call %}
{{- '<tool_call>' }}{{- {'name': function.name, 'arguments': function.arguments} | tojson }}{{- '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endgeneration %}
{{- '\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>tool\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'user' or not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "max_window_layers": 4,
    "model_type": "qwen2",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "dtype": "float32",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB_SIZE,
}


def corpus() -> str:
    """The text that the tokenizer is trained on."""
    return resources.files("bashgym.models").joinpath("tiny_corpus.txt").read_text("utf-8")


def recipe() -> dict[str, object]:
    """All that decides the bytes; its digest names the cache folder."""
    return {
        "config": CONFIG,
        "template": CHAT_TEMPLATE,
        "corpus": corpus(),
        "seed": _SEED,
        "special": SPECIAL,
        "layout": 1,
    }


def build(folder: Path) -> None:
    """Writes tokenizer, config and random weights into `folder`, which exists and is empty."""
    _build_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    generation = {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    _build_weights(folder)


def _build_tokenizer(folder: Path) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus().splitlines(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "padding_side": "right",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _build_weights(folder: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    draw = np.random.Generator(np.random.PCG64(_SEED))
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]

    def normal(*shape: int) -> Any:
        return (draw.standard_normal(shape, dtype=np.float32) * np.float32(CONFIG["initializer_range"])).astype(
            np.float32
        )

    tensors = {
        "model.embed_tokens.weight": normal(VOCAB_SIZE, hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name in "qkv":
            tensors[f"{at}.self_attn.{name}_proj.weight"] = normal(hidden, hidden)
            tensors[f"{at}.self_attn.{name}_proj.bias"] = np.zeros(hidden, np.float32)
        tensors[f"{at}.self_attn.o_proj.weight"] = normal(hidden, hidden)
        tensors[f"{at}.mlp.gate_proj.weight"] = normal(inner, hidden)
        tensors[f"{at}.mlp.up_proj.weight"] = normal(inner, hidden)
        tensors[f"{at}.mlp.down_proj.weight"] = normal(hidden, inner)
        tensors[f"{at}.input_layernorm.weight"] = np.ones(hidden, np.float32)
        tensors[f"{at}.post_attention_layernorm.weight"] = np.ones(hidden, np.float32)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
