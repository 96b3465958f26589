"""What a run will need in memory (see `memory`), disk, time and money, and what this machine can train.

The numbers are calibrated by probe steps on this machine: `system probe` for any run, `training plan --probe` for one.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.core.settings import Settings
from bashgym.models.catalog import ModelRef
from bashgym.runs.memory import GIB, PROCESS_BYTES, lora_parameters, memory_bytes, samples, shape_of
from bashgym.runs.teacher import teacher_bytes


def disk_bytes(n_parameters: int, weight_bytes: int, shape: Mapping[str, int], request: Mapping[str, Any]) -> int:
    """Bytes that the run directory can hold at once: checkpoints with optimizer state (one more while rotating) and results."""
    if request["use_lora"]:
        saved = lora_parameters(shape, int(request["lora_rank"])) * 4
    else:
        saved = weight_bytes
    trained = saved // 4 if request["use_lora"] else n_parameters
    checkpoint = saved + trained * 8
    merged = weight_bytes if request["artifact_retention"] in ("deployable", "full_run") and request["use_lora"] else 0
    return (int(request["checkpoint_limit"]) + 1) * checkpoint + 2 * saved + merged + (16 << 20)


def calibration(settings: Settings) -> dict[str, Any]:
    """What probe steps on this machine measured: {memory_factor, train_tokens_per_second_per_gflop, ...} or empty."""
    try:
        return read_object(settings.home / "calibration.json")
    except BashGymError:
        return {}


def available_memory() -> tuple[int, str]:
    """(bytes, where): free device memory with a GPU, else available host memory."""
    from bashgym.runs.hardware import gpus

    cards = gpus()
    if cards:
        free = min(card["vram"] - card["vram_used"] for card in cards)
        return int(free * GIB), "gpu"
    import psutil

    return int(psutil.virtual_memory().available), "host"


def estimate(
    model: Mapping[str, Any],
    config: Mapping[str, Any],
    request: Mapping[str, Any],
    settings: Settings,
    *,
    tokens: int,
    passes: float = 1.0,
    teacher: ModelRef | None = None,
) -> dict[str, Any]:
    """The estimate that plan and start show; `teacher` is loaded beside the model.

    `tokens` is what one pass over the training rows costs, `passes` how many there are. `seconds` and `cost` are None
    where nothing was measured on this machine, or where sampling takes most of the time and only a probe of the very
    request can tell.
    """
    shape = shape_of(config)
    n_parameters = int(model["n_parameters"])
    free, where = available_memory()
    value = 4 if where == "host" and request["dtype"] in ("auto", "float32") else 2
    measured = calibration(settings)
    parts = memory_bytes(
        n_parameters,
        shape,
        request,
        four_bit=bool(request.get("load_in_4bit")),
        bytes_per_value=value,
        teacher=teacher_bytes(teacher, request, value) if teacher else 0,
    )
    factor = float(measured.get("memory_factor", 1.0))
    need = int(PROCESS_BYTES + (parts["total"] - PROCESS_BYTES) * factor)
    seconds = None if samples(request) else _seconds(n_parameters, tokens * passes, measured)
    models_dir = nearest_existing(settings.models_dir)
    return {
        "memory_bytes": need,
        "memory_parts": parts,
        "memory_available_bytes": free,
        "memory_where": where,
        "fits": need <= free,
        "disk_bytes": disk_bytes(n_parameters, int(model["weight_bytes"]), shape, request),
        "disk_free_bytes": shutil.disk_usage(models_dir).free,
        "tokens": tokens,
        "seconds": seconds,
        "cost": cost_of(seconds, request),
        "calibrated": bool(measured),
        "trainable_parameters": lora_parameters(shape, int(request["lora_rank"]))
        if request["use_lora"]
        else n_parameters,
    }


def cost_of(seconds: float | None, request: Mapping[str, Any]) -> float | None:
    """Money for so many seconds at the request's `cost_per_hour`; None if either is unknown."""
    price = request.get("cost_per_hour")
    return None if seconds is None or price is None else round(seconds / 3600 * float(price), 4)


def _seconds(n_parameters: int, tokens: float, measured: Mapping[str, Any]) -> float | None:
    """Training time from 6 FLOPs a parameter and token (Kaplan et al. 2020) at the probed speed; None without a probe."""
    speed = measured.get("flops_per_second")
    return round(6 * n_parameters * tokens / float(speed), 1) if speed else None


def nearest_existing(path: Path) -> Path:
    """`path` or its closest ancestor that exists."""
    while not path.exists():
        path = path.parent
    return path


def probe(model_name: str, settings: Settings, *, rows: int = 8, length: int = 256) -> dict[str, Any]:
    """Runs probe steps in the training interpreter and keeps what they say of this machine in calibration.json."""
    import subprocess
    import tempfile

    from bashgym.core.clock import utc_now
    from bashgym.core.errors import fail
    from bashgym.core.files import atomic_write_json, writable_dir
    from bashgym.core.runtime import child_env
    from bashgym.models.catalog import resolve

    model = resolve(model_name, settings)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe.json"
        command = [
            settings.training_python,
            "-m",
            "bashgym.training.probe",
            str(model.path),
            str(rows),
            str(length),
            str(out),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=child_env(HF_HUB_OFFLINE="1"), check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise fail(
                "training_failed", f"the probe step failed: {last[:300]}", hint="Try fewer rows or a shorter length."
            )
        measured = read_object(out)
    request = {
        "use_lora": False,
        "lora_rank": 1,
        "batch_size": rows,
        "max_seq_length": length,
        "gradient_checkpointing": False,
    }
    value = 4 if measured["dtype"] == "float32" else 2
    parts = memory_bytes(model.n_parameters, shape_of(model.config), request, four_bit=False, bytes_per_value=value)
    variable = float(str(measured["peak_memory_gb"])) * GIB - PROCESS_BYTES
    facts = {
        **measured,
        "model": model.name,
        "measured_at": utc_now(),
        "memory_factor": max(0.1, variable / (parts["total"] - PROCESS_BYTES)),
        "flops_per_second": 6 * model.n_parameters * float(str(measured["tokens_per_second"])),
    }
    atomic_write_json(writable_dir(settings.home) / "calibration.json", facts)
    return facts


def recommendations(settings: Settings) -> dict[str, Any]:
    """What this machine can train: real capacities from free memory, in the field names that the API promises."""
    free, where = available_memory()
    gib = free / GIB
    value = 4 if where == "host" else 2
    per_billion = {
        "inference": value * 1.2,
        "qlora": 0.5 + 0.5,
        "lora": value + 1,
        "full_finetune": value * 2 + 8 + (4 if value == 2 else 0),
    }
    room = max(0.0, gib - PROCESS_BYTES / GIB)
    capacities = {
        name: round(room / need, 2) for name, need in per_billion.items() if where == "gpu" or name != "qlora"
    }
    from bashgym.models.catalog import list_models

    recommended = [
        {
            "name": entry["name"],
            "ready": entry["ready"],
            "regimes": [r for r, most in capacities.items() if entry["n_parameters"] / 1e9 <= most],
        }
        for entry in list_models(settings)
    ]
    return {
        "max_vram_gb": round(gib, 1) if where == "gpu" else 0.0,
        "memory_where": where,
        "memory_available_gb": round(gib, 1),
        "cuda_available": where == "gpu",
        "recommended_models": recommended,
        "recommended_quantization": "4bit" if where == "gpu" and gib < 24 else "none",
        "recommended_batch_size": 8 if gib >= 80 else 4 if gib >= 24 else 2 if gib >= 12 else 1,
        "regime_capacities": capacities,
        "regime_capacities_unit": "billion parameters, without activations",
        "unified_memory": False,
        "calibrated": bool(calibration(settings)),
        "calibration": calibration(settings),
        "warning": None if where == "gpu" else "no CUDA device: training runs on the CPU, in float32",
    }
