"""The verifier's run and what its exit status and output mean.

It runs in a sandbox of its own after the model's last process is dead: clean environment, cwd /work, withheld and
protected files read-only at /verifier, and those that lie in /work read-only there too. Its stdout counts only as one
whole JSON object: printing a second never helps, nor does pushing it out of what is kept.
Does not cover: a verifier that runs the model's program beside itself is open to its signals and to what it writes into
/tmp; `Verifier.probe` runs such a program before.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from bashgym.envs.sandbox import WORK, Limits, SandboxResult
from bashgym.envs.spec import Verifier
from bashgym.envs.workspace import Workspace, write_files

MOUNT = "/verifier"
ENVIRONMENT = {
    "BASHGYM_VERIFIER_DIR": MOUNT,
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
TOTAL_TOLERANCE = 1e-6
PACKAGES = "python_packages"
"""`verifier.kind`: its Python imports installed packages, found at /packages/site-packages; $BASHGYM_PYTHON starts it."""
HARBOR = "harbor"
"""`verifier.kind`: its tests/ also stand at /tests, and it may write below /logs."""
_PACKAGES_MEMORY = 4 << 30
"""Address space; numerical libraries reserve far more than they use."""
MAX_FROZEN = 1000
"""Read-only mounts below /work, which bubblewrap's command line bounds. Beyond them the fingerprints alone guard."""
_BROKEN = (126, 127)
"""bash: not executable, not found. The verifier itself is at fault."""


class VerifierStatus(StrEnum):
    """How an episode ended."""

    PASSED = "passed"
    FAILED = "failed"
    TAMPERED = "tampered"
    """A protected file was changed, made, replaced or removed."""
    TIMEOUT = "timeout"
    """Not passed, and a time limit was hit: the last command's, the episode's or the verifier's."""
    FORMAT_ERROR = "format_error"
    """The completion held no command."""
    BLOCKED = "blocked"
    """Not passed, and the last command was refused or ended by a limit other than time."""
    REWARD_ERROR = "reward_error"
    """The verifier did not give a verdict. Says nothing about the model."""


@dataclass(frozen=True)
class Verdict:
    """A status and the reward that goes with it."""

    status: VerifierStatus
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    detail: str = ""


class _Printed(msgspec.Struct, forbid_unknown_fields=True):
    """What a verifier with reward components prints."""

    reward_components: dict[str, float]
    total_reward: float | None = None


def judge_workspace(verifier: Verifier, workspace: Workspace, limits: Limits, *, frozen: Sequence[str] = ()) -> Verdict:
    """Probes, mounts the verifier and reads its verdict. The caller has put the files in `workspace.aside`.

    `frozen` names real files and folders of the workspace, none reached through a link: nothing may write to them now.
    """
    wall_s = verifier.timeout_sec
    limits = msgspec.structs.replace(limits, wall_s=wall_s, cpu_s=math.ceil(wall_s), tracing=False)
    still = [(workspace.work / path, f"{WORK}/{path}") for path in frozen[:MAX_FROZEN]]
    if verifier.probe:
        probe = workspace.run(verifier.probe, workdir=workspace.work, limits=limits, readonly=still)
        if probe.timed_out:
            return Verdict(VerifierStatus.TIMEOUT, detail="the probe ran out of time")
        found = {"probe.out": probe.stdout, "probe.err": probe.stderr, "probe.code": f"{probe.exit_code}\n"}
        write_files(workspace.aside, found)
    stage = _stage(verifier, workspace, limits, still)
    result = workspace.run(_command(verifier), workdir=workspace.work, **stage)
    if result.timed_out:
        return Verdict(VerifierStatus.TIMEOUT, detail="the verifier ran out of time")
    if result.exit_code in _BROKEN or result.exit_code > 128:
        return Verdict(
            VerifierStatus.REWARD_ERROR, detail=f"the verifier ended with {result.exit_code}: {result.stderr[:200]}"
        )
    if verifier.reward_components:
        # Longer in UTF-8 than what was kept only if it is no JSON anyway.
        if result.output_truncated and len(result.stdout.encode()) >= limits.output_bytes:
            reason = "the verifier printed more than is kept: what was cut off may be its verdict"
            return Verdict(VerifierStatus.REWARD_ERROR, detail=reason)
        return _weighed(verifier, result)
    passed = result.exit_code == 0
    return Verdict(VerifierStatus.PASSED if passed else VerifierStatus.FAILED, float(passed), {}, result.stderr[:200])


def _stage(
    verifier: Verifier, workspace: Workspace, limits: Limits, still: Sequence[tuple[Path, str]]
) -> dict[str, Any]:
    """Limits, mounts and variables of the verifier's run. Two kinds of foreign tasks need more than their own files."""
    mounts, env = [*still, (workspace.aside, MOUNT)], dict(ENVIRONMENT)
    if verifier.kind == PACKAGES:
        from bashgym.envs.rewards.interpreter import all_packages, interpreter

        python = interpreter()
        mounts += [*python.mounts, all_packages()]
        env["BASHGYM_PYTHON"] = python.command
        limits = msgspec.structs.replace(limits, memory_bytes=_PACKAGES_MEMORY, processes=256)
    elif verifier.kind == HARBOR:
        mounts.append((workspace.aside / "tests", "/tests"))
    scratch = ["/logs"] if verifier.kind == HARBOR else []
    return {"limits": limits, "readonly": mounts, "scratch": scratch, "env": env}


def _command(verifier: Verifier) -> str:
    """The verifier's command; one that begins with its own path runs the pristine copy, executable bit or not."""
    first, _, rest = verifier.command.strip().partition(" ")
    if first.removeprefix("./") != verifier.path:
        return verifier.command
    return f"bash {shlex.quote(f'{MOUNT}/{verifier.path}')} {rest}".rstrip()


def _weighed(verifier: Verifier, result: SandboxResult) -> Verdict:
    """The weighted sum of the printed components. Passing needs exit status 0 and the threshold."""

    def broken(reason: str) -> Verdict:
        return Verdict(VerifierStatus.REWARD_ERROR, detail=reason)

    if result.exit_code:
        return Verdict(VerifierStatus.FAILED, detail=result.stderr[:200])
    try:
        printed = msgspec.json.decode(result.stdout, type=_Printed)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return broken(f"the verifier's output is not one JSON object with reward_components: {error}")
    names = {component.name for component in verifier.reward_components}
    if printed.reward_components.keys() != names:
        return broken(f"the verifier names {sorted(printed.reward_components)}, the spec {sorted(names)}")
    total = sum(c.weight * printed.reward_components[c.name] for c in verifier.reward_components)
    if not math.isfinite(total):
        return broken("a reward component is not finite")
    if printed.total_reward is not None and abs(printed.total_reward - total) > TOTAL_TOLERANCE * max(1.0, abs(total)):
        return broken(f"total_reward is {printed.total_reward}, the weighted sum {total}")
    passed = total >= verifier.success_threshold - TOTAL_TOLERANCE
    status = VerifierStatus.PASSED if passed else VerifierStatus.FAILED
    return Verdict(status, total, printed.reward_components)
