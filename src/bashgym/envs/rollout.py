"""One episode: a fresh workspace, the model's commands one by one, then the verdict. All of it runs in the sandbox.

The verifier and private fixtures are not in the workspace, nor mounted, while the model acts. Protected files are
fingerprinted from outside: before the first command, after the last one, and once more after the verifier.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.envs.container import Container, wants_container
from bashgym.envs.process import Stop
from bashgym.envs.sandbox import MAX_COMMAND_BYTES, Limits, host_user
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.verdict import Verdict, VerifierStatus, judge_workspace
from bashgym.envs.workspace import KEPT, Workspace, fingerprints, temporary_workspace, write_files

OBSERVATION_CHARS = 8_000
"""Of stdout and of stderr, each, kept in a step: the beginning and the end."""


class ExitCode:
    """Exit codes of steps that did not come from the command itself."""

    UNPARSABLE = 2
    TIMEOUT = 124
    BLOCKED = 126
    MODEL_ERROR = 502


class Step(msgspec.Struct, frozen=True):
    """One command and what it showed."""

    command: str
    exit_code: int
    stdout: str
    stderr: str
    stopped: Stop
    """What ended it or kept it from running, or `none`."""
    truncated: bool
    duration_s: float


class EpisodeResult(msgspec.Struct, frozen=True):
    """One attempt at one environment. `passed` is true only with status `passed`."""

    environment_id: str
    passed: bool
    reward: float
    verifier_status: VerifierStatus
    steps: tuple[Step, ...]
    duration_s: float
    reward_components: dict[str, float] = {}
    detail: str = ""
    """Why, where the status alone does not say it."""


def run_episode(
    spec: EnvironmentSpec,
    commands: Sequence[str],
    *,
    workspace_root: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> EpisodeResult:
    """Runs `commands` in turn and judges the workspace that they leave; an empty list judges the untouched one.

    `limits` bounds each command; its wall time is the spec's `bash_timeout_sec` where that is shorter. Deadlines,
    floods and refusals are statuses. Errors: `environment_invalid` (it cannot be run here), `sandbox_unavailable`.
    """
    with Episode(spec, workspace_root=workspace_root, limits=limits) as episode:
        for command in commands:
            if episode.run(command) is None or len(episode.steps) > episode.allowed:
                break
        return episode.judge()


class Episode:
    """An attempt command by command: `run` as often as wanted, then `judge` once; `close` removes the workspace.

    Time is what commands take, set-up included: how long the model thinks between two of them does not count.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        *,
        workspace_root: Path | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        max_commands: int | None = None,
    ) -> None:
        """Errors: as `run_episode`. `max_commands` lowers the spec's own limit."""
        begin = time.monotonic()
        self.spec = spec if spec.id else spec.validated()
        check_runnable(self.spec)
        own = min(self.spec.rollout.max_steps, self.spec.rollout.max_tool_calls)
        self.allowed = own if max_commands is None else min(own, max_commands)
        self.steps: list[Step] = []
        self._limits, self._timed_out = limits, False
        withheld = self.spec.withheld()
        shown = {path: text for path, text in self.spec.files.items() if path not in withheld}
        with ExitStack() as opened:
            container = Container.of(self.spec) if wants_container(self.spec) else None
            self._workspace = opened.enter_context(temporary_workspace({} if container else shown, workspace_root))
            if container is not None:
                container.fill(self._workspace.work)
                write_files(self._workspace.work, shown, host_user())
                self._workspace = replace(self._workspace, run=container.run)
            _set_up(self.spec, self._workspace, limits)
            self._before = fingerprints(self._workspace.work, self.spec.protected())
            # Also when nobody closes it: garbage collection and the interpreter's end do.
            self.close = weakref.finalize(self, opened.pop_all().close)
        self._busy_s = time.monotonic() - begin

    @property
    def work(self) -> Path:
        """The workspace on the host, while the episode is open: what lies there is the model's."""
        return self._workspace.work

    def __enter__(self) -> Episode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, command: str) -> Step | None:
        """One command, recorded in `steps`; blocked beyond the allowed number. None: the episode's time is up."""
        left = self.spec.rollout.timeout_sec - self._busy_s
        if left <= 0:
            self._timed_out = True
            return None
        if len(self.steps) >= self.allowed:
            step = _blocked(command, f"the episode allows {self.allowed} commands")
            if len(self.steps) == self.allowed:
                self.steps.append(step)
            return step
        begin = time.monotonic()
        limits = _within(self._limits, min(left, self.spec.rollout.bash_timeout_sec))
        self.steps.append(_step(command, self._workspace, limits))
        self._busy_s += time.monotonic() - begin
        return self.steps[-1]

    def judge(self) -> EpisodeResult:
        """The verdict on what the commands left behind."""
        begin = time.monotonic()
        if self._timed_out:
            detail = f"the episode's {self.spec.rollout.timeout_sec:g} s were up"
            verdict = Verdict(VerifierStatus.TIMEOUT, detail=detail)
        else:
            verdict = _judge(self.spec, self._workspace, self._before, self.steps, limits=self._limits)
        return EpisodeResult(
            environment_id=self.spec.id,
            passed=verdict.status is VerifierStatus.PASSED,
            reward=verdict.reward,
            verifier_status=verdict.status,
            steps=tuple(self.steps),
            duration_s=self._busy_s + time.monotonic() - begin,
            reward_components=verdict.components,
            detail=verdict.detail,
        )


def unparsable(spec: EnvironmentSpec, completion: str, reason: str) -> EpisodeResult:
    """The result of a completion without a command: `format_error`, exit code 2, nothing was run."""
    step = Step(clip(completion), ExitCode.UNPARSABLE, "", reason, Stop.REFUSED, False, 0.0)
    return EpisodeResult(spec.id, False, 0.0, VerifierStatus.FORMAT_ERROR, (step,), 0.0, {}, reason)


def clip(text: str, limit: int = OBSERVATION_CHARS) -> str:
    """`text`, or its beginning and end around a note of how much is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def check_runnable(spec: EnvironmentSpec) -> None:
    """What the spec asks for and this machine does not have is refused, not ignored: `environment_invalid`,
    `container_unavailable`."""

    def refuse(message: str, field: str) -> BashGymError:
        hint = "The local sandbox has the programs of this machine's /usr and no network."
        return fail("environment_invalid", f"{spec.id}: {message}", hint, [field])

    for fixture in spec.fixtures:
        if fixture.path not in spec.files:
            raise refuse(f"the fixture {fixture.path} has no content in files", "fixtures")
    build = spec.build
    if not (build.network_disabled or build.base_image or build.context_dir or build.compose_file):
        raise refuse("it asks for network access and brings no image", "build.network_disabled")
    if wants_container(spec):
        Container.check(spec)
    words = spec.verifier.command.split()
    if words[0].startswith("./") and words[0][2:] not in spec.files:
        raise refuse(f"the verifier {words[0]} is not among its files", "verifier.command")


def prepare(spec: EnvironmentSpec) -> None:
    """Builds or fetches the environment's image, if it has one; `environment_invalid` if it cannot be had."""
    if wants_container(spec):
        Container.of(spec)


def _set_up(spec: EnvironmentSpec, workspace: Workspace, limits: Limits) -> None:
    for i, command in enumerate(spec.build.setup_commands):
        result = workspace.run(command, workdir=workspace.work, limits=_within(limits, spec.rollout.bash_timeout_sec))
        if result.exit_code:
            reason = f"setup command {i + 1} ended with status {result.exit_code}: {result.stderr.strip()[:200]}"
            raise fail("environment_invalid", f"{spec.id}: {reason}", fields=["build.setup_commands"])


def _within(limits: Limits, wall_s: float) -> Limits:
    return msgspec.structs.replace(limits, wall_s=min(limits.wall_s, wall_s))


def _step(command: str, workspace: Workspace, limits: Limits) -> Step:
    try:
        result = workspace.run(command, workdir=workspace.work, limits=limits)
    except BashGymError as error:
        if error.code != "invalid_field":
            raise
        return _blocked(command, f"refused: NUL, lone surrogate, or over {MAX_COMMAND_BYTES} bytes")
    code = result.exit_code if result.stopped in (Stop.NONE, Stop.TIME) else ExitCode.BLOCKED
    stdout, stderr = clip(result.stdout), clip(result.stderr)
    return Step(clip(command), code, stdout, stderr, result.stopped, result.output_truncated, result.duration_s)


def _blocked(command: str, reason: str) -> Step:
    return Step(clip(command), ExitCode.BLOCKED, "", reason, Stop.REFUSED, False, 0.0)


def _judge(
    spec: EnvironmentSpec, workspace: Workspace, before: Mapping[str, str], steps: Sequence[Step], *, limits: Limits
) -> Verdict:
    if changed := _changed(spec, workspace, before):
        return Verdict(VerifierStatus.TAMPERED, detail=changed)
    write_files(workspace.aside, {path: spec.files[path] for path in sorted(_aside(spec))})
    frozen = sorted(path for path, state in before.items() if path and state.startswith(KEPT))
    verdict = judge_workspace(spec.verifier, workspace, limits, frozen=frozen)
    if changed := _changed(spec, workspace, before):
        return Verdict(VerifierStatus.TAMPERED, detail=f"during the verification: {changed}")
    if verdict.status is VerifierStatus.FAILED and steps and steps[-1].stopped != Stop.NONE:
        status = VerifierStatus.TIMEOUT if steps[-1].stopped == Stop.TIME else VerifierStatus.BLOCKED
        return replace(verdict, status=status, detail=f"the last command was ended: {steps[-1].stopped}")
    return verdict


def _aside(spec: EnvironmentSpec) -> frozenset[str]:
    """What stands at /verifier: all that is withheld or protected, pristine."""
    protected = spec.protected()
    listed = {path for path in spec.files for p in protected if path == p or path.startswith(f"{p}/")}
    return spec.withheld() | listed


def _changed(spec: EnvironmentSpec, workspace: Workspace, before: Mapping[str, str]) -> str:
    """Which protected path differs, in words; empty if none does."""
    if spec.metadata.get("allow_protected_file_edits"):
        return ""
    after = fingerprints(workspace.work, spec.protected())
    different = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    # Names are the model's: escapes and broken UTF-8 must not reach a terminal or a JSON encoder.
    return f"protected: {', '.join(repr(path)[1:-1][:200] for path in different[:5])}" if different else ""
