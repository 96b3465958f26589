"""`python -m bashgym.envs.rewards.host FD PATH FUNCTION`: the process of a user's reward function.

Reads {"id", "prompt", "completion", "row"} a line from the socket FD and answers {"id", "parts"} or {"id", "error"}. What
the function prints goes nowhere, and every call has its own copy of its input. The user's own code: it is kept from
disturbing the run, not from the machine.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_PARTS = 64


def main(fd: int, path: str, name: str) -> None:
    """Serves until the socket closes."""
    with socket.socket(fileno=fd) as channel, channel.makefile("rb") as lines:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        # The channel does not survive an exec, and a fork that comes back from the function is not heard.
        channel.set_inheritable(False)
        own = os.getpid()
        threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
        function, problem = _load(path, name)
        channel.sendall(_line({"id": 0, "error": problem}))
        for line in lines:
            call = json.loads(line)
            answer = _answer(function, call) if function else {"error": problem}
            if os.getpid() != own:
                os._exit(1)
            channel.sendall(_line({"id": call["id"], **answer}))


def _end_with(channel: socket.socket) -> None:
    """Ends this process with the one that asked for it, in the middle of a call too."""
    watch = select.poll()
    watch.register(channel, select.POLLRDHUP)
    watch.poll()
    os._exit(1)


def _load(path: str, name: str) -> tuple[Callable[..., Any] | None, str]:
    try:
        sys.path.insert(0, str(Path(path).parent))
        spec = importlib.util.spec_from_file_location("reward_function", path)
        if spec is None or spec.loader is None:
            return None, f"{path} is not a Python file"
        module = importlib.util.module_from_spec(spec)
        sys.modules["reward_function"] = module
        spec.loader.exec_module(module)
    except BaseException as error:  # noqa: BLE001 - boundary: the user's reward function
        return None, _why(error)
    function = getattr(module, name, None)
    return (function, "") if callable(function) else (None, f"{path} has no function {name}")


def _answer(function: Callable[..., Any], call: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"parts": checked(function(call["prompt"], call["completion"], call["row"]))}
    except BaseException as error:  # noqa: BLE001 - boundary: the user's reward function; sys.exit too
        return {"error": _why(error)}


def checked(value: Any) -> dict[str, float]:
    """Finite numbers by name, "" for a reward without parts; TypeError or ValueError for anything else."""
    if not isinstance(value, dict):
        return {"": _number(value)}
    if not value or len(value) > MAX_PARTS or not all(isinstance(name, str) and name for name in value):
        raise TypeError(f"the parts must be 1 to {MAX_PARTS} numbers, each by a name")
    return {name: _number(part) for name, part in value.items()}


def _number(value: Any) -> float:
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"it returned {type(value).__name__}, not a number or a dict of numbers")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"it returned {number}")
    return number


def _why(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    try:
        return f"{type(error).__name__}: {str(error)[:300]}{where}"
    except Exception:  # noqa: BLE001 - boundary: the user's exception class
        return f"{type(error).__name__}{where}"


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
