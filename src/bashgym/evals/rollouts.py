"""The rollout engine: a model on an endpoint against environments in the sandbox, many episodes at once.

Covers: an endpoint that fails is a missing observation, never a miss; limits of the environment end an episode with a named
reason; finished episodes are on disk and not played again. Commands block a thread each, so that as many run as there are cores.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bashgym.core.errors import fail
from bashgym.envs.rollout import check_runnable, prepare
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals.rollout_journal import Journal, opened
from bashgym.evals.rollout_player import Player, RolloutConfig, RolloutRecord, RolloutStep, lost
from bashgym.inference.client import ChatClient

__all__ = ["NOT_PLAYED", "RolloutConfig", "RolloutRecord", "RolloutStep", "roll_out", "threads"]

NOT_PLAYED = "interrupted"
"""The error of attempts that `stop_on_error` left out."""


def threads() -> int:
    """How many commands run at once."""
    return max(2, os.cpu_count() or 1)


async def roll_out(
    client: ChatClient,
    environments: Sequence[EnvironmentSpec],
    config: RolloutConfig,
    *,
    on_done: Callable[[int, int], None] | None = None,
    journal: Path | None = None,
    digest: str = "",
) -> list[RolloutRecord]:
    """Every attempt at every environment, in order. With a `journal`, finished ones are kept there and not played again.

    Before anything is paid for: `environment_invalid` or `container_unavailable` for what cannot run here, `file_exists` or
    `request_in_progress` if the journal is another request's or process's, and `endpoint_unreachable` if nobody answers.
    """
    for spec in environments:
        check_runnable(spec)
    jobs = [(spec, index) for spec in environments for index in range(config.attempts_per_environment)]
    with opened(journal, digest) as kept:
        todo = [job for job in jobs if (job[0].id, job[1]) not in kept.done]
        if todo:
            for spec in environments:
                await asyncio.to_thread(prepare, spec)
            await client.probe()
            await _play_all(client, config, todo, kept, lambda: on_done(len(kept.done), len(jobs)) if on_done else None)
        return [kept.done[spec.id, index] for spec, index in jobs]


async def _play_all(
    client: ChatClient,
    config: RolloutConfig,
    todo: Sequence[tuple[EnvironmentSpec, int]],
    kept: Journal,
    told: Callable[[], None],
) -> None:
    gate, stopping = asyncio.Semaphore(max(1, config.max_concurrency)), asyncio.Event()

    async def one(spec: EnvironmentSpec, index: int) -> None:
        async with gate:
            if stopping.is_set():
                record = lost(spec, index, fail(NOT_PLAYED, "an earlier attempt failed, and stop_on_error is set"))
            else:
                record = await Player(client, config, pool).play(spec, index)
        if record.error and config.stop_on_error:
            stopping.set()
        kept.add(record)
        told()

    with ThreadPoolExecutor(threads(), thread_name_prefix="episode") as pool:
        try:
            # A group, so that a fault in one waits for the others to give their workspaces back.
            async with asyncio.TaskGroup() as group:
                for spec, index in todo:
                    group.create_task(one(spec, index))
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None
