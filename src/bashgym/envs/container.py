"""Commands in a container, for environments that bring an image: Docker or Podman, whichever answers.

Each command is a container of its own: no network unless the environment asks for one, no capabilities, not root, bounded memory,
processes and output. The workspace is mounted at /work and where the image works; what a command leaves elsewhere is gone. The
image's own working folder is copied into the workspace first. BASHGYM_CONTAINER names another engine, with arguments if it needs
any (`podman --runtime runc`). Does not cover: faults of the engine; an image is somebody else's code and is built as such.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bashgym.core.errors import fail
from bashgym.envs.process import Stop
from bashgym.envs.sandbox import WORK, Limits, SandboxResult, check_command, host_user
from bashgym.envs.spec import EnvironmentSpec

BUILD_S = 1800.0
KILL_S = 20.0
_HINT = "Install Docker or Podman, or name one in BASHGYM_CONTAINER (`podman --runtime runc`)."


def wants_container(spec: EnvironmentSpec) -> bool:
    """Whether the environment brings an image, or needs a network, which bubblewrap here never has."""
    build = spec.build
    return bool(build.base_image or build.context_dir or build.compose_file) or not build.network_disabled


def engine() -> list[str]:
    """The argv of an engine that answers; `container_unavailable` if none does."""
    named = os.environ.get("BASHGYM_CONTAINER")
    tried = [shlex.split(named)] if named else [["docker"], ["podman"]]
    for argv in tried:
        if argv and shutil.which(argv[0]):
            done = subprocess.run([*argv, "version"], capture_output=True, check=False, timeout=60)
            if done.returncode == 0:
                return argv
    raise fail(
        "container_unavailable", f"no container engine works: tried {', '.join(a[0] for a in tried if a)}", _HINT
    )


@dataclass(frozen=True)
class Container:
    """An image that is here, and how commands run in it."""

    engine: tuple[str, ...]
    image: str
    workdir: str
    """Where the image works; the workspace stands there too."""
    network: bool
    own_folder: bool = True
    """Whether the image names a working folder, whose files belong to the task."""

    @staticmethod
    def check(spec: EnvironmentSpec) -> list[str]:
        """The engine; `container_unavailable` or `environment_invalid` for what needs no engine to be refused."""
        build = spec.build
        if build.compose_file:
            raise fail("container_unavailable", f"{spec.id}: compose files are not run", fields=["build.compose_file"])
        if build.context_dir and not (Path(build.context_dir) / build.dockerfile).is_file():
            message = f"{spec.id}: {build.context_dir} has no {build.dockerfile}"
            raise fail("environment_invalid", message, fields=["build"])
        return engine()

    @classmethod
    def of(cls, spec: EnvironmentSpec) -> Container:
        """The environment's image, built if it has a Dockerfile. `container_unavailable`, or `environment_invalid` if the
        image cannot be had."""
        build, argv = spec.build, cls.check(spec)
        image = build.base_image
        if build.context_dir:
            image = _built(argv, spec)
        shown = _engine(argv, ["image", "inspect", "--format", "{{.Config.WorkingDir}}", image])
        if shown.returncode:
            pulled = _engine(argv, ["pull", "-q", image])
            if pulled.returncode:
                raise _no_image(spec, pulled.stderr)
            shown = _engine(argv, ["image", "inspect", "--format", "{{.Config.WorkingDir}}", image])
        workdir = shown.stdout.decode().strip()
        own = workdir not in ("", "/")
        return cls(tuple(argv), image, workdir if own else WORK, not build.network_disabled, own)

    def fill(self, work: Path) -> None:
        """Copies the image's working folder into an empty workspace."""
        if not self.own_folder:
            return
        made = _engine(self.engine, ["create", self.image, "true"])
        name = made.stdout.decode().strip()
        if made.returncode:
            return
        try:
            _engine(self.engine, ["cp", f"{name}:{self.workdir}/.", str(work)])
        finally:
            _engine(self.engine, ["rm", "-f", name])
        if (user := host_user()) is not None:
            for path in (work, *work.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)

    def run(
        self,
        command: str,
        *,
        workdir: Path,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        readonly: Sequence[tuple[Path, str]] = (),
        scratch: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> SandboxResult:
        """As `sandbox.run_command`, in a container."""
        check_command(command)
        name = f"bashgym-{uuid.uuid4().hex[:16]}"
        begin = time.monotonic()
        argv = [*self.engine, "run", "--rm", "--name", name, *self._options(workdir, limits, readonly, scratch)]
        argv += [f"--env={key}={value}" for key, value in (env or {}).items()]
        process = subprocess.Popen(
            [*argv, self.image, "bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None  # noqa: S101 - both are PIPE
        flooded = threading.Event()
        streams = [_Stream(pipe, limits, flooded) for pipe in (process.stdout, process.stderr)]
        stopped = self._wait(process, begin + limits.wall_s, flooded)
        if stopped is not Stop.NONE:
            _engine(self.engine, ["rm", "-f", name])
            process.kill()
        code = process.wait()
        for stream in streams:
            stream.thread.join(KILL_S)
        code = 124 if stopped is Stop.TIME else 137 if stopped is Stop.OUTPUT else code
        return SandboxResult(
            exit_code=code,
            stdout=streams[0].text(),
            stderr=streams[1].text(),
            stopped=stopped,
            output_truncated=any(stream.cut for stream in streams),
            duration_s=time.monotonic() - begin,
        )

    def _options(
        self, workdir: Path, limits: Limits, readonly: Sequence[tuple[Path, str]], scratch: Sequence[str]
    ) -> list[str]:
        user = host_user() or os.getuid()
        mounts = [(workdir, place, "") for place in dict.fromkeys((WORK, self.workdir))]
        for source, target in readonly:
            # What is read-only at /work is so at the image's own name of the same folder.
            same = [target.replace(WORK, self.workdir, 1)] if target.startswith(f"{WORK}/") else []
            mounts += [(source, place, ":ro") for place in dict.fromkeys((target, *same))]
        return [
            f"--network={'bridge' if self.network else 'none'}",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            f"--user={user}:{user}",
            f"--pids-limit={limits.processes}",
            f"--memory={limits.memory_bytes}",
            f"--ulimit=cpu={limits.cpu_s}:{limits.cpu_s}",
            f"--ulimit=nofile={limits.open_files}:{limits.open_files}",
            f"--ulimit=nproc={limits.processes}:{limits.processes}",
            f"--ulimit=fsize={limits.file_bytes}:{limits.file_bytes}",
            f"--workdir={self.workdir}",
            *(f"--volume={source}:{target}{mode}" for source, target, mode in mounts),
            *(
                f"--mount=type=tmpfs,destination={target},tmpfs-size={limits.tmp_bytes},tmpfs-mode=1777"
                for target in ("/tmp", *scratch)  # noqa: S108 - the container's own
            ),
        ]

    @staticmethod
    def _wait(process: subprocess.Popen[bytes], deadline: float, flooded: threading.Event) -> Stop:
        while process.poll() is None:
            if flooded.is_set():
                return Stop.OUTPUT
            if time.monotonic() >= deadline:
                return Stop.TIME
            time.sleep(0.02)
        return Stop.NONE


class _Stream:
    """Reads one pipe to its end, keeping what the limits allow."""

    def __init__(self, pipe: IO[bytes], limits: Limits, flooded: threading.Event) -> None:
        self._pipe, self._limits, self._flooded = pipe, limits, flooded
        self._kept, self.cut, self._seen = bytearray(), False, 0
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self._pipe:
            while chunk := self._pipe.read1(65_536):  # type: ignore[attr-defined]
                self._seen += len(chunk)
                self._kept += chunk[: max(0, self._limits.output_bytes - len(self._kept))]
                if self._seen > self._limits.flood_bytes:
                    self._flooded.set()
        self.cut = self._seen > len(self._kept)

    def text(self) -> str:
        """What was kept."""
        return bytes(self._kept).decode("utf-8", "replace")


def _built(argv: Sequence[str], spec: EnvironmentSpec) -> str:
    context = Path(spec.build.context_dir)
    network = [] if not spec.build.network_disabled else ["--network=none"]
    done = _engine(argv, ["build", "-q", *network, "-f", str(context / spec.build.dockerfile), str(context)], BUILD_S)
    if done.returncode:
        raise _no_image(spec, done.stderr)
    return done.stdout.decode().strip().splitlines()[-1]


def _no_image(spec: EnvironmentSpec, said: bytes) -> Exception:
    text = said.decode("utf-8", "replace").strip()[-300:]
    return fail("environment_invalid", f"{spec.id}: its image cannot be had: {text}", fields=["build"])


def _engine(argv: Sequence[str], rest: list[str], timeout: float = 600.0) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run([*argv, *rest], capture_output=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise fail("container_unavailable", f"{argv[0]} {rest[0]} took over {timeout:.0f} s", _HINT) from error
