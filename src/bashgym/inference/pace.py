"""How many requests are under way: additive increase, multiplicative decrease, as TCP shares a line it does not know.

Owns the count and the queue before it. Does not send, and does not know why an answer meant "too much".
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

START = 64
"""Requests under way at first; each good answer adds one until the endpoint first says that it is too much."""
SHRINK = 0.5


@dataclass
class Pace:
    """For one event loop. Every `enter` needs its `leave`."""

    most: int
    limit: float = field(init=False)
    """How many may be under way now, 1 to `most`."""

    def __post_init__(self) -> None:
        self.most = max(1, self.most)
        self.limit = float(min(START, self.most))
        self._under_way, self._entered, self._shrunk_at = 0, 0, 0
        self._starting = True
        self._held_until = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> int:
        """Waits for a place, and for the end of a `hold`; the ticket goes to `leave`."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        self._admit()
        try:
            await place
            while (left := self._held_until - loop.time()) > 0:
                await asyncio.sleep(left)
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._under_way -= 1
                self._admit()
            raise
        self._entered += 1
        return self._entered

    def leave(self, ticket: int, *, crowded: bool, answered: bool) -> None:
        """Gives the place back. Requests that were under way at the last decrease do not cause another."""
        self._under_way -= 1
        if crowded:
            if ticket > self._shrunk_at:
                self.limit = max(1.0, self.limit * SHRINK)
                self._shrunk_at, self._starting = self._entered, False
        elif answered and self._under_way + 1 >= int(self.limit):  # a limit that nobody reaches proves nothing
            self.limit = min(float(self.most), self.limit + (1.0 if self._starting else 1.0 / self.limit))
        self._admit()

    def hold(self, seconds: float) -> None:
        """Nobody new enters for this long: the endpoint named a time."""
        self._held_until = max(self._held_until, asyncio.get_running_loop().time() + seconds)

    def _admit(self) -> None:
        while self._waiting and self._under_way < int(self.limit):
            place = self._waiting.popleft()
            if not place.done():
                self._under_way += 1
                place.set_result(None)
