"""Each way in which tokens spoil a run is found, counted, and says what to do; a clean dataset finds nothing."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Make
from model_folder import FORGETFUL, MARKED, PLAIN

from bashgym.data.encode import iter_full, loss_policy
from bashgym.data.token_checks import CODES, Scan, findings, turn_end
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import Finding, Severity, SftExample

Rows = list[dict[str, Any]]


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def judge(
    bundle: TokenizerBundle,
    rows: Rows,
    max_length: int = 128,
    assistant_only: bool | None = None,
    completion_only: bool | None = None,
) -> tuple[dict[str, Finding], Scan]:
    examples = [SftExample(n, **row) for n, row in enumerate(rows, start=1)]
    policy = loss_policy(examples[0], assistant_only, completion_only)
    scan = Scan(bundle, max_length)
    for full in iter_full(bundle, scan.watch(examples), max_length=max_length, policy=policy, on_problem=scan.refuse):
        scan.add(full)
    found = findings(scan, policy, assistant_only)
    assert {finding.code for finding in found} <= CODES.keys()
    return {finding.code: finding for finding in found}, scan


GOOD = [chat("What is the capital of Peru?", "Lima."), chat("Name a prime", "eleven")]


def test_a_clean_dataset_finds_nothing(make: Make) -> None:
    assert judge(make(MARKED), GOOD)[0] == {}


def test_a_prompt_that_fills_the_window_is_an_error_with_the_smallest_length_that_helps(make: Make) -> None:
    bundle = make()
    rows: Rows = [{"prompt": "long words here " * 40 * n, "completion": "yes"} for n in (1, 2)] + [
        {"prompt": "x", "completion": "y"}
    ]
    finding = judge(bundle, rows, 64)[0]["zero_supervised_tokens"]
    assert finding.severity is Severity.ERROR
    assert finding.rows == (1, 2)
    for part in ("2 of 3", "max_length", "label"):
        assert part in finding.message
    needed = int(finding.mend.split(" is ")[1].split(",")[0].rstrip("."))
    assert "zero_supervised_tokens" not in judge(bundle, rows, needed)[0]
    assert judge(bundle, rows, needed - 1)[0]["zero_supervised_tokens"].rows == (2,)


def test_rows_with_nothing_to_train_at_any_length_are_told_apart(make: Make) -> None:
    rows = [{"messages": [{"role": "user", "content": "only a question"}]}, *GOOD]
    finding = judge(make(), rows)[0]["zero_supervised_tokens"]
    assert "1 have nothing to train at any length" in finding.message
    assert "smallest" not in finding.mend


def test_truncated_rows_count_what_is_lost_and_name_the_longest(make: Make) -> None:
    found, scan = judge(make(), [*GOOD, {"messages": chat("q", "word " * 200)["messages"]}], 64)
    finding = found["truncated_rows"]
    assert (finding.severity, finding.rows) == (Severity.WARNING, (3,))
    assert f"{max(scan.lengths) - 64} tokens" in finding.message
    for part in ("1 of 3", "33.3 %", "row 3", "length"):
        assert part in finding.message
    assert "stop_token_not_trained" not in found


def test_assistant_only_loss_without_markers_is_an_error_that_offers_ways_out(make: Make) -> None:
    finding = judge(make(PLAIN), GOOD, assistant_only=True)[0]["template_without_generation_markers"]
    assert finding.severity is Severity.ERROR
    assert "generation" in finding.message and "assistant_only_loss" in finding.message and " 0 of " in finding.message
    assert "completion_only_loss" in finding.mend


def test_the_prefix_difference_is_said_not_hidden(make: Make) -> None:
    found, scan = judge(make(PLAIN), GOOD)
    finding = found["template_without_generation_markers"]
    assert finding.severity is Severity.INFO
    assert f"{scan.supervised} of {scan.total}" in finding.message


def test_an_eos_outside_the_vocabulary_names_it_and_the_likely_one(make: Make) -> None:
    finding = judge(make(eos_token="<EOS_TOKEN>"), GOOD)[0]["eos_not_in_vocabulary"]
    assert finding.severity is Severity.ERROR
    assert "<EOS_TOKEN>" in finding.message and "vocab" in finding.message
    assert "<|im_end|>" in finding.mend


def test_a_pad_token_outside_the_vocabulary_is_an_error(make: Make) -> None:
    assert judge(make(pad_token="<none>"), GOOD)[0]["pad_not_in_vocabulary"].severity is Severity.ERROR


@pytest.mark.parametrize("pad", ["<|im_end|>", None])
def test_pad_equal_to_eos_is_a_warning_with_a_count(make: Make, pad: str | None) -> None:
    finding = judge(make(pad_token=pad), GOOD)[0]["pad_equals_eos"]
    assert (finding.severity, finding.count) == (Severity.WARNING, 2)
    assert "pad" in finding.message and "eos" in finding.message and "2 of 2" in finding.message


def test_a_turn_end_that_stops_nothing_is_an_error(make: Make) -> None:
    bundle = make(eos_token="<|endoftext|>", model={"eos_token_id": 0})
    finding = judge(bundle, GOOD)[0]["stop_token_not_trained"]
    assert finding.severity is Severity.ERROR
    assert "2 of 2" in finding.message


def test_a_turn_end_outside_the_markers_is_an_error(make: Make) -> None:
    outside = MARKED.replace("{{- m.content + '<|im_end|>' }}{% endgeneration", "{{- m.content }}{% endgeneration")
    assert judge(make(outside), GOOD)[0]["stop_token_not_trained"].count == 2


def test_some_rows_without_a_trained_end_are_a_warning(make: Make) -> None:
    rows: Rows = [*GOOD, {**GOOD[0], "weights": [1, 1]}]
    bundle = make(
        MARKED.replace("'<|im_end|>' }}{% endg", "('' if 'Peru' in messages[0].content else eos_token) }}{% endg")
    )
    finding = judge(bundle, rows)[0]["stop_token_not_trained"]
    assert (finding.severity, finding.rows) == (Severity.WARNING, (1, 3))


@pytest.mark.parametrize("options", [{"adds_bos": True}, {"add_bos_token": True}])
def test_a_bos_in_the_text_and_from_the_tokenizer_is_a_warning(make: Make, options: dict[str, Any]) -> None:
    rows: Rows = [{"text": "<s>hello"}, {"text": "hello"}]
    finding = judge(make(bos_token="<s>", **options), rows)[0]["double_bos"]
    assert (finding.severity, finding.rows) == (Severity.WARNING, (1,))
    assert "BOS" in finding.message and "twice" in finding.message


def test_a_template_that_writes_the_bos_is_no_fault(make: Make) -> None:
    bundle = make("{{ bos_token }}" + MARKED, bos_token="<s>", adds_bos=True)
    assert "double_bos" not in judge(bundle, GOOD)[0]


def test_special_tokens_in_content_are_a_warning(make: Make) -> None:
    finding = judge(make(MARKED), [*GOOD, chat("x<|im_end|>", "y")])[0]["special_token_in_content"]
    assert (finding.severity, finding.rows) == (Severity.WARNING, (3,))
    assert "<|im_end|>" in finding.message


def test_a_prompt_that_tokenises_otherwise_alone_is_a_warning(make: Make) -> None:
    rows: Rows = [{"prompt": "The capita", "completion": "l of Peru"}]
    assert judge(make(), rows)[0]["prompt_boundary_shift"].rows == (1,)


def test_ids_beyond_the_embedding_are_an_error(make: Make) -> None:
    assert judge(make(MARKED, model={"vocab_size": 10}), GOOD)[0]["token_id_out_of_range"].count == 2


def test_a_length_above_the_window_is_an_error(make: Make) -> None:
    finding = judge(make(MARKED, model_max_length=100), GOOD, 101)[0]["max_length_above_window"]
    assert "101" in finding.message and "100" in finding.message
    assert "max_length_above_window" not in judge(make(MARKED, model_max_length=100), GOOD, 100)[0]


def test_a_model_without_template_is_an_error_for_conversations_only(make: Make) -> None:
    assert judge(make(None), GOOD)[0]["no_chat_template"].count == 2
    assert judge(make(None), [{"text": "plain"}])[0] == {}


def test_rows_that_do_not_encode_are_counted_and_named(make: Make) -> None:
    long = {"messages": GOOD[0]["messages"] + GOOD[1]["messages"]}
    found, scan = judge(make(FORGETFUL), [GOOD[0], long, long])
    assert found["template_not_prefix_preserving"].rows == (2, 3)
    assert "2 of 3" in found["template_not_prefix_preserving"].message
    assert (scan.encoded, scan.trainable) == (1, 1)


def test_a_template_with_a_date_is_said(make: Make) -> None:
    assert judge(make("{{ strftime_now('%Y') }}" + MARKED), GOOD)[0]["template_uses_date"].severity is Severity.INFO


def test_errors_come_first(make: Make) -> None:
    scan = judge(make(eos_token="<none>", pad_token=None), [*GOOD, chat("<|im_end|>", "x " * 200)])
    severities = [finding.severity for finding in scan[0].values()]
    assert severities == sorted(severities, key=list(Severity).index)
    assert len(set(severities)) == 3


def test_the_figures_add_up(make: Make) -> None:
    scan = judge(make(MARKED), [*GOOD, chat("q", "word " * 200)], 64)[1]
    stats = scan.stats()
    assert stats.total == sum(min(length, 64) for length in scan.lengths)
    assert stats.max == max(scan.lengths)
    assert stats.p50 == sorted(scan.lengths)[1]
    assert (stats.truncated_rows, stats.zero_supervised_rows) == (1, 0)
    assert 0 < stats.supervised < stats.total


@pytest.mark.parametrize(
    ("template", "token"), [(PLAIN, "<|im_end|>"), ("{{ messages[1].content }}", None), ("{{ x.y.z }}", None)]
)
def test_turn_end_is_what_the_template_writes_after_an_answer(make: Make, template: str, token: str | None) -> None:
    assert turn_end(make(template)) == token
