"""Rewards and verified episodes in the sandbox: a batch side by side, against the same batch one by one."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bashgym.envs import terminal
from bashgym.envs.rewards import RewardItem, make_rewarder
from bashgym.envs.rollout import run_episode
from bashgym.evals.rollouts import threads
from benchmarks.measure import Result

TESTS = "from solution import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
REPEATS = 5


def run(work: Path) -> list[Result]:
    """The two verifiers that need a sandbox, and whole episodes as the rollout engine plays them."""
    solved = [RewardItem("p", f"def add(a, b):\n    return a + b + {i} * 0\n", {"tests": TESTS}) for i in range(32)]
    tasks = terminal.build("train", 1, 2)
    commands = [RewardItem("p", task.solution, {"environment": task.spec.to_dict()}) for task in tasks]
    return [_compared("verification", solved), _compared("environment", commands), _episodes()]


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


def _episodes() -> Result:
    """Workspace, one command, verification, removal: with as many threads as the engine has, and with one."""
    tasks = terminal.build("train", 2, 4)
    rates: dict[int, list[float]] = {threads(): [], 1: []}
    for _ in range(REPEATS):
        for workers, found in rates.items():
            with ThreadPoolExecutor(workers) as pool:
                begin = time.perf_counter()
                results = list(pool.map(lambda task: run_episode(task.spec, [task.solution]), tasks))
                found.append(60 * len(tasks) / (time.perf_counter() - begin))
            assert all(result.passed for result in results)
    return Result(
        f"sandboxed verifications, {len(tasks)} episodes",
        statistics.median(rates[threads()]),
        "/min",
        f"≥ 1,000 ({os.cpu_count()} cores)",
        "one by one",
        statistics.median(rates[1]),
        bigger_is_better=True,
    )
