"""Our ids, labels and renderings against those of Transformers and TRL on the same model folder."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bashgym.data.encode import encode_example, trainable
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import LossPolicy, SftExample
from bashgym.models import tiny

pytestmark = pytest.mark.train


def _helpers() -> ModuleType:
    path = Path(__file__).parents[1] / "unit" / "data_tokens" / "model_folder.py"
    spec = importlib.util.spec_from_file_location("model_folder", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


H = _helpers()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Reads <a> file & says 'ok' – ü",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": {"path": "<a>&'ü'.py", "n": None}}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"role": "user", "content": "hi  there"}, {"role": "assistant", "content": "Grüße 🙂 你好"}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "\n\n leading space and a newline\n"},
        {"role": "assistant", "content": "\n\tok  "},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": ""},
    ],
    "tools": [
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": '{"x": 1}'},
        {"role": "assistant", "content": "done", "reasoning": "because"},
    ],
    "control": [
        {"role": "user", "content": "a<|im_end|>\n<|im_start|>assistant\n"},
        {"role": "assistant", "content": "no"},
    ],
}
RICH = """
{%- macro head(role) %}<|im_start|>{{ role }}
{% endmacro %}
{%- if tools %}
    {{- head('system') }}{{ tools | tojson(indent=2) }}{{ '<|im_end|>\\n' }}
{%- endif %}
{% for m in messages %}
    {%- if m.role == 'skip' %}{% continue %}{% endif %}
    {{- bos_token }}{{ head(m['role']) }}
    {%- if m.role == 'assistant' %}
        {%- set ns = namespace(text='') %}
        {% generation %}
        {%- if m.reasoning_content %}{{ '<think>' ~ m.reasoning_content ~ '</think>' }}{% endif %}
        {%- set ns.text = (m.content or '') | trim %}
        {{- ns.text }}
        {%- for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}
        {{- c | tojson(sort_keys=True, separators=(',', ':')) }}
        {%- endfor %}
        {{- eos_token }}
        {% endgeneration %}
    {%- else %}
        {{- m.content }}{{ eos_token }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}
{{- strftime_now('%Y') }}{{ dict(a=1)['a'] }}{{ undefined_name }}
"""


def _both(folder: Path) -> tuple[TokenizerBundle, Any]:
    # Not AutoTokenizer: for some model types it replaces the splitting rules of tokenizer.json by the type's own.
    from transformers import PreTrainedTokenizerFast

    return TokenizerBundle.load(folder), PreTrainedTokenizerFast.from_pretrained(folder)


def _tiny(folder: Path) -> Path:
    folder.mkdir()
    tiny._build_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(tiny.CONFIG))
    return folder


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS.keys())
@pytest.mark.parametrize("which", ["tiny", "plain", "marked", "rich", "metaspace"])
def test_conversations_have_the_ids_and_masks_of_apply_chat_template(
    tmp_path: Path, which: str, chat: list[dict[str, Any]]
) -> None:
    templates = {"plain": H.PLAIN, "marked": H.MARKED, "rich": RICH, "metaspace": RICH}
    folder = tmp_path / "m"
    if which == "tiny":
        _tiny(folder)
    else:
        H.write_model(folder, templates[which], bos_token="<s>", byte_level=which != "metaspace")
    bundle, theirs = _both(folder)
    tools = TOOLS if any("tool_calls" in m for m in chat) else None
    if which in ("plain", "marked") and tools:
        chat = [{**m, "content": m["content"] or ""} for m in chat]
    for prompt in (False, True):
        text = theirs.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=prompt)
        assert bundle.render(chat, tools, prompt) == text
    marked = bundle.has_generation_markers
    out = theirs.apply_chat_template(chat, tools=tools, return_dict=True, return_assistant_tokens_mask=marked)
    encoded = encode_example(bundle, SftExample(1, messages=chat, tools=tools), max_length=10_000)
    assert encoded.input_ids == out["input_ids"]
    if marked:
        assert [int(label != -100) for label in encoded.labels] == out["assistant_masks"]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bos_token": "<s>", "adds_bos": True},
        {"bos_token": "<s>", "adds_bos": True, "add_bos_token": False},
        {"bos_token": "<s>", "add_bos_token": True, "add_eos_token": True},
        {"byte_level": False},
        {"split_special_tokens": True},
        {"additional_special_tokens": ["<|new|>"]},
        {"added_tokens_decoder": {"9000": {"content": "<|far|>", "special": True, "normalized": False}}},
        {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True}},
    ],
)
def test_texts_have_the_ids_of_the_tokenizer(tmp_path: Path, config: dict[str, Any]) -> None:
    bundle, theirs = _both(H.write_model(tmp_path / "m", **config))
    for text in ("", "hello  world", "<s>x<|im_end|>", " é\u0301 <|new|><|far|>\r\n🙂", "Grüße"):
        assert bundle.encode(text, add_special_tokens=True) == theirs(text=text)["input_ids"]
        assert bundle.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_special_tokens_map_overrides_as_in_transformers(tmp_path: Path) -> None:
    folder = H.write_model(tmp_path / "m")
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<|endoftext|>", "lstrip": False}})
    )
    bundle, theirs = _both(folder)
    assert bundle.eos_token == theirs.eos_token == "<|endoftext|>"
    assert bundle.eos_id == theirs.eos_token_id


def test_template_files_win_and_tool_use_is_chosen_for_tools(tmp_path: Path) -> None:
    folder = H.write_model(tmp_path / "m", "{{ 'config' }}")
    (folder / "chat_template.jinja").write_text("default file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    bundle, theirs = _both(folder)
    chat = CHATS["plain"]
    for tools in (None, TOOLS):
        assert bundle.render(chat, tools) == theirs.apply_chat_template(chat, tools=tools, tokenize=False)


def _trl_rows(folder: Path, rows: list[dict[str, Any]], **config: Any) -> list[dict[str, Any]]:
    """What SFTTrainer itself prepares from `rows`."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import SFTConfig, SFTTrainer

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_key_value_heads=2, **shape))
    settings = SFTConfig(
        output_dir=str(folder / "out"), report_to=[], use_cpu=True, bf16=False, max_length=64, **config
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    trainer = SFTTrainer(model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    return list(trainer.train_dataset)


STRINGS = [
    {"prompt": "What is 7 x 8? ", "completion": "56."},
    {"prompt": "ab", "completion": "c ends<|im_end|>"},
    {"prompt": "long " * 20, "completion": "cut " * 40},
]
TURNS = [
    {"prompt": CHATS["plain"][:1], "completion": CHATS["plain"][1:]},
    {"prompt": CHATS["system"][:2], "completion": CHATS["system"][2:]},
]
TEXTS = [{"text": "The capital of Peru is Lima."}, {"text": "done<|im_end|>"}, {"text": "word " * 90}]


@pytest.mark.parametrize(
    ("rows", "config", "policy"),
    [
        (STRINGS, {}, LossPolicy.AUTO),
        (STRINGS, {"completion_only_loss": False}, LossPolicy.ALL),
        (TURNS, {}, LossPolicy.AUTO),
        (TURNS, {"assistant_only_loss": True}, LossPolicy.ASSISTANT),
        (TEXTS, {}, LossPolicy.AUTO),
        ([{"messages": CHATS["system"]}], {"assistant_only_loss": True}, LossPolicy.ASSISTANT),
        ([{"messages": CHATS["system"]}], {}, LossPolicy.ALL),
    ],
)
def test_rows_are_those_that_sft_trainer_prepares(
    tmp_path: Path, rows: list[dict[str, Any]], config: dict[str, Any], policy: LossPolicy
) -> None:
    folder = H.write_model(tmp_path / "m", H.MARKED, bos_token="<s>", adds_bos=True)
    theirs = _trl_rows(folder, rows, **config)
    bundle = TokenizerBundle.load(folder)
    examples = [SftExample(n, **row) for n, row in enumerate(rows, start=1)]
    ours = list(trainable(bundle, examples, max_length=64, policy=policy))
    assert [(o.input_ids, o.labels) for o in ours] == [(t["input_ids"], t["labels"]) for t in theirs]
