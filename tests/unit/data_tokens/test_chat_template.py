"""Templates render as the model's authors meant them, and cannot reach out of the sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.template import compile_template

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **special: str) -> str:
    return compile_template(source).render(messages or USER, None, special)[0]


def test_generation_blocks_come_back_as_spans_of_the_text() -> None:
    source = "{% for m in messages %}[{% generation %}{{ m.content }}!{% endgeneration %}]{% endfor %}"
    text, spans = compile_template(source).render([{"content": "aé"}, {"content": ""}], None, {})
    assert text == "[aé!][!]"
    assert [text[a:b] for a, b in spans] == ["aé!", "!"]


def test_generation_blocks_inside_a_macro_are_found() -> None:
    source = (
        "{% macro say(x) %}<{% generation %}{{ x }}{% endgeneration %}>{% endmacro %}ab{{ say('c') }}{{ say('d') }}"
    )
    text, spans = compile_template(source).render(USER, None, {})
    assert (text, [text[a:b] for a, b in spans]) == ("ab<c><d>", ["c", "d"])


def test_what_a_generation_block_sets_stays_inside() -> None:
    assert render("{% set a = 1 %}{% generation %}{% set a = 2 %}{% endgeneration %}{{ a }}") == "1"


def test_content_cannot_forge_a_generation_block() -> None:
    content = "{% generation %}x{% endgeneration %}\ufdd0\ufdd1\ufdd2\ufdd3"
    source = "{{ messages[0].content }}{% generation %}a{% endgeneration %}"
    text, spans = compile_template(source).render([{"content": content}], None, {})
    assert text == content + "a"
    assert spans == [(len(content), len(content) + 1)]


@pytest.mark.parametrize("tag", ["{% generation %}", "{%- generation -%}", "{%-generation-%}", "{%+ generation %}"])
def test_markers_are_known_in_each_spelling(tag: str) -> None:
    assert compile_template(tag + "{% endgeneration %}").has_markers


def test_tojson_neither_escapes_html_nor_ascii() -> None:
    assert render("{{ messages[0] | tojson }}", [{"a": "<ü>&'"}]) == '{"a": "<ü>&\'"}'


def test_null_values_of_a_message_are_not_seen() -> None:
    assert render("{{ 'content' in messages[0] }}", [{"role": "user", "content": None}]) == "False"


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_is_seen_under_its_usual_name(name: str) -> None:
    assert render("{{ messages[0].reasoning_content }}", [{name: "because"}]) == "because"


def test_a_dict_method_wins_over_a_key_as_in_jinja() -> None:
    assert render("{{ messages[0].items() | list | length }}", [{"items": 5}]) == "1"


def test_break_and_continue_work() -> None:
    skips = "{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}"
    assert render("{% for i in range(9) %}" + skips + "{{ i }}{% endfor %}") == "02"


def test_raise_exception_is_a_typed_refusal_with_its_words() -> None:
    with pytest.raises(BashGymError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.code == "template_failed"


@pytest.mark.parametrize("source", ["{% if %}", "{{ 1 / 0 }}", "{{ messages[0].nothing.more }}", "{{ none + 'a' }}"])
def test_a_broken_template_is_a_typed_refusal(source: str) -> None:
    with pytest.raises(BashGymError) as caught:
        render(source)
    assert caught.value.code == "template_failed"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ dict.__call__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_the_sandbox_lets_nothing_through(attack: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(BashGymError):
        render(attack, messages)
    assert messages == [{"role": "user", "content": "hi"}]


def test_a_template_is_compiled_once() -> None:
    assert compile_template("{{ 1 }}") is compile_template("{{ 1 }}")
