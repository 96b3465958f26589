"""What a suite is: fixed by name, split and seed, and digested whole."""

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.evals import suites
from bashgym.evals.service import EvalService
from bashgym.workspace import Workspace


def test_the_same_protocol_gives_the_same_items_and_digest():
    assert suites.load("terminal", seed=3, per_family=2) == suites.load("terminal", seed=3, per_family=2)


@pytest.mark.parametrize(
    "change",
    [{"seed": 4}, {"split": "heldout_families"}, {"per_family": 3}, {"limit": 5}, {"name": "terminal-instruct"}],
)
def test_whatever_decides_a_score_changes_the_digest(change):
    protocol = {"name": "terminal", "seed": 3, "per_family": 2}
    assert suites.load(**protocol).digest != suites.load(**{**protocol, **change}).digest


def test_both_held_out_splits_together_hold_each_items_once():
    values, families, both = (
        suites.load("terminal", split=split, per_family=2)
        for split in ("heldout_values", "heldout_families", "heldout")
    )
    assert [i.item_id for i in both.items] == [i.item_id for i in (*values.items, *families.items)]
    assert not set(values.clusters()) & set(families.clusters())
    assert len({i.item_id for i in both.items}) == len(both.items)


def test_a_limit_takes_the_families_in_turn():
    suite = suites.load("terminal", per_family=3, limit=5)
    assert len(suite.items) == len(suite.clusters()) == 5


def test_only_the_instruct_suite_has_a_system_prompt():
    assert suites.system_prompt("terminal") == ""
    first = suites.load("terminal-instruct", per_family=1).items[0].messages
    assert [turn["role"] for turn in first] == ["system", "user"]
    assert first[0]["content"] == suites.system_prompt("terminal-instruct")


@pytest.mark.parametrize("call", [{"name": "mmlu"}, {"name": "terminal", "split": "nonsense"}])
def test_an_unknown_suite_or_split_is_refused(call):
    with pytest.raises(BashGymError) as caught:
        suites.load(**call)
    assert caught.value.code == "suite_unknown"


@pytest.fixture
def service(tmp_path):
    workspace = Workspace.open(Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path))
    return EvalService(workspace.settings, workspace.model)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ({"attempts": 2}, "invalid_field"),
        ({"attempts": 0}, "invalid_field"),
        ({"temperature": -1.0}, "invalid_field"),
        ({"top_p": 0.0}, "invalid_field"),
        ({"max_new_tokens": 0}, "invalid_field"),
        ({"n_resamples": 10}, "invalid_field"),
        ({"limit": 0}, "invalid_field"),
        ({"limit": 1}, "too_few_clusters"),
        ({"model": ""}, "missing_field"),
        ({"model": "no/such-model"}, "model_missing"),
        ({"suite": "mmlu"}, "suite_unknown"),
    ],
)
def test_a_bad_request_is_refused_and_leaves_nothing(service, call, code):
    with pytest.raises(BashGymError) as caught:
        service.run(**{"model": "no/such-model", "baseline": "no/such-model", "per_family": 1, **call})
    assert caught.value.code == code
    assert not service.root.exists() and service.list() == []


@pytest.mark.parametrize("eval_id", ["eval_none", "../models", "a/b"])
def test_an_evaluation_that_is_not_there_is_refused(service, eval_id):
    for read in (service.get, service.report_path):
        with pytest.raises(BashGymError) as caught:
            read(eval_id)
        assert caught.value.code == ("eval_not_found" if eval_id == "eval_none" else "invalid_field")
