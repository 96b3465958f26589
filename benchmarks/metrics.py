"""Metric write inside the trainer, ingest into the index, durability under SIGKILL."""

from __future__ import annotations

import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bashgym.core.settings import Settings
from bashgym.ledger.service import Ledger
from bashgym.store.metrics import MetricWriter, read_points
from benchmarks.measure import Result

POINTS = {"loss": 1.0, "grad_norm": 0.5, "learning_rate": 1e-4, "entropy": 2.0, "num_tokens": 1e6, "epoch": 0.5}


def run(work: Path) -> list[Result]:
    """Three quantities."""
    return [_write(work), _ingest(work), _durable(work)]


def _p99_us(call: object, n: int) -> float:
    times = []
    for i in range(n):
        begin = time.perf_counter_ns()
        call(i)  # type: ignore[operator]
        times.append((time.perf_counter_ns() - begin) / 1000)
        time.sleep(0.0005)
    return statistics.quantiles(times, n=100)[98]


def _write(work: Path) -> Result:
    writer = MetricWriter(work / "metrics.jsonl")
    ours = _p99_us(lambda i: writer.log(i, POINTS), 2000)
    writer.close()
    database = sqlite3.connect(work / "plain.sqlite3", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE m (step INTEGER, name TEXT, value REAL)")

    def naive(i: int) -> None:
        for name, value in POINTS.items():
            database.execute("INSERT INTO m VALUES (?, ?, ?)", (i, name, value))

    theirs = _p99_us(naive, 500)
    return Result(
        "metric write in the trainer, 6 scalars, p99", ours, "µs", "≤ 60", "an SQLite insert a scalar", theirs
    )


def register(ledger: Ledger, work: Path) -> None:
    """One unassigned run, so that there is something to write to and to list."""
    identity = {
        "digest": "0" * 64,
        "config_digest": "0" * 64,
        "name": "m",
        "path": "/m",
        "source": "path",
        "revision": "",
        "n_parameters": 1,
    }
    ledger.register_run(
        request={}, strategy="sft", run_id="run_bench", run_dir=str(work), tracking=None, model=identity,
        dataset={"digest": "0" * 64, "path": "/d", "rows": 1}, environment={"digest": "0" * 64}, recipe_digest="0" * 64,
        correlation_id="c", origin={},
    )  # fmt: skip


def _ingest(work: Path) -> Result:
    settings = Settings.from_env({"BASHGYM_DIR": str(work / "ingest")}, work)
    ledger = Ledger(settings)
    register(ledger, work)
    lines = [{"step": i, "ts": 1.0, **POINTS} for i in range(50_000)]
    n = len(lines) * len(POINTS)
    begin = time.perf_counter()
    ledger.ingest_metrics("run_bench", 1, lines)
    ours = n / (time.perf_counter() - begin)
    database = sqlite3.connect(work / "batched.sqlite3")
    database.execute("CREATE TABLE m (step INTEGER, name TEXT, value REAL)")
    begin = time.perf_counter()
    database.executemany(
        "INSERT INTO m VALUES (?, ?, ?)", ((line["step"], k, line[k]) for line in lines for k in POINTS)
    )
    database.commit()
    theirs = n / (time.perf_counter() - begin)
    return Result(
        "metric ingest into the index",
        ours,
        "points/s",
        "≥ 300,000",
        "SQLite executemany, no keys",
        theirs,
        bigger_is_better=True,
    )


def _durable(work: Path) -> Result:
    path = work / "durable.jsonl"
    code = (
        "import sys, time; from pathlib import Path; from bashgym.store.metrics import MetricWriter\n"
        "w = MetricWriter(Path(sys.argv[1])); i = 0\n"
        "while True: w.log(i, {'loss': 1.0}); i += 1; print(i, time.time(), flush=True); time.sleep(0.01)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    time.sleep(3)
    killed = time.time()
    os.kill(child.pid, signal.SIGKILL)
    said = [line.split() for line in child.communicate()[0].splitlines() if line.count(" ") == 1]
    due = sum(float(at) < killed - 0.1 for _, at in said)
    kept = min(due, len(read_points(path)[0]))
    return Result(f"durable after SIGKILL at 100 Hz, of {due} points older than 100 ms", 100 * kept / due, "%", "100")
