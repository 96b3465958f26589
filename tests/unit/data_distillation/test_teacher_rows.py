"""Rows with a teacher's answer: what stands for prompt and answer, which rows are trained, what preflight says."""

import json

import pytest

from bashgym.core.settings import Settings
from bashgym.data.distillation_checks import CODES, answer_start, encoded_rows, examples
from bashgym.data.preflight import DatasetQuery, check
from bashgym.data.tokens import TokenizerBundle
from bashgym.methods.request import parse_request
from bashgym.models.catalog import ensure_tiny

ASK = [{"role": "user", "content": "sort a.txt"}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return ensure_tiny(Settings.from_env({"BASHGYM_DIR": str(home)}, home))


def request(**changes):
    return parse_request(
        {"strategy": "distillation", "base_model": "m", "dataset_path": "d", "teacher_model": "t", **changes}
    ).as_dict()


def write(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def passed(path, tiny, **changes):
    wanted = request(**changes)
    query = DatasetQuery(
        path, "distillation", tiny, max_seq_length=wanted["max_seq_length"], options=wanted, batch_size=1
    )
    return check(query), list(encoded_rows(TokenizerBundle.load(tiny), path, wanted))


def test_plain_strings_stay_plain_unless_they_are_wrapped(tmp_path):
    path = write(tmp_path, [{"prompt": "sort a.txt", "teacher_response": "sort a.txt"}])
    (plain,), (wrapped,) = (list(examples(path, request(wrap_prompts=wrap))) for wrap in (False, True))
    assert (plain.prompt, plain.completion) == ("sort a.txt", "sort a.txt")
    assert (wrapped.prompt, wrapped.completion) == (ASK, [{"role": "assistant", "content": "sort a.txt"}])


def test_messages_stand_for_the_prompt_and_a_plain_answer_becomes_a_turn(tmp_path):
    path = write(tmp_path, [{"messages": ASK, "teacher_response": "sort a.txt"}])
    (example,) = examples(path, request())
    assert example.prompt[0]["content"] == "sort a.txt" and len(example.prompt) == 1
    assert example.completion == [{"role": "assistant", "content": "sort a.txt"}]


def test_an_answer_in_the_prompt_is_left_out_and_reported(tmp_path, tiny):
    answered = [*ASK, {"role": "assistant", "content": "the old answer"}]
    path = write(
        tmp_path, [{"prompt": answered, "teacher_response": "new"}, {"prompt": ASK, "teacher_response": "new"}]
    )
    report, rows = passed(path, tiny, max_seq_length=64)
    assert [len(example.prompt) for example, _ in rows] == [1, 1]
    (finding,) = [finding for finding in report.findings if finding.code == "answer_in_prompt"]
    assert finding.rows == (1,) and finding.count == 1


def test_preflight_counts_the_rows_and_tokens_that_are_trained(tmp_path, tiny):
    rows = [{"prompt": "sort it " * n + "\n", "teacher_response": "yes"} for n in (1, 2, 50)]
    report, trained = passed(write(tmp_path, rows), tiny, max_seq_length=32)
    assert report.valid_rows == len(trained) == 2
    assert report.tokens.supervised == sum(encoded.supervised for _, encoded in trained)
    bundle = TokenizerBundle.load(tiny)
    for _, encoded in trained:
        assert bundle.decode([label for label in encoded.labels if label != -100]) == f"yes{bundle.eos_token}"
    assert report.tokens.zero_supervised_rows == 1 and "zero_supervised_tokens" in report.blocking


def test_on_policy_needs_room_behind_the_prompt_and_not_the_answer(tmp_path, tiny):
    rows = [{"prompt": "sort it", "teacher_response": "long " * 99}, {"prompt": "p q " * 40, "teacher_response": "ok"}]
    report, trained = passed(
        write(tmp_path, rows), tiny, max_seq_length=64, distillation_on_policy=True, max_completion_length=16
    )
    assert report.valid_rows == len(trained) == 1
    example, encoded = trained[0]
    assert example.prompt == "sort it" and 0 < answer_start(encoded) <= 48
    (finding,) = [finding for finding in report.findings if finding.code == "no_room_to_sample"]
    assert finding.rows == (2,) and "48 tokens" in finding.message
    assert "truncated_rows" not in {finding.code for finding in report.findings}


def test_a_check_without_a_request_has_the_defaults(tmp_path, tiny):
    path = write(tmp_path, [{"prompt": "a", "teacher_response": "b"}])
    assert check(DatasetQuery(path, "distillation", tiny)).valid_rows == 1


def test_every_code_says_how_to_mend_it():
    assert all(mend for _, mend in CODES.values())
