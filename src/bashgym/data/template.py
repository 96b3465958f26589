"""Chat templates: compiled once, rendered in Jinja's immutable sandbox to the text that Transformers renders.

Covers: no attribute of a Python object that the sandbox calls unsafe, no write to the values given, no underscore
names in a namespace; the values are plain JSON. Does not cover: a template that loops for long or renders much.
`{% generation %}` blocks come back as character spans of the rendered text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from bashgym.core.errors import fail

Span = tuple[int, int]
"""Characters [start, end) of a rendered text."""

# Content cannot forge the marks: they are drawn anew in every process, and no text survives with one inside.
_NONCE = secrets.token_hex(8)
_OPEN, _CLOSE = f"\ufdd0{_NONCE}\ufdd1", f"\ufdd2{_NONCE}\ufdd3"
_MARKER = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_REASONING = ("reasoning_content", "thinking", "reasoning")
_DICT_ATTRIBUTES = frozenset(dir(dict))


def has_markers(source: str) -> bool:
    """Whether the template encloses what the assistant writes in `{% generation %}`."""
    return _MARKER.search(source) is not None


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: its body in a scope of its own, between two marks."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own interface)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The body as it is, with a mark before and after."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def mark(text: str) -> nodes.Node:
            return nodes.Output([nodes.TemplateData(text)], lineno=line)

        return [mark(_OPEN), nodes.Scope(body, lineno=line), mark(_CLOSE)]


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way for `message.role` on a plain dict (an AttributeError each, otherwise)."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the parent; a dict's key where the dict has no such method."""
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


class _SafeNamespace(Namespace):
    """`namespace()` without names that reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template may not use the namespace name {name!r}")


class _Dict:
    """What a template may do with the name `dict`."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """`dict.fromkeys`."""
        return dict.fromkeys(*args)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_SafeNamespace
    )
    return environment


class ChatTemplate:
    """One compiled template. Get it from `compile_template`, which caches."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.has_markers = has_markers(source)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise fail(
                "template_failed", f"the chat template does not compile: {error}", fields=["chat_template"]
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        special: Mapping[str, str],
        add_generation_prompt: bool = False,
    ) -> tuple[str, list[Span]]:
        """The text, and what its generation blocks enclose. `template_failed` with what the template said."""
        values = {
            **_environment().globals,
            **special,
            "messages": [_shown(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            # Template.render, less its slow merging of the globals; a third of the time of a short conversation.
            text = "".join(self._template.root_render_func(self._template.new_context(values, shared=True)))
        except Exception as error:  # boundary: the template is the model's code, and may raise anything
            raise fail("template_failed", f"the chat template refuses: {type(error).__name__}: {error}") from error
        return _split_marks(text) if self.has_markers else (text, [])


def _shown(message: Mapping[str, Any]) -> dict[str, Any]:
    """What a template sees of a message: no null values, and the reasoning under each of its names."""
    shown = {key: value for key, value in message.items() if value is not None}
    for name in _REASONING:
        if name in shown:
            return {"thinking": shown[name], **shown, "reasoning_content": shown[name]}
    return shown


def _split_marks(marked: str) -> tuple[str, list[Span]]:
    pieces = marked.split(_OPEN)
    text, spans, at = [pieces[0]], [], len(pieces[0])
    for piece in pieces[1:]:
        body, _, rest = piece.partition(_CLOSE)
        spans.append((at, at + len(body)))
        text += (body, rest)
        at += len(body) + len(rest)
    return "".join(text), spans


@lru_cache(maxsize=16)
def compile_template(source: str) -> ChatTemplate:
    """The compiled template. `template_failed` if it is not one."""
    return ChatTemplate(source)
