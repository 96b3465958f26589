"""Judges the completions of a batch side by side, by the request's reward mode.

Owns the pool, the choice of the judge, and that a fault of the sandbox is no verdict instead of the end of a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.data.ground import ground, ground_text
from bashgym.data.reward_function import FIELD, function_facts, is_function
from bashgym.envs import sandbox
from bashgym.envs.rewards import code
from bashgym.envs.rewards.environment import environment
from bashgym.envs.rewards.extract import same_answer
from bashgym.envs.rewards.function import FunctionPool
from bashgym.envs.rewards.interpreter import interpreter, pytest_mounts
from bashgym.envs.rewards.types import RewardItem, RewardResult, RewardStatus
from bashgym.envs.rewards.verification import verification

Judge = Callable[[RewardItem], RewardResult]


class Rewarder:
    """Judges completions. `close` it, or use it as a context manager."""

    def __init__(self, judge: Judge, workers: int, close: Callable[[], None] = lambda: None) -> None:
        self._judge, self._close = judge, close
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="reward")

    def __enter__(self) -> Rewarder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """The verdicts in the order of `items`. The same completion of the same row is judged once and has one verdict."""
        keys = [self._key(item) for item in items]
        first = dict(zip(reversed(keys), reversed(items), strict=True))
        verdicts = dict(zip(first, self._pool.map(self._one, first.values()), strict=True))
        return [verdicts[key] for key in keys]

    def close(self) -> None:
        """Waits for what is being judged and ends the workers."""
        self._pool.shutdown()
        self._close()

    @staticmethod
    def _key(item: RewardItem) -> tuple[bytes, str]:
        return msgspec.json.encode([item.prompt, item.row]), item.completion

    def _one(self, item: RewardItem) -> RewardResult:
        try:
            return self._judge(item)
        except (BashGymError, OSError) as error:
            return RewardResult(None, {}, RewardStatus.ERROR, f"no verdict: {error}")


def make_rewarder(request: Mapping[str, Any], run_dir: Path | None = None) -> Rewarder:
    """The rewarder of a request, ready: what it needs is here, or `sandbox_unavailable`, `missing_extra`, `file_missing`.

    With `run_dir`, a reward function whose file is no longer the one in the run's manifest is a `digest_mismatch`.
    """
    mode, timeout_s = str(request[FIELD]), float(request["reward_timeout_s"])
    workers = int(request["reward_workers"] or os.cpu_count() or 1)
    if is_function(mode):
        _check_unchanged(function_facts(request), run_dir)
        pool = FunctionPool(mode, timeout_s, workers)
        return Rewarder(pool.judge, workers, pool.close)
    return Rewarder(_judge(mode, timeout_s, request.get("column_mapping") or {}), workers)


def _judge(mode: str, timeout_s: float, mapping: Mapping[str, str]) -> Judge:
    if mode == "syntax":
        return code.syntax
    if mode == "answer":
        return partial(_answer, mapping=mapping)
    sandbox.require()
    if mode == "environment":
        return lambda item: environment(item, ground(item.row, mode, mapping), timeout_s)
    python = interpreter()
    if mode == "execution":
        return lambda item: code.execution(item, python, timeout_s)
    pytest_mounts()
    return lambda item: _verified(item, ground(item.row, "tests", mapping), timeout_s)


def _verified(item: RewardItem, tests: object, timeout_s: float) -> RewardResult:
    if not isinstance(tests, str) or not tests.strip():
        return RewardResult(None, {}, RewardStatus.ERROR, "the row has no tests")
    return verification(item, tests, timeout_s)


def _answer(item: RewardItem, mapping: Mapping[str, str]) -> RewardResult:
    """1 if the completion's final answer is the row's, else 0."""
    reference = ground_text(ground(item.row, "answer", mapping))
    if reference is None:
        return RewardResult(None, {}, RewardStatus.ERROR, "the row has no answer")
    right = same_answer(item.completion, reference)
    return RewardResult(float(right), {"exact": float(right)}, RewardStatus.PASSED if right else RewardStatus.FAILED)


def _check_unchanged(facts: dict[str, str] | None, run_dir: Path | None) -> None:
    manifest = run_dir / "manifest.json" if run_dir else None
    if manifest is None or facts is None or not manifest.is_file():
        return
    recorded = msgspec.json.decode(manifest.read_bytes()).get("reward_function")
    if recorded and recorded["sha256"] != facts["sha256"]:
        raise fail(
            "digest_mismatch",
            f"{facts['path']} is not the reward function that this run began with",
            hint="Restore the file, or start a new run.",
            fields=[FIELD],
        )
