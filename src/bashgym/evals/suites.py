"""Evaluation suites by name: what is asked, in which clusters, and how an answer is judged.

The seed belongs to the suite, not to a model or a recipe: both sides of a comparison get the same items in one order.
Judging runs the sandbox. What breaks there is a missing observation, never a miss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import BashGymError, fail

if TYPE_CHECKING:
    from bashgym.envs.terminal import TerminalTask
    from bashgym.inference.job import Completion

NAMES = ("terminal", "terminal-instruct")
BOTH = "heldout"
"""Both held-out splits together."""
DEFAULT_PER_FAMILY = 10
_CHUNK = 32


@dataclass(frozen=True)
class Item:
    """One question."""

    item_id: str
    cluster: str
    """Items of a cluster are not independent of each other: here, the task family."""
    messages: tuple[dict[str, str], ...]
    payload: TerminalTask


@dataclass(frozen=True)
class Suite:
    """A fixed list of items. `digest` covers all that decides a score: prompts, environments, verifiers, order."""

    name: str
    version: str
    split: str
    seed: int
    items: tuple[Item, ...]
    digest: str

    def clusters(self) -> list[str]:
        """The clusters in the order of their first item."""
        return list(dict.fromkeys(item.cluster for item in self.items))

    def facts(self) -> dict[str, Any]:
        """The record form for reports."""
        return {
            "name": self.name,
            "version": self.version,
            "digest": self.digest,
            "split": self.split,
            "seed": self.seed,
            "n_items": len(self.items),
            "clusters": self.clusters(),
            "executed": True,
        }


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a score file."""

    item_id: str
    cluster: str
    attempt: int
    seed: int
    passed: bool | None
    """null: not observed, because the sandbox or the verifier failed."""
    score: float | None
    status: str
    """As the verifier says, or `error`."""
    prompt: list[dict[str, str]]
    completion: str
    finish_reason: str = ""
    detail: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """What makes it unique in its file."""
        return self.item_id, self.attempt


def load(
    name: str,
    *,
    split: str = "heldout_values",
    seed: int = 0,
    per_family: int = DEFAULT_PER_FAMILY,
    limit: int | None = None,
) -> Suite:
    """The suite of that name. `limit` takes that many items, its families in turn.

    `suite_unknown` names the suites or splits there are; `invalid_field` for sizes below 1.
    """
    system = system_prompt(name)
    for field, value in (("per_family", per_family), ("limit", limit)):
        if value is not None and value < 1:
            raise fail("invalid_field", f"{field} must be at least 1, not {value}", fields=[field])
    from bashgym.envs import terminal

    splits = ("heldout_values", "heldout_families") if split == BOTH else (split,)
    tasks = [task for part in splits for task in terminal.build(part, seed, per_family)]
    items = [_item(task, system) for task in tasks]
    if limit is not None:
        items = list(_in_turn(items))[:limit]
    chosen = [item.payload for item in items]
    identity = [
        name,
        terminal.VERSION,
        split,
        seed,
        system,
        [item.item_id for item in items],
        terminal.suite_digest(chosen),
    ]
    return Suite(name, terminal.VERSION, split, seed, tuple(items), digest_json(identity))


def system_prompt(name: str) -> str:
    """What the suite tells the model before each task; empty where a trained model is expected. `suite_unknown`."""
    if name not in NAMES:
        raise fail("suite_unknown", f"there is no suite {name!r}", f"There are: {', '.join(NAMES)}.", ["suite"])
    from bashgym.envs import terminal

    return terminal.INSTRUCT_PROMPT if name == "terminal-instruct" else terminal.SYSTEM_PROMPT


def score_items(
    suite: Suite,
    completions: Sequence[Completion],
    *,
    workers: int | None = None,
    on_scored: Callable[[list[Score]], None] = lambda _: None,
) -> list[Score]:
    """A score for each completion, in their order, several sandboxes at once. `on_scored` gets them in parts.

    `eval_incomplete` for a completion of an item that the suite lacks; `sandbox_unavailable` before any is run.
    """
    from bashgym.envs import sandbox

    sandbox.require()
    items = {item.item_id: item for item in suite.items}
    if unknown := sorted({done.item_id for done in completions} - items.keys()):
        raise fail("eval_incomplete", f"the suite has no item {unknown[0]!r} ({len(unknown)} such)")
    scores: list[Score] = []
    # More threads than CPUs, as each mostly waits for its sandbox.
    pool = ThreadPoolExecutor(workers or (os.cpu_count() or 1) + 1, thread_name_prefix="judge")
    try:
        pending: list[Future[Score]] = [pool.submit(_score, items[done.item_id], done) for done in completions]
        for start in range(0, len(pending), _CHUNK):
            part = [future.result() for future in pending[start : start + _CHUNK]]
            scores += part
            on_scored(part)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return scores


def _item(task: TerminalTask, system: str) -> Item:
    user = {"role": "user", "content": task.instruction}
    turns = ({"role": "system", "content": system}, user) if system else (user,)
    return Item(task.task_id, task.family, turns, task)


def _in_turn(items: Sequence[Item]) -> Iterator[Item]:
    """First items of all clusters, then second ones, and so on."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.cluster, []).append(item)
    for row in zip_longest(*groups.values()):
        yield from (item for item in row if item is not None)


def _score(item: Item, done: Completion) -> Score:
    passed: bool | None = None
    reward: float | None = None
    try:
        from bashgym.envs import terminal

        result = terminal.judge(item.payload, done.completion)
        status, detail = str(result.verifier_status), result.detail
        if result.verifier_status != "reward_error":
            passed, reward = result.passed, result.reward
    except (BashGymError, OSError) as error:
        status, detail = "error", str(error)
    return Score(
        item_id=item.item_id,
        cluster=item.cluster,
        attempt=done.attempt,
        seed=done.seed,
        passed=passed,
        score=reward,
        status=status,
        prompt=list(item.messages),
        completion=done.completion,
        finish_reason=done.finish_reason,
        detail=detail[:500],
    )
