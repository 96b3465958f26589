"""Who a process is. A pid alone is not an identity: it is trusted only with its start time and boot id.

Linux (/proc). Elsewhere start time and boot id are empty and only the liveness of the pid is known.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """One process on one host in one boot."""

    host: str
    pid: int
    start_ticks: int
    boot_id: str

    def as_dict(self) -> dict[str, object]:
        """Plain JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, object]) -> ProcessIdentity:
        """The inverse of `as_dict`; KeyError or ValueError on foreign content."""
        return cls(str(value["host"]), int(str(value["pid"])), int(str(value["start_ticks"])), str(value["boot_id"]))


def boot_id() -> str:
    """The kernel's id of this boot, or empty."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat_fields(pid: int) -> list[str]:
    # The command name may hold spaces and parentheses; everything after the last ')' is regular.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def start_ticks(pid: int) -> int:
    """Clock ticks after boot at which `pid` started; 0 if unknown."""
    try:
        return int(_stat_fields(pid)[19])
    except (OSError, IndexError, ValueError):
        return 0


def identity(pid: int | None = None) -> ProcessIdentity:
    """The identity of `pid`, by default of this process."""
    pid = os.getpid() if pid is None else pid
    return ProcessIdentity(socket.gethostname(), pid, start_ticks(pid), boot_id())


def is_alive(who: ProcessIdentity) -> bool:
    """True if exactly this process runs here now. A zombie does not run; a reused pid is a stranger.

    A killed process whose first thread is gone runs on until its last one is: until then it keeps its locks.
    """
    if who.host != socket.gethostname() or who.boot_id != boot_id():
        return False
    try:
        fields = _stat_fields(who.pid)
        gone = fields[0] in ("Z", "X") and int(fields[17]) <= 1  # num_threads, proc(5)
        return not gone and int(fields[19]) == who.start_ticks
    except (OSError, IndexError, ValueError):
        return False


def end_group(who: ProcessIdentity, grace_s: float) -> None:
    """Ends the process group that `who` leads: SIGTERM, then SIGKILL after `grace_s`. A stranger is left alone."""
    if not is_alive(who):
        _signal_group(who.pid, signal.SIGKILL, who)
        return
    _signal_group(who.pid, signal.SIGTERM, who)
    end = time.monotonic() + grace_s
    while time.monotonic() < end and is_alive(who):
        time.sleep(0.05)
    _signal_group(who.pid, signal.SIGKILL, who)


def _signal_group(pgid: int, number: int, leader: ProcessIdentity) -> None:
    """Signals the group if its leader is `leader` or gone (left-over children); never another group."""
    current = start_ticks(pgid)
    if leader.host != socket.gethostname() or leader.boot_id != boot_id() or current not in (0, leader.start_ticks):
        return
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return
