"""Rewards that look at the code of a completion alone: does it parse, does it run.

Neither verifies what the code is for: `syntax` gives 1 to a lone word, `execution` to `import os; os._exit(0)`.
"""

from __future__ import annotations

import math

from bashgym.data import python_source
from bashgym.envs.process import Stop
from bashgym.envs.rewards.extract import code_block
from bashgym.envs.rewards.interpreter import Interpreter
from bashgym.envs.rewards.types import RewardItem, RewardResult, RewardStatus
from bashgym.envs.sandbox import Limits, SandboxResult, run_command
from bashgym.envs.workspace import temporary_workspace

NOTHING = RewardResult(0.0, {}, RewardStatus.FORMAT_ERROR, "the completion holds no code")


def limits(timeout_s: float) -> Limits:
    """Those of one judged program: time as asked, all else the sandbox's own."""
    return Limits(wall_s=timeout_s, cpu_s=math.ceil(timeout_s), output_bytes=16 << 10)


def stopped(result: SandboxResult, part: str) -> RewardResult | None:
    """The verdict on a program that a limit ended; None if none did."""
    if result.stopped is Stop.NONE:
        return None
    status = RewardStatus.TIMEOUT if result.timed_out else RewardStatus.BLOCKED
    return RewardResult(0.0, {part: 0.0}, status, f"the program was ended: {result.stopped}")


def syntax(item: RewardItem) -> RewardResult:
    """1 if the completion's code parses in this Python version, else 0; it is not run."""
    source = code_block(item.completion)
    if not source.strip():
        return NOTHING
    module, reason = python_source.parse(source)
    if module is None:
        return RewardResult(0.0, {"parses": 0.0}, RewardStatus.FAILED, reason)
    return RewardResult(1.0, {"parses": 1.0}, RewardStatus.PASSED)


def execution(item: RewardItem, interpreter: Interpreter, timeout_s: float) -> RewardResult:
    """1 if the completion's code ends with status 0 in a fresh sandbox, else 0."""
    source = code_block(item.completion)
    if not source.strip():
        return NOTHING
    with temporary_workspace({"main.py": source}) as workspace:
        result = run_command(
            f"exec {interpreter.command} main.py",
            workdir=workspace.work,
            limits=limits(timeout_s),
            readonly=interpreter.mounts,
        )
    if ended := stopped(result, "runs"):
        return ended
    if result.exit_code:
        detail = f"status {result.exit_code}: {result.stderr.strip()[-500:]}"
        return RewardResult(0.0, {"runs": 0.0}, RewardStatus.FAILED, detail)
    return RewardResult(1.0, {"runs": 1.0}, RewardStatus.PASSED)
