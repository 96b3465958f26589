"""A model folder's tokenizer without Transformers: the same ids, the same special tokens, the same chat template.

Owns: which files count, in which order they override each other, which tokens begin and end a text.
Does not own: masks and truncation (encode), the sandbox that templates run in (template).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.errors import fail
from bashgym.data.template import ChatTemplate, Span, compile_template

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LFS = b"version https://git-lfs.github.com/spec/"
_NO_LIMIT = 10**15
"""Tokenizers without a limit say 1e30."""


@dataclass
class TokenizerBundle:
    """What tokenisation, masks and their checks need to know of a model. Get one from `load`."""

    folder: Path
    tokenizer: Tokenizer
    special: dict[str, str]
    """Named special tokens as the configuration has them (`eos_token` ...), whether or not the vocabulary does."""
    templates: dict[str, str]
    """Chat templates by name; the usual one is `default`."""
    stop_ids: frozenset[int]
    """Ids that end a generation: the tokenizer's eos and those of generation_config.json and config.json."""
    model_max_length: int | None
    """The tokenizer's own limit in tokens."""
    max_positions: int | None
    """`max_position_embeddings` of the model."""
    model_vocab_size: int | None
    """Rows of the model's embedding."""
    claims_bos: bool
    """`add_bos_token` of the configuration. Transformers 5 ignores it beside a tokenizer.json; other tools obey it."""

    @classmethod
    def load(cls, model_dir: Path) -> TokenizerBundle:
        """Reads the folder. `model_incomplete` where a file is missing, an LFS pointer or not what it should be."""
        config = _read(model_dir, "tokenizer_config.json")
        model = _read(model_dir, "config.json")
        text = model.get("text_config") if isinstance(model.get("text_config"), dict) else {}
        generation = _read(model_dir, "generation_config.json")
        special, extra = _special_tokens(model_dir, config)
        tokenizer = _tokenizer(model_dir, config, special, extra)
        eos = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
        stops = {eos, *_ids(generation.get("eos_token_id")), *_ids(model.get("eos_token_id"))} - {None}
        limit = config.get("model_max_length")
        return cls(
            folder=model_dir,
            tokenizer=tokenizer,
            special=special,
            templates=_templates(model_dir, config),
            stop_ids=frozenset(stop for stop in stops if stop is not None),
            model_max_length=int(limit) if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT else None,
            max_positions=_count({**model, **(text or {})}, "max_position_embeddings"),
            model_vocab_size=_count({**model, **(text or {})}, "vocab_size"),
            claims_bos=config.get("add_bos_token") is True,
        )

    def token_id(self, name: str) -> int | None:
        """The id of a named special token; None if it has none in the vocabulary."""
        return self.tokenizer.token_to_id(self.special[name]) if name in self.special else None

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text."""
        return self.special.get("eos_token")

    @cached_property
    def eos_id(self) -> int | None:
        """None if there is no eos token, or the vocabulary lacks it."""
        return self.token_id("eos_token")

    @property
    def pad_token(self) -> str | None:
        """The token that fills a batch."""
        return self.special.get("pad_token")

    @cached_property
    def pad_id(self) -> int | None:
        """None if there is no pad token, or the vocabulary lacks it."""
        return self.token_id("pad_token")

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text."""
        return self.special.get("bos_token")

    @cached_property
    def bos_id(self) -> int | None:
        """None if there is no bos token, or the vocabulary lacks it."""
        return self.token_id("bos_token")

    @cached_property
    def add_bos(self) -> bool:
        """Whether encoding with special tokens really begins with the bos; measured, not read."""
        return self.bos_id is not None and self.encode("a", add_special_tokens=True)[:1] == [self.bos_id]

    @property
    def chat_template(self) -> str | None:
        """The default template's source."""
        return self.templates.get("default")

    @cached_property
    def has_generation_markers(self) -> bool:
        """Whether the default template encloses what the assistant writes in `{% generation %}`."""
        return self.chat_template is not None and compile_template(self.chat_template).has_markers

    @cached_property
    def control_tokens(self) -> frozenset[str]:
        """Special tokens of the vocabulary: in a text they become control ids, whoever wrote them."""
        return frozenset(t.content for t in self.tokenizer.get_added_tokens_decoder().values() if t.special)

    @cached_property
    def byte_lengths(self) -> list[int]:
        """Bytes of text by id, for a plain byte-level tokenizer; empty for any other. Spares computing offsets."""
        added = self.tokenizer.get_added_tokens_decoder()
        parts = (self.tokenizer.normalizer, self.tokenizer.pre_tokenizer, self.tokenizer.post_processor)
        normalizer, splitter, finisher = (str(part) if part is not None else "" for part in parts)
        plain = (
            type(self.tokenizer.decoder).__name__ == "ByteLevel"
            and normalizer in ("", "NFC()")
            and "ByteLevel(" in splitter
            and "add_prefix_space=True" not in splitter
            and "trim_offsets=True" not in finisher
            and not any(token.lstrip or token.rstrip for token in added.values())
        )
        if not plain:
            return []
        names = {at: len(token.content.encode()) for at, token in added.items()}
        vocab = self.tokenizer.get_vocab(with_added_tokens=True)
        lengths = [0] * (max(vocab.values(), default=-1) + 1)
        for token, at in vocab.items():
            # Byte-level tokens spell every byte with one character.
            lengths[at] = names.get(at, len(token))
        return lengths

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def window(self) -> int | None:
        """The most tokens that the model can see, by the smaller of its two statements."""
        return min((n for n in (self.model_max_length, self.max_positions) if n), default=None)

    def template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatTemplate:
        """The template for a conversation with these tools. `template_failed` if there is none."""
        source = self.templates.get("tool_use") if tools is not None else None
        source = source or self.chat_template
        if source is None:
            raise fail("template_failed", f"{self.folder} has no chat template", fields=["chat_template"])
        return compile_template(source)

    def render_spans(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> tuple[str, list[Span]]:
        """The rendered conversation and the character spans of its generation blocks. `template_failed`."""
        return self.template_for(tools).render(messages, tools, self.special, add_generation_prompt)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """The rendered conversation. `template_failed` with what the template said."""
        return self.render_spans(messages, tools, add_generation_prompt)[0]

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids, neither truncated nor padded. TypeError on a lone surrogate."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[Encoding]:
        """Encodings with ids and character offsets, on all cores. TypeError if any text has a lone surrogate."""
        return self.tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    data = path.read_bytes()
    if data.startswith(_LFS):
        raise fail(
            "model_incomplete",
            f"{path} is a Git LFS pointer, not the file itself",
            hint="Run `git lfs pull` in the model folder, or download the model again.",
            fields=["base_model"],
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise fail("model_incomplete", f"{path} is not UTF-8 text: {error}", fields=["base_model"]) from error


def _read(folder: Path, name: str) -> dict[str, Any]:
    text = _text(folder / name)
    try:
        value = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError) as error:
        raise fail("model_incomplete", f"{folder / name} is not JSON: {error}", fields=["base_model"]) from error
    if not isinstance(value, dict):
        raise fail("model_incomplete", f"{folder / name} is not a JSON object", fields=["base_model"])
    return value


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]


def _count(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Named tokens and further ones. special_tokens_map.json counts only for folders without `added_tokens_decoder`."""
    merged = dict(config)
    if "added_tokens_decoder" not in config:
        merged.update(_read(folder, "special_tokens_map.json"))
    named = {name: token for name in _NAMED if (token := _token(merged.get(name)))}
    listed = merged.get("extra_special_tokens") or merged.get("additional_special_tokens") or []
    values = listed.values() if isinstance(listed, dict) else listed
    return named, [token for value in values if (token := _token(value))]


def _token(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _tokenizer(folder: Path, config: Mapping[str, Any], special: Mapping[str, str], extra: Sequence[str]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer

    text = _text(folder / "tokenizer.json")
    if text is None:
        raise fail(
            "model_incomplete",
            f"{folder} has no tokenizer.json",
            hint="Save the tokenizer in its fast form: `AutoTokenizer.from_pretrained(...).save_pretrained(folder)`.",
            fields=["base_model"],
        )
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # boundary: the library raises a bare Exception on a file that is no tokenizer
        raise fail("model_incomplete", f"{folder / 'tokenizer.json'}: {error}", fields=["base_model"]) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
    decoder = config.get("added_tokens_decoder")
    for _, token in sorted((decoder if isinstance(decoder, dict) else {}).items(), key=lambda item: int(item[0])):
        if isinstance(token, dict) and tokenizer.token_to_id(_token(token)) is None:
            flags = {key: bool(token[key]) for key in ("lstrip", "rstrip", "normalized", "single_word") if key in token}
            tokenizer.add_tokens([AddedToken(_token(token), special=bool(token.get("special")), **flags)])
    # A named token that the vocabulary lacks is a fault for preflight to report; giving it a new id would hide it.
    known = [token for token in special.values() if tokenizer.token_to_id(token) is not None]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in [*known, *extra]])
    return tokenizer


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files win over the configuration: chat_template.jinja, then additional_chat_templates/*.jinja."""
    found = {}
    if (default := _text(folder / "chat_template.jinja")) is not None:
        found["default"] = default
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _text(path) or ""
    listed = config.get("chat_template")
    if found or not listed:
        return found
    if isinstance(listed, str):
        return {"default": listed}
    entries = listed if isinstance(listed, list) else []
    return {
        str(e["name"]): str(e["template"]) for e in entries if isinstance(e, dict) and {"name", "template"} <= e.keys()
    }
