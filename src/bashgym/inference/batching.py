"""Requests that wait for the model, decoded in batches by one thread. Imports torch through the engine.

What is decoded together has the same sampling; each answer draws from its own seed, so its company changes it by no
more than the last bits of the logits do. A request that is cancelled, or was answered by a stop text, leaves its batch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from bashgym.core.errors import fail
from bashgym.inference.local import Engine, Generated, Row, Sampling

MAX_BATCH = 64
MAX_WAITING = 1024
_GATHER_S = 0.002
"""The first request of a batch waits this long for company."""


@dataclass(eq=False)
class Work:
    """One answer to make. With `sampling` None the prompt is only scored."""

    prompt: list[int]
    seed: int
    sampling: Sampling | None
    max_tokens: int
    stop: tuple[str, ...] = ()
    alternatives: int = 0
    """For scoring: likeliest tokens kept at each place."""
    on_token: Callable[[Row], None] | None = None
    """Called in the model's thread."""
    done: Future[Any] = field(default_factory=Future)
    """`Answer`, or a `Row` for scoring."""


@dataclass(frozen=True)
class Answer:
    """A finished answer."""

    text: str
    finish_reason: str
    row: Row


class Batcher:
    """Owns the thread that the model runs in."""

    def __init__(self, engine: Engine, max_batch: int = MAX_BATCH) -> None:
        self._engine, self._max_batch = engine, max_batch
        self._waiting: deque[Work] = deque()
        self._news = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def submit(self, work: list[Work]) -> None:
        """Adds work; `backend_unavailable` if too much waits already."""
        with self._news:
            if self._closing or len(self._waiting) + len(work) > MAX_WAITING:
                raise fail("backend_unavailable", "too many requests wait for the model")
            self._waiting.extend(work)
            self._news.notify()

    def close(self) -> None:
        """Ends the batch under way at its next token, and the thread with it."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closing:
            batch = self._next()
            try:
                self._finish(batch)
            except Exception as error:  # noqa: BLE001  the boundary of a batch: whoever waits for it is told
                for work in batch:
                    if not work.done.done() and work.done.set_running_or_notify_cancel():
                        work.done.set_exception(error)
        for work in self._waiting:
            work.done.cancel()

    def _next(self) -> list[Work]:
        """The oldest request and what goes with it; empty where there is none."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._closing)
        time.sleep(_GATHER_S)
        with self._news:
            waiting = [work for work in self._waiting if not work.done.cancelled()]
            same = [work for work in waiting if _key(work) == _key(waiting[0])]
            batch = same[: self._max_batch if waiting and waiting[0].sampling else 1]
            taken = set(map(id, batch))
            self._waiting = deque(work for work in waiting if id(work) not in taken)
            return batch

    def _finish(self, batch: list[Work]) -> None:
        if not batch:
            return
        first = batch[0]
        if first.sampling is None:
            _resolve(first, self._engine.score(first.prompt, first.alternatives))
            return
        longest = max(work.max_tokens for work in batch)
        sampling = Sampling(longest, first.sampling.temperature, first.sampling.top_p, first.sampling.alternatives)
        prompts, seeds = [work.prompt for work in batch], [work.seed for work in batch]
        made = self._engine.decode(prompts, seeds, sampling, lambda at, row: self._ends(batch[at], row))
        for work, answer in zip(batch, made, strict=True):
            _resolve(work, self._cut(work, answer))

    def _ends(self, work: Work, row: Row) -> bool:
        if work.on_token is not None:
            work.on_token(row)
        if self._closing or work.done.cancelled() or len(row.ids) >= work.max_tokens:
            return True
        if not work.stop:
            return False
        # A token holds at least one byte, a character at most four: the stop text is in the last tokens if it is new.
        tail = self._engine.text(row.ids[-4 * max(map(len, work.stop)) - 8 :])
        return any(stop in tail for stop in work.stop)

    @staticmethod
    def _cut(work: Work, made: Generated) -> Answer:
        at = min((place for stop in work.stop if (place := made.text.find(stop)) >= 0), default=-1)
        if at >= 0:
            return Answer(made.text[:at], "stop", made.row)
        return Answer(made.text, made.finish_reason, made.row)


def _key(work: Work) -> object:
    sampling = work.sampling
    return sampling and (sampling.temperature, sampling.top_p, sampling.alternatives)


def _resolve(work: Work, value: object) -> None:
    if work.done.set_running_or_notify_cancel():
        work.done.set_result(value)
