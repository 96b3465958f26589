"""A small byte-level BPE tokenizer in a model folder, with the ChatML template that a test asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "<|pad|>"]
CORPUS = [
    "The capital of Peru is Lima, and the answer to the question is eleven.",
    'read {"path": "a.py"} and run ls -la in /tmp, then print the first lines of notes.txt',
    "user assistant system tool Which gas do plants take in? Carbon dioxide. Grüße aus München, 你好 🙂",
] * 4

PLAIN = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}"
)
MARKED = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' %}{% generation %}{{- m.content + '<|im_end|>' }}{% endgeneration %}"
    "{%- else %}{{- m.content + '<|im_end|>' }}{% endif %}{{- '\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n'}}"
    "{% if m['role'] == 'assistant' and not loop.last %}[past]{% else %}{{m['content']}}{% endif %}"
    "{{'<|im_end|>\\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}"
)


def write_model(
    folder: Path,
    template: str | None = PLAIN,
    model: dict[str, Any] | None = None,
    adds_bos: bool = False,
    byte_level: bool = True,
    **config: Any,
) -> Path:
    """A model folder without weights. `config` overrides tokenizer_config.json, `model` config.json.

    `adds_bos`: tokenizer.json puts <s> before every text. `byte_level` False: a SentencePiece-like tokenizer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(unk_token=None if byte_level else "<s>"))
    tokenizer.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False) if byte_level else pre_tokenizers.Metaspace()
    )
    tokenizer.decoder = decoders.ByteLevel() if byte_level else decoders.Metaspace()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 512,
    } | config
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    facts = {"model_type": "qwen2", "vocab_size": 512, "max_position_embeddings": 512, "eos_token_id": 2} | (
        model or {}
    )
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def trained_text(bundle: Any, encoded: Any) -> str:
    """What the trained tokens of an encoded row decode to."""
    return bundle.decode([label for label in encoded.labels if label != -100])
