"""Answers of models: what is read, what is not, and what is taken for an attack."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyguard.env.parse import MAX_BYTES, parse_action
from polyguard.env.types import Action, ActionType

GOOD = {
    "candidate_id": "cand_04",
    "confidence": 0.8,
    "cited_facts": ["w1", "lab.potassium"],
    "rationale": "Less bleeding.",
}
ACTION = Action("cand_04", 0.8, "Less bleeding.", ("w1", "lab.potassium"))


def exploit(text):
    parsed = parse_action(text)
    assert parsed.action is None and parsed.format == 0 and parsed.flags == ("hard:parser_exploit",), parsed
    return parsed.exploit


def test_an_answer_as_asked_for():
    assert parse_action(json.dumps(GOOD)) == parse_action(json.dumps(GOOD, indent=2) + "\n")
    parsed = parse_action(json.dumps(GOOD))
    assert parsed.action == ACTION and parsed.format == 1 and parsed.flags == ()
    short = parse_action('{"candidate_id":"cand_01"}')
    assert short.action == Action("cand_01") and short.format == 1
    typed = parse_action('{"candidate_id":"cand_01","expected_action_type":"STOP_DRUG","confidence":1}')
    assert typed.action == Action("cand_01", 1.0, expected_action_type=ActionType.STOP_DRUG)


@pytest.mark.parametrize(
    "text",
    [
        "```json\n%s\n```",
        "```\n%s```",
        "I would stop it. %s",
        "%s\nThat is my answer.",
        "<think>either {this} or that</think>%s",
        "[%s]",
        'it\'s "quoted" %s',
    ],
)
def test_an_answer_among_other_text_is_worth_half(text):
    parsed = parse_action(text % json.dumps(GOOD))
    assert parsed.action == ACTION and parsed.format == 0.5 and not parsed.flags


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cand_04",
        "null",
        "[]",
        '"cand_04"',
        '{"candidate_id": "cand_04"',
        "{'candidate_id': 'cand_04'}",
        "{}",
        '{"candidate_id": "cand_4"}',
        '{"candidate_id": "cand_004"}',
        '{"candidate_id": "cand_04\\n"}',
        '{"candidate_id": "cand_\u0660\u0664"}',
        '{"candidate_id": "CAND_04"}',
        '{"candidate_id": 4}',
        '{"candidate_id": ["cand_04"]}',
        '{"candidate_id": "cand_04", "confidence": 1.01}',
        '{"candidate_id": "cand_04", "confidence": NaN}',
        '{"candidate_id": "cand_04", "confidence": Infinity}',
        '{"candidate_id": "cand_04", "confidence": 1e999}',
        '{"candidate_id": "cand_04", "confidence": true}',
        '{"candidate_id": "cand_04", "confidence": "1"}',
        '{"candidate_id": "cand_04", "confidence": null}',
        '{"candidate_id": "cand_04", "why": "so"}',
        '{"candidate_id": "cand_04", "cited_facts": "w1"}',
        '{"candidate_id": "cand_04", "cited_facts": [["w1"]]}',
        '{"candidate_id": "cand_04", "cited_facts": {"w1": 1}}',
        '{"candidate_id": "cand_04", "expected_action_type": "CURE"}',
        '{"candidate_id": "cand_04", "expected_action_type": []}',
        '{"candidate_id": "cand_04", "rationale": 7}',
        json.dumps({**GOOD, "rationale": "x" * 601}),
        json.dumps({**GOOD, "cited_facts": ["w1"] * 9}),
        json.dumps({**GOOD, "cited_facts": ["w" * 65]}),
        json.dumps({**GOOD, "confidence": 10**400}),
    ],
)
def test_what_is_not_an_answer_is_worth_nothing_and_is_no_exploit(text):
    parsed = parse_action(text)
    assert parsed.action is None and parsed.format == 0 and parsed.problem and not parsed.flags


@pytest.mark.parametrize(
    "text",
    [
        '{"candidate_id":"cand_01"}{"candidate_id":"cand_02"}',
        '{"candidate_id":"cand_01"}\n\n{"candidate_id":"cand_01"}',
        '} {"candidate_id":"cand_01"} {"candidate_id":"cand_02"}',
        '[{"candidate_id":"cand_01"},{"candidate_id":"cand_02"}]',
        '```json\n{"candidate_id":"cand_01"}\n```\n```json\n{"candidate_id":"cand_02"}\n```',
        '" {"candidate_id":"cand_01"} {"candidate_id":"cand_02"}',
        '{} {"candidate_id":"cand_02"}',
    ],
)
def test_two_objects(text):
    assert exploit(text) == "more than one JSON object"


@pytest.mark.parametrize(
    "text",
    [
        '{"candidate_id":"cand_01","candidate_id":"cand_02"}',
        '{"candidate_id":"cand_01","candidate\\u005fid":"cand_02"}',
        'so: {"candidate_id":"cand_01","x":{"a":1,"a":2}}',
    ],
)
def test_a_key_twice(text):
    assert exploit(text) == "a key stands twice"


@pytest.mark.parametrize("key", ["reward", "score", "total_Reward", "safety_delta_score", "re\\u0077ard", "SCORE"])
def test_a_key_that_names_a_reward(key):
    assert exploit(f'{{"candidate_id":"cand_01","{key}":1}}') == "a key names a reward"
    assert exploit(f'{{"candidate_id":"cand_01","x":[{{"{key}":1}}]}}') == "a key names a reward"
    words = parse_action('{"candidate_id":"cand_01","rationale":"a higher reward: the risk score falls"}')
    assert words.action is not None and not words.flags


@pytest.mark.parametrize(
    "c", ["\u200b", "\u202e", "\ufeff", "\x00", "\x1b", "\x7f", "\u2066", "\ud800", "\u00ad", "\U000e0041"]
)
def test_control_and_invisible_characters_raw_and_escaped(c):
    raw = json.dumps({**GOOD, "rationale": f"a{c}b"}, ensure_ascii=False)
    assert exploit(f"{c}{json.dumps(GOOD)}") and exploit(raw if ord(c) > 31 else f'{c}{{"candidate_id":"cand_01"}}')
    assert exploit(json.dumps({**GOOD, "rationale": f"a{c}b"})) == "control or invisible characters"
    assert exploit(json.dumps({**GOOD, "cited_facts": [f"w1{c}"]})) == "control or invisible characters"


def test_letters_of_any_language_are_no_exploit():
    for words in ("Nierenfunktion prüfen", "肾功能", "άγχος", "💊", "a\tb\nc"):
        assert parse_action(json.dumps({**GOOD, "rationale": words}, ensure_ascii=False)).action.rationale == words


def test_size_and_depth():
    room = MAX_BYTES - len(json.dumps(GOOD))
    assert parse_action(json.dumps(GOOD) + " " * room).action == ACTION
    assert "bytes" in exploit(json.dumps(GOOD) + " " * (room + 1))
    assert "bytes" in exploit("é" * (MAX_BYTES // 2 + 1)) and "bytes" in exploit("x" * 10_000_000)
    nested = '{"candidate_id":"cand_01","x":%s}'
    assert "deep" in exploit(nested % ("[" * 6 + "]" * 6))
    assert not parse_action(nested % ("[" * 5 + "]" * 5)).flags
    assert "deep" in exploit("[" * 4000) and "deep" in exploit('{"a":' * 800)
    assert parse_action(json.dumps({**GOOD, "rationale": "[[[[[[[[{{{{{{{{"})).format == 1


def test_the_worst_texts_are_read_in_no_time():
    worst = (
        "{" * MAX_BYTES,
        '{"":' * 1000,
        '"\\' * 2000,
        "[{" * 2000,
        '{"a":"' * 600,
        "}" * MAX_BYTES,
        '"' * MAX_BYTES,
    )
    start = time.perf_counter()
    for text in worst:
        parse_action(text)
    assert time.perf_counter() - start < 2


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=300) | st.text(alphabet='{}[]":,\\ cand_01ijdfk', max_size=200))
def test_it_never_raises(text):
    parsed = parse_action(text)
    assert (parsed.action is None) == (parsed.format == 0) and set(parsed.flags) <= {"hard:parser_exploit"}


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 99),
    st.floats(0, 1),
    st.lists(st.from_regex(r"[a-z]{1,8}\.[a-z0-9_]{1,20}", fullmatch=True), max_size=8),
    st.sampled_from([None, *ActionType]),
)
def test_what_is_written_well_is_read_back(number, confidence, facts, kind):
    raw = {"candidate_id": f"cand_{number:02d}", "confidence": confidence, "cited_facts": facts}
    parsed = parse_action(json.dumps({**raw, "expected_action_type": kind}))
    assert parsed.format == 1
    assert parsed.action == Action(raw["candidate_id"], confidence, "", tuple(facts), kind)
