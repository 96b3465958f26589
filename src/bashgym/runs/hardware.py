"""The devices of this machine, asked of the driver's own tool, never of torch."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any

_FIELDS = "name,memory.total,memory.used,driver_version,temperature.gpu,utilization.gpu"
_cache: tuple[float, list[dict[str, Any]]] = (0.0, [])


def gpus(*, refresh: bool = False) -> list[dict[str, Any]]:
    """NVIDIA devices: vendor, model, vram and vram_used in GiB, driver, temperature in °C, utilization in %. Cached for 30 s."""
    global _cache  # noqa: PLW0603  one process-wide cache of a slow tool
    if not refresh and _cache[0] and time.monotonic() - _cache[0] < 30:
        return _cache[1]
    _cache = (time.monotonic(), _query())
    return _cache[1]


def _query() -> list[dict[str, Any]]:
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    command = [tool, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [_card(line) for line in done.stdout.strip().splitlines() if line.count(",") == 5]


def _card(line: str) -> dict[str, Any]:
    name, total, used, driver, temperature, utilization = (part.strip() for part in line.split(","))

    def number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:
            return None

    return {
        "vendor": "nvidia",
        "model": name,
        "vram": round((number(total) or 0) / 1024, 2),
        "vram_used": round((number(used) or 0) / 1024, 2),
        "driver": driver,
        "temperature": number(temperature),
        "utilization": number(utilization),
    }
