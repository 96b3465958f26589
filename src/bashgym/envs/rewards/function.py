"""A user's own reward function, in worker processes that outlive its calls but not its faults.

Owns the workers; which function a request names is `data.reward_function`'s. A call that raises, hangs, ends its process
or returns no finite number has no verdict (status error, reward None) and says why; the next one starts afresh. The
function gets a copy of its input, its output is dropped, and what it started dies with its worker, unless it left the
process group.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from bashgym.core.errors import fail
from bashgym.data.reward_function import FIELD, split
from bashgym.envs.rewards.types import RewardItem, RewardResult, RewardStatus

LOAD_S = 120.0
"""For the import of the user's file, which may import torch."""
MAX_REPLY = 1 << 20


class FunctionPool:
    """Workers of one function; `judge` may be called from several threads at a time."""

    def __init__(self, mode: str, timeout_s: float, workers: int) -> None:
        """Starts the first worker, the others when they are needed. `invalid_field` if the file cannot be loaded."""
        path, name = split(mode)
        self._argv, self._timeout_s = [str(path.absolute()), name], timeout_s
        self._idle: queue.Queue[_Worker | None] = queue.Queue()
        try:
            self._idle.put(_Worker(self._argv))
        except _Fault as fault:
            raise fail("invalid_field", f"{FIELD}: {path} cannot be loaded: {fault}", fields=[FIELD]) from None
        for _ in range(workers - 1):
            self._idle.put(None)

    def judge(self, item: RewardItem) -> RewardResult:
        """What the function says; parts of a dict are added up."""
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker(self._argv)
            parts = worker.call(item, self._timeout_s)
        except _Fault as fault:
            if fault.fatal and worker is not None:
                worker.end()
                worker = None
            return RewardResult(None, {}, RewardStatus.ERROR, str(fault))
        finally:
            self._idle.put(worker)
        reward = sum(parts.values())
        if not math.isfinite(reward):
            return RewardResult(None, {}, RewardStatus.ERROR, "the sum of the parts is not finite")
        named = {name or "function": value for name, value in parts.items()}
        return RewardResult(reward, named, RewardStatus.PASSED if reward > 0 else RewardStatus.FAILED)

    def close(self) -> None:
        """Ends the idle workers; call it when no `judge` is running."""
        with contextlib.suppress(queue.Empty):
            while True:
                if worker := self._idle.get_nowait():
                    worker.end()


class _Fault(Exception):
    """The function gave no verdict. `fatal`: its process cannot be used any more."""

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fatal = fatal


class _Worker:
    """One process of the function, and the socket to it."""

    def __init__(self, argv: list[str]) -> None:
        self._channel, theirs = socket.socketpair()
        self._buffer, self._calls = b"", 0
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bashgym.envs.rewards.host", str(theirs.fileno()), *argv],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            loaded = self._reply(0, time.monotonic() + LOAD_S, f"loading {argv[0]} took over {LOAD_S:g} s")
            if loaded["error"]:
                raise _Fault(str(loaded["error"]), fatal=True)
        except _Fault:
            self.end()
            raise

    def call(self, item: RewardItem, timeout_s: float) -> dict[str, float]:
        """The parts that the function returns; `_Fault` if it does not."""
        self._calls += 1
        deadline = time.monotonic() + timeout_s
        call = {"id": self._calls, "prompt": item.prompt, "completion": item.completion, "row": item.row}
        self._channel.settimeout(timeout_s)
        try:
            self._channel.sendall(json.dumps(call).encode() + b"\n")
        except OSError as error:
            raise _Fault(f"its process ended: {error}", fatal=True) from None
        reply = self._reply(self._calls, deadline, f"it took over {timeout_s:g} s")
        if "error" in reply:
            raise _Fault(str(reply["error"]), fatal=False)
        return {str(name): float(value) for name, value in reply["parts"].items()}

    def _reply(self, number: int, deadline: float, late: str) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._channel], [], [], left)[0]:
                raise _Fault(late, fatal=True)
            try:
                chunk = self._channel.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk or len(self._buffer) > MAX_REPLY:
                raise _Fault("its process ended, or said too much", fatal=True)
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            reply: dict[str, Any] = json.loads(line)
            if reply["id"] == number:
                return reply
        except (ValueError, KeyError, TypeError):
            pass
        raise _Fault("its process answered out of turn", fatal=True)

    def end(self) -> None:
        """Kills the process and what it started in its group."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
