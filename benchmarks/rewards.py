"""Rewards per second in the sandbox: a batch side by side, against the same batch one by one."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from bashgym.envs import terminal
from bashgym.envs.rewards import RewardItem, make_rewarder
from benchmarks.measure import Result

TESTS = "from solution import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
REPEATS = 5


def run(work: Path) -> list[Result]:
    """The two verifiers that need a sandbox."""
    solved = [RewardItem("p", f"def add(a, b):\n    return a + b + {i} * 0\n", {"tests": TESTS}) for i in range(32)]
    tasks = terminal.build("train", 1, 2)
    commands = [RewardItem("p", task.solution, {"environment": task.spec.to_dict()}) for task in tasks]
    return [_compared("verification", solved), _compared("environment", commands)]


def _compared(mode: str, items: list[RewardItem]) -> Result:
    """Interleaved, so that a neighbour's load falls on both."""
    request = {"grpo_reward_mode": mode, "reward_timeout_s": 30.0}
    rates: dict[int | None, list[float]] = {None: [], 1: []}
    for _ in range(REPEATS):
        for workers, found in rates.items():
            with make_rewarder({**request, "reward_workers": workers}) as rewarder:
                begin = time.perf_counter()
                results = rewarder.score(items)
                found.append(len(items) / (time.perf_counter() - begin))
            assert all(result.reward == 1.0 for result in results), results
    return Result(
        f"rewards in the sandbox, {mode}, {len(items)} a batch",
        statistics.median(rates[None]),
        "/s",
        f"over one by one ({os.cpu_count()} cores)",
        "one by one",
        statistics.median(rates[1]),
        bigger_is_better=True,
    )
