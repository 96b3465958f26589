"""Preflight of a replay: what blocks, what is left out, and that the trainer's rows are those that were counted."""

import pytest

from bashgym.core.settings import Settings
from bashgym.data.dppo_checks import trainable
from bashgym.data.preflight import DatasetQuery, check
from bashgym.data.tokens import TokenizerBundle
from bashgym.models.catalog import resolve

from .replay_data import TINY, attempt, write


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return resolve(TINY, Settings.from_env({"BASHGYM_DIR": str(tmp_path_factory.mktemp("home"))})).path


def report(folder, records, model_dir, **fields):
    path = write(folder, records)
    query = {"max_seq_length": 64, "max_steps": 4, **fields}
    made = check(DatasetQuery(path=path, method="dppo", model_dir=model_dir, **query))
    rows = list(trainable(path, TokenizerBundle.load(model_dir), query["max_seq_length"]))
    assert len(rows) == made.valid_rows
    return made, {f.code: (str(f.severity), f.rows) for f in made.findings}


def changed(i, **turn):
    record = attempt(i)
    record["behavior_policy"]["response_logprobs"][0] |= turn
    return record


def test_a_good_replay_has_no_finding_and_its_figures_are_of_its_tokens(tmp_path, model_dir):
    made, found = report(tmp_path, [attempt(i) for i in range(8)], model_dir)
    assert found == {} and made.blocking == [] and made.rows == made.valid_rows == 8
    assert made.tokens.supervised == 16 and made.tokens.total == 8 * made.tokens.max


@pytest.mark.parametrize(
    ("record", "finding"),
    [
        ({"batch_id": 1}, ("replay_invalid", "error")),
        ({**attempt(0), "passed": False}, ("replay_invalid", "error")),  # the same attempt again
        (changed(2, logprobs=[None, None]), ("replay_invalid", "error")),
        (changed(2, tokens=["2 2", "<|im_end|>"]), ("replay_invalid", "error")),
        (changed(2, logprobs=[-1.0, None]), ("behavior_logprobs_missing", "warning")),
        ({**attempt(2), "optimizer": {"advantage": 9.0}}, ("advantage_differs", "warning")),
        ({**attempt(2), "environment_id": "alone"}, ("groups_without_contrast", "warning")),
    ],
)
def test_what_is_wrong_with_a_row_is_named(tmp_path, model_dir, record, finding):
    _, found = report(tmp_path, [attempt(0), attempt(1), record], model_dir)
    assert {finding[0]: (finding[1], (3,))} == found


def test_an_attempt_in_which_the_model_said_nothing_is_left_out(tmp_path, model_dir):
    silent = {**attempt(2), "trajectory": {"messages": [{"role": "user", "content": "x"}]}}
    silent["behavior_policy"] = {"response_logprobs": []}
    made, found = report(tmp_path, [attempt(0), attempt(1), silent], model_dir)
    assert found == {"nothing_sampled": ("warning", (3,))} and made.valid_rows == 2


def test_groups_without_any_contrast_block(tmp_path, model_dir):
    made, _ = report(tmp_path, [{**attempt(i), "reward": 1.0} for i in range(4)], model_dir)
    assert made.blocking == ["groups_without_contrast"]


def test_rollouts_that_do_not_fit_are_left_out_with_the_length_that_would_do(tmp_path, model_dir):
    long = attempt(1)
    long["trajectory"]["messages"][0]["content"] = "word " * 200
    made, found = report(tmp_path, [attempt(0), long], model_dir)
    assert found["rollout_does_not_fit"] == ("warning", (2,)) and made.valid_rows == 1
    (finding,) = [f for f in made.findings if f.code == "rollout_does_not_fit"]
    needed = int(finding.mend.split("max_seq_length ")[1].split()[0])
    assert report(tmp_path, [attempt(0), long], model_dir, max_seq_length=needed)[1] == {}
