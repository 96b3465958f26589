"""The metric store: batches of metrics.jsonl lines in, series out.

One transaction a batch, integer keys, one executemany. The same point again changes nothing; a later value of a step
(after a resume) replaces the earlier one. What is not finite is kept, with its name instead of a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.ledger.db import Database, Row, Tx

MAX_NAME = 200
_PREFIXES = ("train.", "eval.", "system.")
_SYSTEM = ("tokens_per_second", "peak_memory_gb")
_NOT_METRICS = frozenset({"step", "ts", "epoch", "non_finite"})
_FLAGS = ("NaN", "Infinity", "-Infinity")
_POINT_COLUMNS = {
    "run_key": "bigint",
    "name_key": "bigint",
    "step": "bigint",
    "value": "double precision",
    "flag": "text",
}
_POINT_CONFLICT = "ON CONFLICT (run_key, name_key, step) DO UPDATE SET value = excluded.value, flag = excluded.flag"
_STEP_COLUMNS = {
    "run_key": "bigint",
    "step": "bigint",
    "ts": "double precision",
    "epoch": "double precision",
    "attempt": "bigint",
}
_STEP_CONFLICT = (
    "ON CONFLICT (run_key, step) DO UPDATE SET ts = excluded.ts, epoch = excluded.epoch, attempt = excluded.attempt"
)
_LATEST = (
    "INSERT INTO metric_latest (run_key, name_key, project_key, step, value, flag) VALUES (:run_key, :name_key, "
    ":project_key, :step, :value, :flag) ON CONFLICT (run_key, name_key) DO UPDATE SET step = excluded.step, "
    "value = excluded.value, flag = excluded.flag WHERE excluded.step >= metric_latest.step"
)

Series = dict[int, float | str]
"""step -> value, or one of _FLAGS."""
Point = tuple[Any, ...]
"""(step, value or None, flag or None, ts in epoch seconds, epoch)."""


def ledger_name(name: str) -> str:
    """The ledger's name of a trainer's metric: `loss` -> `train.loss`, `eval_loss` -> `eval.loss`."""
    if name.startswith(_PREFIXES):
        return name
    if name.startswith("eval_"):
        return f"eval.{name.removeprefix('eval_')}"
    if name in _SYSTEM or name.startswith("gpu_"):
        return f"system.{name}"
    return f"train.{name}"


class MetricStore:
    """Writes points. Remembers the keys of metric names, which never change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, int] = {}

    def ingest(self, run_id: str, attempt: int, points: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """Stores lines of metrics.jsonl; returns {points, steps, skipped}. `run_not_found`."""
        series, steps, skipped = _collect(points)
        with self._database.write(serial=False) as tx:
            row = tx.one(
                "SELECT r.run_key, p.project_key FROM runs r JOIN projects p ON p.workspace_id = r.workspace_id "
                "AND p.project_id = r.project_id WHERE r.run_id = :run_id",
                run_id=run_id,
            )
            if row is None:
                raise fail("run_not_found", f"no run {run_id} in the ledger")
            run_key, names = row["run_key"], self._name_keys(tx, sorted(name for name in series if series[name]))
            rows = []
            for name, key in names.items():
                rows += [
                    (run_key, key, step, value, None) if type(value) is float else (run_key, key, step, None, value)
                    for step, value in series[name].items()
                ]
            tx.insert_many("metric_points", _POINT_COLUMNS, rows, _POINT_CONFLICT)
            times = [(run_key, step, ts, epoch, attempt) for step, (ts, epoch) in steps.items()]
            tx.insert_many("metric_steps", _STEP_COLUMNS, times, _STEP_CONFLICT)
            for name, key in names.items():
                step = max(series[name])
                value = series[name][step]
                number, flag = (value, None) if isinstance(value, float) else (None, value)
                tx.run(_LATEST, **row, name_key=key, step=step, value=number, flag=flag)
            if rows:
                tx.update("runs", {"updated_at": utc_now()}, {"run_key": run_key})
        self._keys |= names
        return {"points": len(rows), "steps": len(steps), "skipped": skipped}

    def _name_keys(self, tx: Tx, names: list[str]) -> dict[str, int]:
        # In name order, so that two writers on PostgreSQL cannot wait for each other in a ring.
        found = {}
        for name in names:
            key = self._keys.get(name)
            if key is None:
                tx.run("INSERT INTO metric_names (name) VALUES (:name) ON CONFLICT (name) DO NOTHING", name=name)
                key = name_key(tx, name)
            if key is not None:
                found[name] = key
        return found


def name_key(tx: Tx, name: str) -> int | None:
    """The key of a metric name, or None if no point has it."""
    row = tx.one("SELECT name_key FROM metric_names WHERE name = :name", name=name)
    return int(row["name_key"]) if row else None


def _collect(
    points: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, Series], dict[int, tuple[float, float | None]], int]:
    """Points by ledger name and step, time and epoch by step, and the number of lines that are no points."""
    by_name: dict[str, Series] = {}
    raw: dict[str, Series | None] = dict.fromkeys(_NOT_METRICS)
    steps: dict[int, tuple[float, float | None]] = {}
    skipped = 0
    for line in points:
        step = line.get("step")
        if type(step) is not int or not 0 <= step < 1 << 63:
            skipped += 1
            continue
        steps[step] = (_number(line.get("ts")) or 0.0, _number(line.get("epoch")))
        flags = line.get("non_finite") or {}
        for name, value in line.items():
            try:
                series = raw[name]
            except KeyError:
                series = raw[name] = _series(by_name, name)
            if series is None:
                continue
            if type(value) is float and value - value == 0.0:
                series[step] = value
            else:
                _odd_value(series, step, value, flags.get(name))
    return by_name, steps, skipped


def _series(by_name: dict[str, Series], name: str) -> Series | None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        return None
    return by_name.setdefault(ledger_name(name), {})


def _odd_value(series: Series, step: int, value: object, flag: object) -> None:
    """An integer, a float that is not finite, or null with its flag; anything else is no point."""
    if value is None:
        if flag in _FLAGS:
            series[step] = str(flag)
    elif type(value) is int or isinstance(value, float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if value > 0 else -math.inf
        if math.isfinite(number):
            series[step] = number
        else:
            series[step] = "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None  # type: ignore[arg-type]


def points_of(tx: Tx, run_key: int, key: int, limit: int) -> list[Point]:
    """The newest `limit` points of one series, oldest first."""
    rows = tx.tuples(
        "SELECT p.step, p.value, p.flag, s.ts, s.epoch FROM metric_points p LEFT JOIN metric_steps s "
        "ON s.run_key = p.run_key AND s.step = p.step WHERE p.run_key = :run_key AND p.name_key = :key "
        "ORDER BY p.step DESC LIMIT :limit",
        run_key=run_key,
        key=key,
        limit=limit,
    )
    rows.reverse()
    return rows


def latest(tx: Tx, run_key: int) -> dict[str, Row]:
    """name -> {step, value, flag} of a run's newest points."""
    rows = tx.all(
        "SELECT n.name, l.step, l.value, l.flag FROM metric_latest l JOIN metric_names n ON n.name_key = l.name_key "
        "WHERE l.run_key = :run_key",
        run_key=run_key,
    )
    return {row["name"]: {name: row[name] for name in ("step", "value", "flag")} for row in sorted_by_name(rows)}


def sorted_by_name(rows: list[Row]) -> list[Row]:
    """By name in code point order, whatever the database's collation is."""
    return sorted(rows, key=lambda row: str(row["name"]))
