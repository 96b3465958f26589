"""One shell command in a bubblewrap sandbox, or a typed error. Never the bare host, and no deny-list of commands.

Covers: no network (own network namespace); no host files but /usr, read-only, and a made-up /etc; no home, no host
environment, processes or keyrings; own /tmp and /dev/shm, bounded and gone afterwards; only `workdir`, at /work, is
writable and stays; /proc is read-only. No capabilities, no nested user namespaces, no controlling terminal, no system
call that `seccomp` refuses; the user inside is 1000. Wall time and kept output are bounded, and when the call returns,
every process that the command started is dead.
By the kernel, per process: address space (RLIMIT_AS), CPU time, file size, open files. Processes: RLIMIT_NPROC, set
inside the user namespace, where Linux >= 5.14 counts for that namespace alone. Started as root, the sandbox first
becomes an unprivileged host user, because the kernel does not count root's processes.
By samples, ten a second: resident memory of all processes together and disk use of `workdir`; a burst overshoots.
Does not cover: faults of kernel and hardware (the filter names a few calls, it is no allow-list), what one command's
processes do to each other by signals and files, timing side channels, secrets kept below /usr, load on the host's CPU
and disk. If our own process is killed, the sandbox dies with it, but its folders stay.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from subprocess import SubprocessError

import msgspec

from bashgym.core.errors import fail
from bashgym.envs import seccomp
from bashgym.envs.process import Outcome, Plan, Stop, execute

UID = 1000
"""User and group inside the sandbox."""
HOST_UID = 64_742
"""User and group on the host when started by root: no account of a distribution has it."""
WORK = "/work"
APP = "/app"
"""Where the tasks of other suites expect the workspace: a link to it."""
MAX_COMMAND_BYTES = 100_000
"""A longer command would not fit one argv element."""

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own, empty at each start
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "USER": "user",
    "PYTHONDONTWRITEBYTECODE": "1",
}

_MIB = 1 << 20
_ETC = {
    "/etc/passwd": b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n",
    "/etc/group": b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
}
_HOST_ETC = ("/etc/alternatives", "/etc/ld.so.cache")
_TOP = ("bin", "sbin", "lib", "lib64", "lib32")

# The command arrives as an argument and is never part of this text. The limits are set here, inside the user namespace.
_LAUNCHER = """\
umask 022
ulimit -c 0 -u "$1" -v "$2" -t "$3" -f "$4" -n "$5" || exit 125
exec bash --noprofile --norc -c "$6"
"""

_HINT = (
    "Install it with `apt install bubblewrap` (or `dnf install bubblewrap`). If it is installed, the kernel must allow "
    "user namespaces: `sysctl -w user.max_user_namespaces=10000`; where they exist, also "
    "`sysctl -w kernel.unprivileged_userns_clone=1` and `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`. "
    "In a container, its security profile must allow unshare and mount."
)


class Limits(msgspec.Struct, frozen=True):
    """What one command may use."""

    wall_s: float = 10.0
    cpu_s: int = 10
    """Per process."""
    memory_bytes: int = 512 * _MIB
    """Address space per process, and resident memory of all of them together."""
    processes: int = 64
    file_bytes: int = 64 * _MIB
    """Per file."""
    disk_bytes: int = 256 * _MIB
    """Of the workspace."""
    tmp_bytes: int = 64 * _MIB
    """Each of the two bounded memory file systems."""
    open_files: int = 256
    output_bytes: int = 64 << 10
    """Kept of stdout and of stderr, each; more is read and dropped, up to `flood_bytes`."""
    flood_bytes: int = 32 * _MIB
    """A command that prints more than this is ended."""
    tracing: bool = True
    """Whether one process may trace another. Not beside a verifier."""


class SandboxResult(msgspec.Struct, frozen=True):
    """What a command did."""

    exit_code: int
    """Its own; 128 + n after signal n; 124 out of time; 137 ended for another limit."""
    stdout: str
    stderr: str
    stopped: Stop
    """Which limit ended it, if one did."""
    output_truncated: bool
    duration_s: float

    @property
    def timed_out(self) -> bool:
        """The wall time was up."""
        return self.stopped is Stop.TIME


class Fault(StrEnum):
    """Why a sandbox did not start, as the first word of the error's message."""

    MISSING = "bubblewrap is not installed"
    REFUSED = "bubblewrap could not make a sandbox"


def host_user() -> int | None:
    """The host uid and gid that commands run under, and that must own a workspace; None: the caller's own."""
    return HOST_UID if os.geteuid() == 0 else None


_probed = threading.Event()


def require() -> None:
    """Returns if commands can be run here; `sandbox_unavailable` with the mend if not. Proven once a process."""
    if _probed.is_set():
        return
    from bashgym.envs.workspace import temporary_workspace

    with temporary_workspace({}) as workspace:
        result = run_command("echo ok", workdir=workspace.work)
    if result.stdout != "ok\n":
        raise fail("sandbox_unavailable", f"{Fault.REFUSED}: {result.stderr.strip()[:300]}", _HINT)
    _probed.set()


def run_command(
    command: str,
    *,
    workdir: Path,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    readonly: Sequence[tuple[Path, str]] = (),
    scratch: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> SandboxResult:
    """Runs `bash -c command` with `workdir` as /work and as the current folder; it must belong to `host_user()`.

    `readonly` mounts host folders at paths of the sandbox, `scratch` makes empty bounded ones there; `env` adds to
    `ENVIRONMENT`, the host's is never passed.
    `invalid_field` for a command that no argv can hold; `sandbox_unavailable` if no sandbox could be made.
    """
    check_command(command)
    plan = Plan(
        argv=[
            *_bwrap(),
            *_mounts(workdir, readonly, scratch, limits),
            "--",
            "bash",
            "-c",
            _LAUNCHER,
            "bash",
            *_ulimits(limits),
            command,
        ],
        env={**ENVIRONMENT, **(env or {})},
        data=_ETC,
        refuse=seccomp.program(limits.tracing),
        user=host_user(),
        stdin=stdin,
        wall_s=limits.wall_s,
        keep_bytes=limits.output_bytes,
        flood_bytes=limits.flood_bytes,
        memory_bytes=limits.memory_bytes,
        disk_bytes=limits.disk_bytes,
        workdir=workdir,
    )
    try:
        return _result(execute(plan))
    except (OSError, SubprocessError) as error:
        raise fail("sandbox_unavailable", f"{Fault.REFUSED}: {error}", _HINT) from error


def check_command(command: str) -> None:
    """`invalid_field` for a command that no argv can hold."""
    raw = command.encode("utf-8", "replace")
    if b"\0" in raw or any("\ud800" <= c <= "\udfff" for c in command) or len(raw) > MAX_COMMAND_BYTES:
        raise fail(
            "invalid_field", f"a command is text without NUL of at most {MAX_COMMAND_BYTES} bytes", fields=["command"]
        )


def _result(outcome: Outcome) -> SandboxResult:
    code = outcome.exit_code
    if outcome.stopped is not Stop.NONE:
        code = 124 if outcome.stopped is Stop.TIME else 137
    elif code is None:
        reason = outcome.stderr.decode("utf-8", "replace").strip()[:300]
        raise fail("sandbox_unavailable", f"{Fault.REFUSED}: {reason or 'it was killed from outside'}", _HINT)
    return SandboxResult(
        exit_code=code or 0,
        stdout=outcome.stdout.decode("utf-8", "replace"),
        stderr=outcome.stderr.decode("utf-8", "replace"),
        stopped=outcome.stopped,
        output_truncated=outcome.truncated,
        duration_s=outcome.duration_s,
    )


@cache
def _first_for_oom() -> tuple[str, ...]:
    """Makes the kernel end the sandbox before anything else when memory is short; set outside, where /proc is writable."""
    choom = shutil.which("choom")
    return (choom, "-n", "1000", "--") if choom else ()


def _bwrap() -> tuple[str, ...]:
    path = shutil.which("bwrap")
    if path is None:
        raise fail("sandbox_unavailable", f"{Fault.MISSING} (no bwrap on PATH)", _HINT)
    return (*_first_for_oom(), path)


def _ulimits(limits: Limits) -> list[str]:
    """The launcher's $1 to $5, in the units of bash's ulimit."""
    values = (limits.processes, limits.memory_bytes >> 10, limits.cpu_s, limits.file_bytes >> 10, limits.open_files)
    return [str(value) for value in values]


def _mounts(workdir: Path, readonly: Sequence[tuple[Path, str]], scratch: Sequence[str], limits: Limits) -> list[str]:
    tmp = str(limits.tmp_bytes)
    args = [*_fixed_mounts(), "--size", tmp, "--perms", "0755", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    args += ["--size", tmp, "--perms", "1777", "--tmpfs", "/tmp", "--bind", str(workdir), WORK]  # noqa: S108
    for source, target in readonly:
        args += ["--ro-bind", str(source), target]
    for target in scratch:
        args += ["--size", tmp, "--perms", "1777", "--tmpfs", target]
    return [*args, "--remount-ro", "/", "--chdir", WORK]


@cache
def _fixed_mounts() -> tuple[str, ...]:
    args = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--uid",
        str(UID),
        "--gid",
        str(UID),
        "--cap-drop",
        "ALL",
    ]
    args += ["--hostname", "sandbox", "--new-session", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    for name in _TOP:
        top = Path("/", name)
        if top.is_symlink():
            args += ["--symlink", os.readlink(top), str(top)]
        elif top.is_dir():
            args += ["--ro-bind", str(top), str(top)]
    args += ["--symlink", WORK, APP, "--perms", "0755", "--dir", "/etc"]
    for path in _HOST_ETC:
        args += ["--ro-bind-try", path, path]
    return (*args, "--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev")
