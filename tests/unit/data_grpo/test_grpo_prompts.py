"""Prompts that are sampled from: what a row needs for its reward, and which prompts have room for an answer."""

import json
import shutil

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.data.contracts import check_dataset
from bashgym.data.ground import ground, ground_text
from bashgym.data.grpo_checks import completion_length, shown_prompt, trainable
from bashgym.data.preflight import DatasetQuery, check
from bashgym.data.prompts import iter_prompt_rows
from bashgym.data.tokens import TokenizerBundle
from bashgym.methods import registry
from bashgym.models.catalog import resolve

TESTS = "from solution import f\ndef test_f():\n    assert f(1) == 1\n"
ENVIRONMENT = {"instruction": "do it", "files": {"verify.sh": "true"}}


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return resolve("bashgym/tiny-qwen2", Settings.from_env({"BASHGYM_DIR": str(home)}, home)).path


@pytest.fixture
def rows(tmp_path):
    def write(*values):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(value) + "\n" for value in values))
        return path

    return write


def report(path, model, method="grpo", **options):
    own = {entry.name: entry.default for entry in registry.get(method).own_fields}
    request = {**own, "strategy": method, "max_seq_length": 64, "column_mapping": {}, **options}
    query = DatasetQuery(path, method, model, max_seq_length=request["max_seq_length"], options=request)
    return check(query), request


def found(result):
    return {finding.code: finding for finding in result.findings}


def prompts(n=8, **columns):
    return [{"prompt": f"question {i}", **columns} for i in range(n)]


@pytest.mark.parametrize("mode", ["syntax", "execution", "python:f.py:f", None])
def test_rewards_of_the_completion_alone_need_a_prompt_alone(rows, mode):
    result = check_dataset(rows(*prompts()), "grpo", reward_mode=mode)
    assert (result.valid_rows, result.is_valid) == (8, True)


@pytest.mark.parametrize("method", ["grpo", "rlvr"])
@pytest.mark.parametrize(
    ("mode", "column", "value"),
    [("verification", "tests", TESTS), ("answer", "answer", "4"), ("environment", "environment", ENVIRONMENT)],
)
def test_a_row_without_what_its_reward_needs_is_refused_by_its_number(rows, method, mode, column, value):
    good = {"prompt": "q", column: value}
    path = rows(good, {"prompt": "r"}, good | {"prompt": "s"}, {"prompt": "t", column: None})
    result = check_dataset(path, method, reward_mode=mode)
    (error,) = [finding for finding in result.findings if finding.severity == "error"]
    assert (result.valid_rows, error.rows, error.field) == (2, (2, 4), column)
    read = [row.number for row in iter_prompt_rows(path, method, reward_mode=mode)]
    assert read == [1, 3]


@pytest.mark.parametrize(
    ("mode", "column"), [("verification", "tests"), ("answer", "answer"), ("environment", "environment")]
)
def test_a_file_without_the_column_is_refused_with_the_mapping_that_mends_it(rows, mode, column):
    with pytest.raises(BashGymError, match=f"nothing fits {column}") as refused:
        check_dataset(rows(*prompts(foo="x")), "grpo", reward_mode=mode)
    assert f"{column}=COLUMN" in refused.value.hint


def test_rlvr_asks_for_tests_where_nothing_else_is_said(rows):
    with pytest.raises(BashGymError, match="nothing fits tests"):
        check_dataset(rows(*prompts(answer="4")), "rlvr")


@pytest.mark.parametrize(
    ("column", "value", "mode", "code"),
    [
        ("tests", "def test_f(", "verification", "tests_broken"),
        ("tests", " \n", "verification", "empty_side"),
        ("tests", ["assert f"], "verification", "mixed_types"),
        ("answer", " ", "answer", "empty_side"),
        ("answer", ["4"], "answer", "empty_side"),
        ("environment", "env_1", "environment", "environment_invalid"),
        ("environment", {"instruction": "x", "verifer": {}}, "environment", "environment_invalid"),
        ("environment", {**ENVIRONMENT, "build": {"network_disabled": False}}, "environment", "environment_invalid"),
        ("environment", {**ENVIRONMENT, "build": {"base_image": "python"}}, "environment", "environment_invalid"),
    ],
)
def test_content_that_cannot_judge_is_an_error_of_its_row(rows, column, value, mode, code):
    good = {"tests": TESTS, "answer": "4", "environment": ENVIRONMENT}
    result = check_dataset(
        rows({"prompt": "a", **good}, {"prompt": "b", **good, column: value}), "grpo", reward_mode=mode
    )
    assert (result.valid_rows, found(result)[code].rows, found(result)[code].severity) == (1, (2,), "error")


@pytest.mark.parametrize("tests", ["def test_f():\n    assert True\n", "from solution import f\nassert f(1)\n"])
def test_tests_that_judge_nothing_are_named_and_still_run(rows, tests):
    result = check_dataset(rows({"prompt": "a", "tests": TESTS}, {"prompt": "b", "tests": tests}), "rlvr")
    assert (result.valid_rows, found(result)["tests_judge_nothing"].rows) == (2, (2,))


def test_an_answer_of_mixed_types_is_still_an_error_where_it_is_compared(rows):
    result = check_dataset(rows(*prompts(4, answer="007"), {"prompt": "x", "answer": 7}), "grpo", reward_mode="answer")
    assert found(result)["mixed_types"].severity == "error"


def test_the_ground_truth_is_what_the_file_says():
    assert ground({"ground_truth": "3", "label": "4"}, "answer") == "3"
    assert ground({"answer": None, "label": "4"}, "answer") == "4"
    assert ground({"answer": "1", "out": "2"}, "answer", {"answer": "out"}) == "2"
    assert ground({"x": 1}, "tests") is None
    assert [ground_text(v) for v in ("007", 7, 1.5, True, {"ground_truth": "3"}, None, [1], {}, "")] == [
        "007",
        "7",
        "1.5",
        "true",
        "3",
        None,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("length", [None, 8])
def test_a_prompt_is_trained_iff_it_leaves_room_for_an_answer(rows, model, length):
    bundle, words = TokenizerBundle.load(model), "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    path = rows(*({"prompt": words[:n]} for n in range(1, len(words))))
    result, request = report(path, model, max_seq_length=24, max_completion_length=length)
    room = 24 - completion_length(request)
    lengths = [len(bundle.encode(words[:n])) for n in range(1, len(words))]
    fitting = [n for n in lengths if n <= room]
    assert 0 < len(fitting) < len(lengths)
    assert (result.valid_rows, result.tokens.total) == (len(fitting), sum(fitting))
    assert (result.tokens.max, result.tokens.truncated_rows) == (max(lengths), len(lengths) - len(fitting))
    assert found(result)["prompt_too_long"].severity == "warning"
    assert [row.number for row in trainable(path, bundle, request)] == [
        i for i, n in enumerate(lengths, 1) if n <= room
    ]


def test_no_room_at_all_is_an_error(rows, model):
    result, _ = report(rows(*({"prompt": "many words " * 50 + str(i)} for i in range(8))), model)
    assert (found(result)["prompt_too_long"].severity, result.valid_rows) == ("error", 0)


def test_reference_answers_that_cannot_be_sampled_in_full_are_named(rows, model):
    path = rows(*prompts(answer="4", reference_solution="step by step " * 40))
    result, _ = report(path, model, max_completion_length=16)
    finding = found(result)["answers_longer_than_completion"]
    assert finding.count == 8
    assert "max_completion_length 16" in finding.message
    assert "reference_solution" in finding.message
    result, _ = report(rows(*prompts(answer="4")), model, max_completion_length=16)
    assert "answers_longer_than_completion" not in found(result)


def test_plain_prompts_of_a_chat_model_are_pointed_at_wrap_prompts(rows, model):
    path = rows(*prompts(answer="4"))
    plain, _ = report(path, model)
    wrapped, _ = report(path, model, wrap_prompts=True)
    assert "wrap_prompts" in found(plain)["plain_prompts_with_chat_model"].mend
    assert "plain_prompts_with_chat_model" not in found(wrapped)
    assert wrapped.tokens.total > plain.tokens.total


def test_a_system_prompt_in_a_column_of_its_own_is_not_applied_and_that_is_said(rows, model):
    turn = [{"role": "user", "content": "2 + 2?"}]
    result, _ = report(
        rows(*({"prompt": turn, "answer": "4", "system_prompt": f"Be brief {i}."} for i in range(8))), model
    )
    assert found(result)["system_prompt_not_applied"].count == 8
    assert "without a system prompt: <|im_start|>user" in found(result)["first_prompt"].message
    own = [{"role": "system", "content": "Be brief."}, *turn]
    result, _ = report(rows(*({"prompt": own, "answer": str(i), "system_prompt": "x"} for i in range(8))), model)
    assert "system_prompt_not_applied" not in found(result)
    assert "with a system prompt" in found(result)["first_prompt"].message


def test_the_tools_protocol_wraps_and_announces_its_tool(rows, model):
    path = rows(*prompts(environment=ENVIRONMENT))
    text, _ = report(path, model, grpo_reward_mode="environment", max_seq_length=1024, wrap_prompts=True)
    tools, request = report(
        path, model, grpo_reward_mode="environment", max_seq_length=1024, environment_protocol="tools"
    )
    assert tools.tokens.p50 > text.tokens.p50
    assert all(isinstance(row.prompt, list) for row in trainable(path, TokenizerBundle.load(model), request))


@pytest.fixture
def model_with(model, tmp_path):
    """A copy of the model with another chat template."""

    def make(template):
        folder = shutil.copytree(model, tmp_path / "model")
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
        return folder

    return make


def test_a_template_that_leaves_tools_out_is_an_error_before_a_start_with_tools(rows, model, model_with):
    path = rows(*prompts(environment=ENVIRONMENT))
    options = {"grpo_reward_mode": "environment", "environment_protocol": "tools", "max_seq_length": 1024}
    without, _ = report(path, model_with("{% for m in messages %}{{ m.content }}{% endfor %}"), **options)
    with_tools, _ = report(path, model, **options)
    assert found(without)["template_without_tools"].severity == "error"
    assert "template_without_tools" not in found(with_tools)


def test_a_prompt_that_the_template_refuses_is_left_out_and_said(rows, model_with):
    refusing = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    folder = model_with(refusing + "{{ m.content }}{% endfor %}")
    turns = [[{"role": "user", "content": f"q {i}"}] for i in range(8)]
    turns.append([{"role": "system", "content": "s"}, *turns[0]])
    result, _ = report(rows(*({"prompt": prompt} for prompt in turns)), folder)
    finding = found(result)["prompt_not_rendered"]
    assert (result.valid_rows, finding.rows, finding.severity) == (8, (9,), "warning")
    assert "no system" in finding.message


def test_a_huge_prompt_is_too_long_without_being_tokenised(rows, model):
    result, _ = report(rows(*prompts(answer="4"), {"prompt": "a" * 5_000_000, "answer": "4"}), model)
    assert (result.valid_rows, found(result)["prompt_too_long"].rows) == (8, (9,))


def test_a_check_without_a_request_works(rows, model):
    result = check(DatasetQuery(rows(*prompts()), "grpo", model, max_seq_length=64))
    assert result.valid_rows == 8


def test_the_text_of_a_plain_prompt_is_the_prompt(model):
    assert shown_prompt(TokenizerBundle.load(model), "as it is") == "as it is"
