"""Limits on time and money, and what is spent over attempts."""

import time

import pytest

from bashgym.core.errors import BashGymError
from bashgym.methods.request import parse_request
from bashgym.store import budget
from bashgym.store.run_dir import RunDir


@pytest.fixture
def run(tmp_path):
    (tmp_path / "r").mkdir()
    return RunDir(tmp_path / "r")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, None),
        ({"max_minutes": 2}, (120.0, "max_minutes")),
        ({"max_cost": 3.0, "cost_per_hour": 6.0}, (1800.0, "max_cost")),
        ({"max_minutes": 60, "max_cost": 1.0, "cost_per_hour": 4.0}, (900.0, "max_cost")),
        ({"max_minutes": 1, "max_cost": 1.0, "cost_per_hour": 4.0}, (60.0, "max_minutes")),
        ({"max_cost": None, "cost_per_hour": 4.0, "max_minutes": None}, None),
    ],
)
def test_the_tighter_limit_counts_and_says_its_name(request_, expected):
    assert budget.limit(request_) == expected


def test_max_cost_without_a_price_is_refused():
    with pytest.raises(BashGymError) as refused:
        parse_request({"base_model": "m", "dataset_path": "d", "max_cost": 5})
    assert refused.value.fields == ["max_cost"] and "cost_per_hour" in refused.value.hint


def test_attempts_add_up_and_the_pause_between_them_does_not_count(run):
    now = time.time()
    run.write_json(budget.FILE, {"spent_s": 10.0, "began": now - 5})
    assert 15 <= budget.used_s(run) < 16
    budget.end(run, now)
    time.sleep(0.05)
    assert budget.used_s(run) == pytest.approx(15.0)
    budget.begin(run)
    assert 15 <= budget.used_s(run) < 16


def test_the_end_of_an_attempt_counts_once(run):
    run.write_json(budget.FILE, {"spent_s": 1.0, "began": 1000.0})
    budget.end(run, 1010.0)
    budget.end(run, 2000.0)
    assert budget.used_s(run) == 11.0


def test_a_clock_that_went_back_takes_nothing_off(run):
    run.write_json(budget.FILE, {"spent_s": 7.0, "began": time.time() + 3600})
    assert budget.used_s(run) == 7.0
    budget.end(run, time.time())
    assert budget.used_s(run) == 7.0


def test_a_run_that_continues_another_has_spent_what_that_one_spent(run, tmp_path):
    run.write_json(budget.FILE, {"spent_s": 33.0, "began": None})
    (tmp_path / "new").mkdir()
    new = RunDir(tmp_path / "new")
    budget.carry(run, new)
    assert budget.used_s(new) == 33.0


def test_a_run_without_a_record_has_spent_nothing(run):
    assert budget.used_s(run) == 0.0
    budget.end(run, 5.0)
    assert budget.used_s(run) == 0.0


def test_saving_gets_more_grace_than_a_step():
    limit = budget.Limit(600.0, "max_minutes")
    assert limit.grace_s("training") == 60 and limit.grace_s("saving") > 600
    assert budget.Limit(7200.0, "max_minutes").grace_s("training") == 720
