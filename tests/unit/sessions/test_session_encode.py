"""The two branches token by token: same target ids, labels on them alone, contexts cut from the left, the hint kept."""

import pytest

from bashgym.data.encode import RowProblem
from bashgym.data.findings import Collector
from bashgym.data.sessions.contract import TAG, check_record
from bashgym.data.sessions.encode import DoesNotFit, encode_record, encode_records
from bashgym.data.template import compile_template

from .session_cases import record


def row(**changes):
    return check_record(1, record(**changes), Collector([]))


@pytest.mark.parametrize("wrap", [False, True])
def test_labels_are_the_target_and_its_end_token_in_both_branches(bundle, wrap):
    value = row()
    branches = encode_record(bundle, value, max_length=400, wrap=wrap)
    assert branches.target == [*bundle.encode(value.target_text), bundle.eos_id]
    for context in (branches.original, branches.hinted):
        ids, labels = branches.sequence(context)
        assert len(ids) == len(labels)
        for at, (token, label) in enumerate(zip(ids, labels, strict=True)):
            assert label == (token if at >= len(context) else -100)
    assert branches.original != branches.hinted and not branches.truncated


def test_a_plain_context_is_its_text_and_a_wrapped_one_is_a_user_turn(bundle):
    value = row()
    plain, wrapped = (encode_record(bundle, value, max_length=400, wrap=wrap) for wrap in (False, True))
    assert bundle.decode(plain.hinted) == value.hinted_context
    turn = [{"role": "user", "content": value.original_context}]
    assert wrapped.original == bundle.encode(bundle.render(turn, add_generation_prompt=True))
    whole = bundle.render([*turn, {"role": "assistant", "content": value.target_text}])
    assert bundle.decode(wrapped.original + wrapped.target) == whole.rstrip("\n")


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("hint_first", [False, True])
def test_a_long_context_loses_its_oldest_tokens_never_target_hint_or_frame(bundle, wrap, hint_first):
    old = "Task: " + "old words " * 80
    hint = record()["hint_text"]
    tail = "the newest line\nNext action:"
    hinted = f"{TAG} {hint}\n{old}{tail}" if hint_first else f"{old}{TAG} {hint}\n{tail}"
    value = row(original_context=old + tail, hinted_context=hinted)
    free = encode_record(bundle, value, max_length=2000, wrap=wrap)
    cut = encode_record(bundle, value, max_length=110, wrap=wrap)
    assert cut.target == free.target and cut.truncated and cut.full_length == free.full_length
    for context in (cut.original, cut.hinted):
        assert len(context) + len(cut.target) == 110
        text = bundle.decode(context)
        assert "Task:" not in text and tail in text
        assert not wrap or (text.startswith("<|im_start|>user\n") and text.endswith("<|im_start|>assistant\n"))
    assert f"{TAG} {hint}" in bundle.decode(cut.hinted) and TAG not in bundle.decode(cut.original)


def test_the_needed_length_is_exact(bundle):
    value = row()
    with pytest.raises(DoesNotFit) as caught:
        encode_record(bundle, value, max_length=10)
    assert encode_record(bundle, value, max_length=caught.value.needed)
    with pytest.raises(DoesNotFit):
        encode_record(bundle, value, max_length=caught.value.needed - 1)


def test_a_recorded_tool_call_is_a_tool_call_of_the_template(bundle):
    call = '{"arguments": {"path": "a.txt"}, "name": "read"}'
    value = row(target_text=call, target_type="tool_call")
    text = bundle.decode(encode_record(bundle, value, max_length=400, wrap=True).target)
    assert text.startswith("<tool_call>") and text.endswith("</tool_call><|im_end|>") and "a.txt" in text
    assert bundle.decode(encode_record(bundle, value, max_length=400).target) == call + "<|im_end|>"


def test_the_end_of_turn_token_is_trained_though_the_template_writes_a_line_break_behind_it(bundle):
    assert encode_record(bundle, row(), max_length=400, wrap=True).target[-1] in bundle.stop_ids


def test_a_row_that_cannot_be_encoded_is_named_and_the_others_go_on(bundle):
    rows = [row(i=0), row(i=1, target_text="cat \ud800"), row(i=2)]
    problems = []
    made = [*encode_records(bundle, rows, max_length=400, on_problem=problems.append)]
    assert len(made) == 2 and [problem.code for problem in problems] == ["invalid_unicode"]


def test_a_template_that_renders_a_prompt_anew_once_answered_is_refused(bundle, monkeypatch):
    source = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert compile_template(source)
    monkeypatch.setitem(bundle.templates, "default", source)
    with pytest.raises(RowProblem) as caught:
        encode_record(bundle, row(), max_length=400, wrap=True)
    assert caught.value.code == "template_not_prefix_preserving"
