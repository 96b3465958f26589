"""The arithmetic of reports, on rows made by hand: values that one can check on paper."""

from __future__ import annotations

import math

import msgspec
import pytest

from bashgym.core.errors import BashGymError
from polyguard.evaluation.improvement import improvement
from polyguard.evaluation.play import EpisodeRow, Scenario
from polyguard.evaluation.report import METRICS, auc, expected_calibration_error, interval, mean_of, paired, summary


def row(number: int = 0, **changes: object) -> EpisodeRow:
    made = EpisodeRow(
        policy="hand",
        scenario_id=f"easy/ddi_screening:test:{number:05d}",
        task_id="easy/ddi_screening",
        difficulty="easy",
        cluster=f"ddi:{number // 2}",
        groups={"age": "80+", "sex": "F", "egfr": "60+", "n_drugs": "under 6"},
        steps=4,
        reward=0.5,
        rewards={"compat": 0.6, "strict": 0.5},
        episode_return=0.4,
        termination="safe_resolution",
        success=True,
        legal_steps=3,
        components={"process_fidelity_score": 0.75, "legality_score": 1.0},
        channels={"safety_legality": 0.5},
        hard_flags=[],
        soft_flags=["illegal_selection"],
        risk_delta=-0.2,
        burden_delta=-0.1,
        dose_steps=2,
        dose_hits=1,
        adverse_event=False,
        bets=[(0.9, True), (0.1, False)],
        abstention=[(0.1, False), (1.0, True)],
        action_types=["STOP_DRUG", ""],
        explained=True,
        latency_ms=[1.0, 3.0],
    )
    return msgspec.structs.replace(made, **changes)


def test_metrics_are_means_over_episodes() -> None:
    rows = [row(0), row(1, legal_steps=4, hard_flags=["repeat_loop"], success=False, termination="exploit_detection")]
    assert mean_of(rows, "legality_rate") == pytest.approx((0.75 + 1.0) / 2)
    assert mean_of(rows, "invalid_rate") == pytest.approx(0.125)
    assert mean_of(rows, "exploit_rate") == 0.5
    assert mean_of(rows, "success_rate") == 0.5
    assert mean_of(rows, "timeout_rate") == 0.0


@pytest.mark.parametrize(
    ("termination", "metric"),
    [
        ("justified_review", "justified_review_rate"),
        ("unjustified_review", "unjustified_review_rate"),
        ("step_timeout", "timeout_rate"),
        ("wall_clock_timeout", "timeout_rate"),
        ("step_budget_exhausted", "budget_exhausted_rate"),
    ],
)
def test_each_termination_counts_once(termination: str, metric: str) -> None:
    rates = {
        name: METRICS[name](row(0, termination=termination))
        for name in ("justified_review_rate", "unjustified_review_rate", "timeout_rate", "budget_exhausted_rate")
    }
    assert rates.pop(metric) == 1.0
    assert set(rates.values()) == {0.0}


def test_a_summary_has_every_metric_with_mean_spread_size_and_interval() -> None:
    found = summary([row(number, reward=0.1 * number) for number in range(8)])
    reward = found["metrics"]["avg_reward"]
    assert reward["mean"] == pytest.approx(0.35)
    assert reward["std"] == pytest.approx(math.sqrt(0.06), abs=1e-6)
    assert reward["n"] == 8
    assert reward["ci_low"] < 0.35 < reward["ci_high"]
    assert found["clusters"] == 4
    assert found["metrics"]["dosing_target_attainment"]["mean"] == 0.5
    assert found["metrics"]["ece"]["mean"] == pytest.approx(0.1)
    assert found["metrics"]["abstention_auc"]["mean"] == 1.0
    assert found["latency_ms"] == {"p50": 1.0, "p95": 3.0}
    assert found["soft_flags"] == {"illegal_selection": 1.0}
    assert found["action_types"]["shares"] == {"STOP_DRUG": 0.5, "unreadable": 0.5}
    assert found["action_types"]["entropy"] == pytest.approx(math.log(2), abs=1e-6)
    assert set(METRICS) <= found["metrics"].keys()


def test_an_interval_holds_values_of_any_size_and_one_cluster_claims_nothing() -> None:
    low, high = interval([400.0, 800.0, 500.0, 700.0], ["a", "b", "c", "d"])
    assert low < 600 < high
    assert high > 1
    assert interval([0.2, 0.4], ["a", "a"]) == (0.2, 0.4)


def test_clusters_widen_an_interval_when_their_members_agree() -> None:
    values = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0] * 2
    together = interval(values, [str(place // 4) for place in range(16)])
    alone = interval(values, [str(place) for place in range(16)])
    assert together.high - together.low > alone.high - alone.low


def test_a_pair_is_the_same_scenarios_on_both_sides() -> None:
    before, after = [row(0), row(1)], [row(1, reward=0.9), row(0, reward=0.7)]
    found = paired(before, after)["avg_reward"]
    assert found["delta"] == pytest.approx(0.3)
    assert found["baseline"] == 0.5
    for other in ([row(0)], [row(0), row(2)], [row(0), row(0)]):
        with pytest.raises(BashGymError) as caught:
            paired(before, other)
        assert caught.value.code == "eval_incomplete"


def test_the_p_of_a_pair_flips_whole_clusters() -> None:
    before = [row(number) for number in range(12)]
    after = [row(number, reward=0.7) for number in range(12)]
    found = paired(before, after)["avg_reward"]
    assert found["p"] == pytest.approx(2 / 2**6)  # six clusters, all of one sign
    assert paired(before, before)["avg_reward"]["p"] == 1.0


def test_calibration_error_by_hand() -> None:
    assert expected_calibration_error([]) is None
    assert expected_calibration_error([(1.0, True), (1.0, False)]) == 0.5
    assert expected_calibration_error([(0.75, True)] * 3 + [(0.75, False)]) == 0.0


def test_auc_by_hand() -> None:
    assert auc([(0.5, True)]) is None
    assert auc([(0.9, True), (0.1, False)]) == 1.0
    assert auc([(0.1, True), (0.9, False)]) == 0.0
    assert auc([(0.5, True), (0.5, False), (0.2, False)]) == 0.75


def chosen(n: int) -> list[Scenario]:
    return [Scenario("easy/ddi_screening", "test", number) for number in range(n)]


def compared(after: list[EpisodeRow]) -> dict[str, object]:
    before = [row(number) for number in range(len(after))]
    return improvement(before, after, chosen(len(after)), baseline_label="a", candidate_label="b")


def test_a_better_reward_without_losses_is_an_improvement() -> None:
    report = compared([row(number, reward=0.6 + 0.01 * number) for number in range(12)])
    assert report["improved"] is True
    assert report["reasons"] == []
    assert report["n"] == 12


@pytest.mark.parametrize(
    ("metric", "changes"),
    [
        ("legality_rate", {"legal_steps": 2}),
        ("success_rate", {"success": False}),
        ("avg_return", {"episode_return": 0.3}),
        ("process_fidelity", {"components": {"process_fidelity_score": 0.7, "legality_score": 1.0}}),
        ("failure_visibility", {"explained": False}),
        ("timeout_rate", {"termination": "step_timeout"}),
        ("exploit_rate", {"hard_flags": ["repeat_loop"]}),
    ],
)
def test_a_loss_elsewhere_is_no_improvement(metric: str, changes: dict[str, object]) -> None:
    report = compared([row(number, reward=0.6 + 0.01 * number, **changes) for number in range(12)])
    assert report["improved"] is False
    assert report["metrics"][metric]["regressed"] is True  # type: ignore[index]


def test_a_reward_that_may_be_chance_is_no_improvement() -> None:
    report = compared([row(number, reward=0.5 + (0.3 if number % 3 else -0.4)) for number in range(12)])
    assert report["metrics"]["avg_reward"]["delta"] > 0  # type: ignore[index]
    assert report["improved"] is False
