"""Runs one bubblewrap process: bounded reading, deadlines, and the certainty that nothing survives it.

Owns the process and its pipes. Which mounts and limits make a sandbox is `sandbox`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from bashgym.envs import watch

SAMPLE_S = 0.1
"""Between two samples of memory and disk use."""
REAP_S = 10.0
"""How long the kernel may take to end a killed namespace."""
_CHUNK = 64 << 10


class Stop(StrEnum):
    """The limit that ended a command."""

    NONE = "none"
    TIME = "time"
    OUTPUT = "output"
    MEMORY = "memory"
    DISK = "disk"
    REFUSED = "refused"
    """It was never started."""


@dataclass(frozen=True)
class Plan:
    """One start of bubblewrap. `argv` lacks the descriptors, which are added here."""

    argv: list[str]
    env: Mapping[str, str]
    data: Mapping[str, bytes]
    """Files made inside the sandbox: path -> content."""
    refuse: bytes
    """The seccomp program; empty for none."""
    user: int | None
    """Host uid and gid to become first."""
    stdin: bytes
    wall_s: float
    keep_bytes: int
    flood_bytes: int
    memory_bytes: int
    disk_bytes: int
    workdir: Path


@dataclass
class Outcome:
    """What came out. `exit_code` is None if the sandbox was never made, or was killed."""

    exit_code: int | None = None
    stopped: Stop = Stop.NONE
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    duration_s: float = 0.0


@dataclass
class _Stream:
    """One pipe: what is kept of it, and how much came."""

    fd: int
    keep: int
    kept: bytearray = field(default_factory=bytearray)
    seen: int = 0

    def read(self) -> bool:
        """Reads once; False at the end."""
        chunk = os.read(self.fd, _CHUNK)
        self.kept += chunk[: max(0, self.keep - len(self.kept))]
        self.seen += len(chunk)
        return bool(chunk)


def execute(plan: Plan) -> Outcome:
    """Runs `plan` to its end or to a limit. On return, exceptions included, no process of the sandbox is left."""
    begin = time.monotonic()
    with _Run(plan) as run:
        stopped = run.watch(begin + plan.wall_s)
        run.end()
        outcome = run.outcome(stopped)
    outcome.duration_s = time.monotonic() - begin
    return outcome


class _Run:
    """The running process. bubblewrap's status pipe tells the pid of its init, whose death is everyone's inside."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.init_fd: int | None = None
        self.init_pid = 0
        with contextlib.ExitStack() as opened:
            given = [self._memory_file(opened, content) for content in plan.data.values()]
            stdin = self._memory_file(opened, plan.stdin) if plan.stdin else subprocess.DEVNULL
            status, status_end = os.pipe()
            opened.callback(os.close, status_end)
            extra = ["--json-status-fd", str(status_end)]
            for fd, path in zip(given, plan.data, strict=True):
                extra += ["--perms", "0644", "--ro-bind-data", str(fd), path]
            if plan.refuse:
                given.append(self._memory_file(opened, plan.refuse))
                extra += ["--seccomp", str(given[-1])]
            at = plan.argv.index("--remount-ro")
            try:
                self.process = subprocess.Popen(
                    [*plan.argv[:at], *extra, *plan.argv[at:]],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=dict(plan.env),
                    cwd="/",
                    pass_fds=(status_end, *given),
                    start_new_session=True,
                    user=plan.user,
                    group=plan.user,
                    extra_groups=None if plan.user is None else [],
                )
            except BaseException:
                os.close(status)
                raise
        assert self.process.stdout is not None and self.process.stderr is not None  # noqa: S101 - both are PIPE
        self.status = _Stream(status, 4096)
        self.streams = [_Stream(pipe.fileno(), plan.keep_bytes) for pipe in (self.process.stdout, self.process.stderr)]

    @staticmethod
    def _memory_file(opened: contextlib.ExitStack, content: bytes) -> int:
        fd = os.memfd_create("bashgym")
        opened.callback(os.close, fd)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            os.close(self.status.fd)
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()
            if self.init_fd is not None:
                os.close(self.init_fd)

    def watch(self, deadline: float) -> Stop:
        """Reads until bubblewrap is gone (its end of the status pipe closes) or a limit is passed."""
        next_sample = time.monotonic() + SAMPLE_S
        with selectors.DefaultSelector() as selector:
            for stream in (self.status, *self.streams):
                selector.register(stream.fd, selectors.EVENT_READ, stream)
            while True:
                for key, _ in selector.select(max(0.0, min(deadline, next_sample) - time.monotonic())):
                    if not key.data.read():
                        selector.unregister(key.fd)
                    if key.data is self.status and not self._follow_status(key.fd in selector.get_map()):
                        return Stop.NONE
                if sum(stream.seen for stream in self.streams) > self.plan.flood_bytes:
                    return Stop.OUTPUT
                now = time.monotonic()
                if now >= deadline:
                    return Stop.TIME
                if now >= next_sample:
                    if (stopped := self._sample()) is not Stop.NONE:
                        return stopped
                    # A workspace of many files makes samples dear: they never take more than a fifth of the time.
                    next_sample = time.monotonic() + max(SAMPLE_S, 4 * (time.monotonic() - now))

    def _follow_status(self, still_open: bool) -> bool:
        """Takes hold of the init process as soon as its pid is known."""
        if self.init_fd is None and (pid := self._status_value("child-pid")):
            self.init_pid = pid
            with contextlib.suppress(ProcessLookupError):
                self.init_fd = os.pidfd_open(pid)
        return still_open

    def _status_value(self, name: str) -> int | None:
        for line in bytes(self.status.kept).split(b"\n"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if name in value:
                    return int(value[name])
        return None

    def _sample(self) -> Stop:
        if self.init_pid and watch.memory_bytes(self.init_pid) > self.plan.memory_bytes:
            return Stop.MEMORY
        return Stop.DISK if watch.disk_bytes(self.plan.workdir) > self.plan.disk_bytes else Stop.NONE

    def end(self) -> None:
        """Kills what is left and waits until the kernel has ended the whole namespace."""
        if self.init_fd is None:
            self._follow_status(True)
        if self.process.poll() is None:
            self.process.kill()
        if self.init_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.init_fd, signal.SIGKILL)
            with selectors.DefaultSelector() as selector:
                selector.register(self.init_fd, selectors.EVENT_READ)
                selector.select(REAP_S)
        self.process.wait()

    def outcome(self, stopped: Stop) -> Outcome:
        """What is still in the pipes, and the exit code. Nobody holds a writing end any more."""
        for stream in (self.status, *self.streams):
            os.set_blocking(stream.fd, False)
            with contextlib.suppress(BlockingIOError):
                while stream.read():
                    pass
        out, err = self.streams
        return Outcome(
            exit_code=self._status_value("exit-code"),
            stopped=stopped,
            stdout=bytes(out.kept),
            stderr=bytes(err.kept),
            truncated=any(stream.seen > stream.keep for stream in self.streams),
        )
