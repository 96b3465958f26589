"""What this machine is: devices, memory, the training interpreter. Asked of the system, never of torch."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.core.runtime import runtime_facts
from bashgym.core.settings import Settings
from bashgym.runs.hardware import gpus

GIB = 2**30
_CUDA = re.compile(r"CUDA Version:\s*([0-9.]+)")


def info(settings: Settings, *, refresh: bool = False) -> dict[str, Any]:
    """GPUs, memory in GiB, platform, and versions in the training interpreter. Device facts are cached for 30 s."""
    import psutil

    cards = gpus(refresh=refresh)
    memory = psutil.virtual_memory()
    return {
        "gpus": cards,
        "total_ram": round(memory.total / GIB, 2),
        "available_ram": round(memory.available / GIB, 2),
        "cpu_count": psutil.cpu_count(logical=True),
        "platform": platform.system().lower(),
        "arch": platform.machine(),
        "cuda_available": bool(cards),
        "cuda_version": cuda_version() if cards else None,
        **interpreter(settings),
    }


def interpreter(settings: Settings) -> dict[str, Any]:
    """The training interpreter: path, version, the packages that decide a run; `python_error` if it cannot be run."""
    known = {"training_python": settings.training_python}
    try:
        facts = runtime_facts(settings.training_python)
    except BashGymError as error:
        return {
            **known,
            "python_available": False,
            "python_version": None,
            "packages": {},
            "python_error": error.message,
        }
    return {
        **known,
        "python_available": True,
        "python_version": facts["python"],
        "packages": facts["packages"],
        "python_error": None,
    }


def cuda_version() -> str | None:
    """The driver's CUDA version, or None without a driver."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return None
    try:
        done = subprocess.run([tool], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _CUDA.search(done.stdout)
    return found[1] if found else None
