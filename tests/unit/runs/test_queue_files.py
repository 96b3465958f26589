"""The queue as files: order, moves, cancellation, and what a crash between two writes leaves."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger
from bashgym.runs import control, queue
from bashgym.runs.reconcile import ensure_supervised, mark_launched, waits
from bashgym.store.run_dir import RunDir, RunState, RunStatus


@pytest.fixture
def settings(tmp_path):
    """No slot: nothing is ever launched from here."""
    made = Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path)
    return dataclasses.replace(made, queue_slots=0)


def _run(settings, name, status=RunStatus.QUEUED):
    run = RunDir(settings.models_dir / name)
    run.path.mkdir(parents=True)
    run.write_json("request.json", {"strategy": "sft"})
    run.write_state(RunState(run_id=name, strategy="sft", status=status))
    return run


def _enqueue(settings, *names, stop_on_error=False):
    runs = []
    for name in names:
        queue.add(RunDir(settings.models_dir / name), settings, stop_on_error=stop_on_error)
        runs.append(_run(settings, name))
    return runs


def _order(settings):
    return [entry["run_id"] for entry in queue.listing(settings)["waiting"]]


def test_runs_wait_in_the_order_they_came(settings):
    _enqueue(settings, "c", "a", "b")
    assert _order(settings) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("name", "to", "expected"),
    [("c", 1, ["c", "a", "b"]), ("a", 2, ["b", "a", "c"]), ("a", 99, ["b", "c", "a"]), ("b", 2, ["a", "b", "c"])],
)
def test_a_move_changes_one_place(settings, name, to, expected):
    _enqueue(settings, "a", "b", "c")
    queue.move(name, to, settings)
    assert _order(settings) == expected
    _enqueue(settings, "d")
    assert _order(settings) == [*expected, "d"], "who comes later comes last, whatever was moved"


@pytest.mark.parametrize(("name", "to", "code"), [("a", 0, "invalid_field"), ("ghost", 1, "not_queued")])
def test_a_move_that_makes_no_sense_is_refused(settings, name, to, code):
    _enqueue(settings, "a")
    with pytest.raises(BashGymError) as refused:
        queue.move(name, to, settings)
    assert refused.value.code == code


def test_looking_at_a_waiting_run_does_not_launch_it(settings):
    (run,) = _enqueue(settings, "a")
    assert ensure_supervised(run, settings) is False and waits(run, settings)


def test_an_entry_whose_starter_died_before_the_run_was_whole_is_dropped(settings):
    code = (
        "import sys; from pathlib import Path; from bashgym.core.settings import Settings; from bashgym.runs import queue;"
        "from bashgym.store.run_dir import RunDir; s = Settings.from_env();"
        "queue.add(RunDir(s.models_dir / 'half'), s, stop_on_error=False)"
    )
    env = {**os.environ, "BASHGYM_DIR": str(settings.home), "BASHGYM_MODELS_DIR": str(settings.models_dir)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    _enqueue(settings, "whole")
    assert (settings.home / "queue/waiting/half.json").is_file()
    assert _order(settings) == ["whole"]
    assert not (settings.home / "queue/waiting/half.json").exists()


def test_an_entry_whose_starter_still_works_is_kept(settings):
    queue.add(RunDir(settings.models_dir / "soon"), settings, stop_on_error=False)
    assert _order(settings) == []
    _run(settings, "soon")
    assert _order(settings) == ["soon"]


def test_stop_of_a_waiting_run_cancels_it_once(settings):
    (run,) = _enqueue(settings, "a")
    ledger = Ledger(settings)
    with pytest.raises(BashGymError, match="a"):
        ledger.set_status("a", "cancelled")  # not registered here: the ledger says so, after the files
    with pytest.raises(BashGymError):
        control.stop(run, settings, ledger)
    assert run.state().status == RunStatus.CANCELLED and not waits(run, settings)
    assert queue.cancel(run, settings, ledger) is False


@pytest.mark.parametrize("status", list(RunStatus))
def test_only_runs_that_are_under_way_hold_a_slot(settings, status):
    run = _run(settings, "r", status)
    mark_launched(run, settings)
    free = status in ("completed", "failed", "cancelled", "paused", "unknown")
    assert [a["run_id"] for a in queue.listing(settings)["active"]] == ([] if free else ["r"])
    assert (settings.home / "queue/launched/r.json").exists() is not free


def test_launched_but_not_yet_taken_out_is_still_waiting(settings):
    """The state that a kill between the two writes of a launch leaves."""
    (run,) = _enqueue(settings, "a")
    mark_launched(run, settings, stop_on_error=True)
    assert _order(settings) == ["a"] and queue.listing(settings)["active"] == []


def test_a_failure_holds_the_queue_only_if_it_was_asked_to(settings):
    for name, stop in (("calm", False), ("strict", True)):
        run = _run(settings, name, RunStatus.FAILED)
        mark_launched(run, settings, stop_on_error=stop)
        queue.advance(settings)
        assert bool(queue.held(settings)) is stop
    assert queue.held(settings)["run_id"] == "strict"
    queue.advance(settings, go_on=True)
    assert queue.held(settings) is None


def test_a_foreign_file_in_the_queue_folder_stops_nothing(settings):
    _enqueue(settings, "a")
    (settings.home / "queue/waiting/zz.json").write_text("{torn")
    assert _order(settings) == ["a"]


def test_an_empty_queue_makes_no_folder(settings):
    assert queue.advance(settings) == [] and queue.listing(settings)["waiting"] == []
    assert not settings.home.exists()


@pytest.mark.parametrize(("text", "slots"), [("", 1), ("3", 3), ("0", 1), ("-2", 1), ("many", 1)])
def test_the_number_of_slots_is_at_least_one(tmp_path, text, slots):
    assert Settings.from_env({"BASHGYM_QUEUE_SLOTS": text}, tmp_path).queue_slots == slots


def test_entries_are_plain_json(settings):
    _enqueue(settings, "a", stop_on_error=True)
    entry = json.loads((settings.home / "queue/waiting/a.json").read_text())
    assert entry["run_id"] == "a" and entry["stop_on_error"] is True
