"""Comparison by identical evaluation suite, and trends of one metric. Callers hold the transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bashgym.core.errors import fail
from bashgym.ledger import entities as e
from bashgym.ledger import metrics, reads
from bashgym.ledger.db import Row, Tx
from bashgym.ledger.metrics import Point

MAX_POINTS = 20_000
RULE = (
    "Two runs are comparable only through completed results that carry the same evaluation_suite_id; of several "
    "results of one run in one suite the latest counts; simulated runs are never compared."
)


def compare(tx: Tx, scope: Row, run_ids: Sequence[str], result_ids: Sequence[str] = ()) -> dict[str, Any]:
    """experiment_run_comparison.v1. `result_ids` pins results that are to count instead of the latest ones.

    `ledger_comparison_invalid` unless 2 to 20 different runs are named; `ledger_not_found`.
    """
    wanted = list(dict.fromkeys(run_ids))
    if not 2 <= len(wanted) <= 20:
        raise fail(
            "ledger_comparison_invalid",
            f"a comparison needs 2 to 20 different runs; {len(wanted)} were named",
            fields=["run_id"],
        )
    by_suite: dict[str, dict[str, Row]] = {}
    excluded: list[dict[str, str]] = []
    for run_id in wanted:
        run = e.require(tx, e.RUN, scope["workspace_id"], scope["project_id"], run_id)
        if run["is_simulation"]:
            excluded.append({"run_id": run_id, "reason": "simulated"})
            continue
        results = _chosen(tx, scope, run_id, frozenset(result_ids))
        if not results:
            excluded.append({"run_id": run_id, "reason": "no completed evaluation result"})
        for suite_id, result in results.items():
            by_suite.setdefault(suite_id, {})[run_id] = result
    shared = {suite: results for suite, results in by_suite.items() if len(results) >= 2}
    compared = {run_id for results in shared.values() for run_id in results}
    lonely = [run_id for run_id in wanted if run_id not in compared]
    known = {entry["run_id"] for entry in excluded}
    excluded += [{"run_id": run_id, "reason": "no suite in common"} for run_id in lonely if run_id not in known]
    return {
        "schema_version": "experiment_run_comparison.v1",
        "comparisons": [_suite(tx, scope, suite_id, results) for suite_id, results in sorted(shared.items())],
        "not_comparable_run_ids": lonely,
        "not_comparable": [entry for entry in excluded if entry["run_id"] in lonely],
        "comparability_rule": RULE,
    }


def _chosen(tx: Tx, scope: Row, run_id: str, pinned: frozenset[str]) -> dict[str, Row]:
    """suite id -> the pinned, otherwise the latest completed result of a run."""
    rows = tx.all(
        "SELECT * FROM evaluation_results WHERE workspace_id = :workspace_id AND project_id = :project_id "
        "AND run_id = :run_id ORDER BY seq",
        **scope,
        run_id=run_id,
    )
    rows = [row for row in rows if row["status"] == "completed"]
    chosen = {row["evaluation_suite_id"]: row for row in rows}
    chosen |= {row["evaluation_suite_id"]: row for row in rows if row["evaluation_result_id"] in pinned}
    return chosen


def _suite(tx: Tx, scope: Row, suite_id: str, results: Mapping[str, Row]) -> dict[str, Any]:
    suite = e.require(tx, e.SUITE, scope["workspace_id"], scope["project_id"], suite_id)
    contract = json.loads(suite["metric_contract"])
    values = {run_id: json.loads(row["metrics"]) for run_id, row in results.items()}
    baseline = next(iter(values))
    common = sorted(set.intersection(*(set(found) for found in values.values())))
    return {
        "evaluation_suite_id": suite_id,
        "evaluation_suite_name": suite["name"],
        "baseline_run_id": baseline,
        "run_ids": list(values),
        "metrics": [
            {
                "metric_name": name,
                "direction": direction(contract, name),
                "values": {
                    run_id: {"value": found[name], "delta_from_baseline": found[name] - values[baseline][name]}
                    for run_id, found in values.items()
                },
            }
            for name in common
        ],
        "result_ids": {run_id: row["evaluation_result_id"] for run_id, row in results.items()},
    }


def direction(contract: Mapping[str, Any], metric: str) -> str:
    """The direction that a metric contract gives, in either of its two shapes, or `unspecified`."""
    own = contract.get(metric)
    if isinstance(own, Mapping) and isinstance(own.get("direction"), str):
        return str(own["direction"])
    if contract.get("primary_metric") == metric and isinstance(contract.get("metric_direction"), str):
        return str(contract["metric_direction"])
    return "unspecified"


def trend(tx: Tx, scope: Row, metric: str, run_id: str | None, limit: int) -> dict[str, Any]:
    """experiment_metric_trend.v1 over the newest `limit` points of one run, or of the project's newest runs.

    A trainer's own name (`loss`) is understood too. Points that are not finite are listed with their flag and take
    no part in first, latest, min, max, delta and slope (least squares on the sample index).
    """
    limit = reads.limited(limit, MAX_POINTS)
    owner = e.require(tx, e.PROJECT, scope["workspace_id"], scope["project_id"], scope["project_id"])
    name = metrics.ledger_name(metric)
    key = metrics.name_key(tx, name)
    by_run: dict[str, list[Point]] = {}
    left = limit
    for found_id, run_key in _run(tx, scope, run_id) if run_id else _runs_with(tx, owner["project_key"], key, limit):
        if key is None or left <= 0:
            break
        by_run[found_id] = metrics.points_of(tx, run_key, key, left)
        left -= len(by_run[found_id])
    by_run = dict(reversed([(found_id, points) for found_id, points in by_run.items() if points]))
    points = [_point(found_id, point) for found_id, series in by_run.items() for point in series]
    return {
        "schema_version": "experiment_metric_trend.v1",
        "metric_name": name,
        "run_id": run_id,
        **summary([p for series in by_run.values() for p in series]),
        "truncated": left <= 0,
        "trends_by_run": {found_id: summary(series) for found_id, series in by_run.items()},
        "points": points,
    }


def _run(tx: Tx, scope: Row, run_id: str) -> list[tuple[str, int]]:
    run = e.require(tx, e.RUN, scope["workspace_id"], scope["project_id"], run_id)
    return [(run_id, run["run_key"])]


def _runs_with(tx: Tx, project_key: int, key: int | None, limit: int) -> list[tuple[str, int]]:
    """(run id, run key) of the newest runs of the project that have the metric, at most 500."""
    rows = tx.all(
        "SELECT r.run_id, l.run_key FROM metric_latest l JOIN runs r ON r.run_key = l.run_key "
        "WHERE l.project_key = :project_key AND l.name_key = :key ORDER BY l.run_key DESC LIMIT :limit",
        project_key=project_key,
        key=-1 if key is None else key,
        limit=min(limit, 500),
    )
    return [(row["run_id"], row["run_key"]) for row in rows]


def _point(run_id: str, point: Point) -> Row:
    step, value, flag, ts, epoch = point
    shown = {"run_id": run_id, "step": step, "value": value, "ts": ts, "epoch": epoch}
    return shown if flag is None else {**shown, "flag": flag}


def summary(points: Sequence[Point]) -> dict[str, Any]:
    """Statistics of a series in its order."""
    values = [point[1] for point in points if point[1] is not None]
    first, last = (values[0], values[-1]) if values else (None, None)
    return {
        "point_count": len(points),
        "non_finite_count": len(points) - len(values),
        "first": first,
        "latest": last,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "delta": last - first if first is not None and last is not None else None,
        "slope": slope(values),
        "first_observed_at": _time(points[0][3]) if points else None,
        "last_observed_at": _time(points[-1][3]) if points else None,
    }


def slope(values: Sequence[float]) -> float | None:
    """Ordinary least squares of the values on 0, 1, 2, ...; None for fewer than two."""
    n = len(values)
    if n < 2:
        return None
    centre = (n - 1) / 2
    return sum((i - centre) * value for i, value in enumerate(values)) * 12 / (n * (n * n - 1))


def _time(ts: float | None) -> str | None:
    if not ts:
        return None
    return datetime.fromtimestamp(ts, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
