"""The metric store and trends, on both databases."""

import math

import pytest
from ledger_cases import P, W, tracked

from bashgym.core.errors import Invalid, NotFound
from bashgym.ledger.analysis import slope
from bashgym.ledger.metrics import ledger_name
from bashgym.ledger.service import Ledger


def line(step: int, **values: object) -> dict:
    return {"step": step, "ts": 1_700_000_000.0 + step, "epoch": step / 10, **values}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("loss", "train.loss"),
        ("grad_norm", "train.grad_norm"),
        ("eval_loss", "eval.loss"),
        ("eval_mean_token_accuracy", "eval.mean_token_accuracy"),
        ("tokens_per_second", "system.tokens_per_second"),
        ("gpu_memory_gb", "system.gpu_memory_gb"),
        ("peak_memory_gb", "system.peak_memory_gb"),
        ("rewards/format/mean", "train.rewards/format/mean"),
        ("train.loss", "train.loss"),
    ],
)
def test_names(given: str, stored: str) -> None:
    assert ledger_name(given) == stored


def test_ingest_twice_is_the_same_as_once(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    points = [line(n, loss=1.0 / (n + 1), num_tokens=n * 10) for n in range(50)]
    assert ledger.ingest_metrics("run_1", 1, points) == {"points": 100, "steps": 50, "skipped": 0}
    before = ledger.trend(W, P, "loss")
    ledger.ingest_metrics("run_1", 1, points)
    assert ledger.trend(W, P, "loss") == before
    assert before["point_count"] == 50


def test_not_finite_points_are_kept_and_named(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    points = [
        line(0, loss=1.0),
        line(1, loss=None, non_finite={"loss": "NaN"}),
        line(2, loss=None, non_finite={"loss": "-Infinity"}),
        line(3, loss=math.inf),
        line(4, loss=0.5),
    ]
    ledger.ingest_metrics("run_1", 1, points)
    found = ledger.trend(W, P, "train.loss", "run_1")
    assert [p.get("flag") for p in found["points"]] == [None, "NaN", "-Infinity", "Infinity", None]
    assert (found["point_count"], found["non_finite_count"]) == (5, 3)
    assert (found["first"], found["latest"], found["delta"], found["max"]) == (1.0, 0.5, -0.5, 1.0)


def test_a_resumed_run_overwrites_and_latest_follows_the_step(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    ledger.ingest_metrics("run_1", 1, [line(n, loss=9.0) for n in range(10)])
    ledger.ingest_metrics("run_1", 2, [line(n, loss=1.0) for n in range(5, 8)])
    assert ledger.run(W, P, "run_1")["latest_metrics"]["train.loss"] == {"step": 9, "value": 9.0}
    ledger.ingest_metrics("run_1", 2, [line(n, loss=1.0) for n in range(8, 12)])
    assert ledger.run(W, P, "run_1")["latest_metrics"]["train.loss"] == {"step": 11, "value": 1.0}
    assert [p["value"] for p in ledger.trend(W, P, "loss")["points"]] == [9.0] * 5 + [1.0] * 7


def test_hostile_lines_are_skipped_and_counted(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    points = [
        {"step": "1", "loss": 1.0},
        {"step": True, "loss": 1.0},
        {"step": -1, "loss": 1.0},
        {"step": 1 << 70, "loss": 1.0},
        {"loss": 1.0},
        line(1, loss="text", big=10**400, flag=True, nothing=None, **{"x" * 5000: 1.0}),
    ]
    assert ledger.ingest_metrics("run_1", 1, points) == {"points": 1, "steps": 1, "skipped": 5}
    assert ledger.run(W, P, "run_1")["latest_metrics"] == {"train.big": {"step": 1, "value": None, "flag": "Infinity"}}


def test_an_unknown_run_has_no_metrics(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.ingest_metrics("run_9", 1, [line(1, loss=1.0)])


def test_trend_over_runs_is_oldest_first_and_bounded(ledger: Ledger) -> None:
    for n in range(3):
        tracked(ledger, f"run_{n}")
        ledger.ingest_metrics(f"run_{n}", 1, [line(s, loss=float(n)) for s in range(10)])
    found = ledger.trend(W, P, "loss")
    assert [p["value"] for p in found["points"]] == [0.0] * 10 + [1.0] * 10 + [2.0] * 10
    assert list(found["trends_by_run"]) == ["run_0", "run_1", "run_2"]
    cut = ledger.trend(W, P, "loss", limit=15)
    assert [p["value"] for p in cut["points"]] == [1.0] * 5 + [2.0] * 10
    assert (cut["truncated"], found["truncated"]) == (True, False)
    with pytest.raises(Invalid):
        ledger.trend(W, P, "loss", limit=20_001)


def test_trend_of_an_unknown_metric_is_empty_not_an_error(ledger: Ledger) -> None:
    tracked(ledger, "run_1")
    found = ledger.trend(W, P, "no_such_metric")
    assert (found["point_count"], found["points"], found["slope"], found["latest"]) == (0, [], None, None)


def test_trend_shows_no_points_of_another_project(ledger: Ledger) -> None:
    from ledger_cases import context, register

    tracked(ledger, "run_1")
    register(ledger, "run_2", context(project_id="other"))
    ledger.ingest_metrics("run_2", 1, [line(1, loss=1.0)])
    assert ledger.trend(W, P, "loss")["points"] == []
    with pytest.raises(NotFound):
        ledger.trend(W, P, "loss", run_id="run_2")


def test_slope_is_least_squares() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]
    n, mean_x, mean_y = len(values), 2.5, sum(values) / 6
    expected = sum((i - mean_x) * (v - mean_y) for i, v in enumerate(values)) / sum((i - mean_x) ** 2 for i in range(n))
    assert slope(values) == pytest.approx(expected)
    assert slope([2.0 * i for i in range(100)]) == pytest.approx(2.0)
