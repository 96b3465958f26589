"""What a run will need in memory, disk and time. Counted from shapes, calibrated by probe steps on this machine.

Bytes: weights + gradients and Adam's two moments of what is trained (8 + 4 bytes in float32) + activations. Activations of
a decoder layer in training: about 34·s·b·h bytes at 2 bytes a value plus attention scores 5·a·s²·b (Korthikanti et
al. 2022, "Reducing Activation Recomputation", eq. 2); logits, their softmax and gradient: 3·s·b·V float32.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.core.settings import Settings

GIB = 2**30
PROCESS_BYTES = int(0.7 * GIB)
"""What a trainer process holds before any model: the libraries themselves (measured on CPU, torch 2.13)."""


def shape_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of a config.json that decide memory; generous where a key is absent."""
    hidden = int(config.get("hidden_size") or config.get("n_embd") or 4096)
    return {
        "hidden": hidden,
        "layers": int(config.get("num_hidden_layers") or config.get("n_layer") or 32),
        "heads": int(config.get("num_attention_heads") or config.get("n_head") or 32),
        "inner": int(config.get("intermediate_size") or 4 * hidden),
        "vocab": int(config.get("vocab_size") or 128_000),
    }


def lora_parameters(shape: Mapping[str, int], rank: int) -> int:
    """Trainable parameters of LoRA on all linear layers of a decoder: 4 attention and 3 MLP projections a layer."""
    attention = 4 * rank * 2 * shape["hidden"]
    mlp = 3 * rank * (shape["hidden"] + shape["inner"])
    return shape["layers"] * (attention + mlp)


def memory_bytes(
    n_parameters: int, shape: Mapping[str, int], request: Mapping[str, Any], *, four_bit: bool, bytes_per_value: int
) -> dict[str, int]:
    """Bytes by part for one training process."""
    trainable = lora_parameters(shape, int(request["lora_rank"])) if request["use_lora"] else n_parameters
    rows, length = int(request["batch_size"]), int(request["max_seq_length"])
    layer = 17 * bytes_per_value * length * rows * shape["hidden"] + 5 * shape["heads"] * length * length * rows
    kept_layers = shape["layers"] if not request["gradient_checkpointing"] else max(1, round(shape["layers"] ** 0.5))
    parts = {
        "process": PROCESS_BYTES,
        "weights": int(n_parameters * (0.55 if four_bit else bytes_per_value))
        + (trainable * 4 if request["use_lora"] else 0),
        "gradients": trainable * bytes_per_value,
        "optimizer": trainable * 8,
        "activations": kept_layers * layer,
        "logits": 3 * length * rows * shape["vocab"] * 4,
    }
    return {**parts, "total": sum(parts.values())}


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
    model: Mapping[str, Any], config: Mapping[str, Any], request: Mapping[str, Any], settings: Settings, *, tokens: int
) -> dict[str, Any]:
    """The estimate that plan, start and recommendations show. `tokens` is what one pass over the training rows costs."""
    shape = shape_of(config)
    free, where = available_memory()
    value = 4 if where == "host" and request["dtype"] in ("auto", "float32") else 2
    measured = calibration(settings)
    parts = memory_bytes(
        int(model["n_parameters"]), shape, request, four_bit=bool(request.get("load_in_4bit")), bytes_per_value=value
    )
    factor = float(measured.get("memory_factor", 1.0))
    need = int(PROCESS_BYTES + (parts["total"] - PROCESS_BYTES) * factor)
    seconds = _seconds(int(model["n_parameters"]), tokens, measured)
    models_dir = nearest_existing(settings.models_dir)
    return {
        "memory_bytes": need,
        "memory_parts": parts,
        "memory_available_bytes": free,
        "memory_where": where,
        "fits": need <= free,
        "disk_bytes": disk_bytes(int(model["n_parameters"]), int(model["weight_bytes"]), shape, request),
        "disk_free_bytes": shutil.disk_usage(models_dir).free,
        "tokens": tokens,
        "seconds": seconds,
        "calibrated": bool(measured),
        "trainable_parameters": lora_parameters(shape, int(request["lora_rank"]))
        if request["use_lora"]
        else int(model["n_parameters"]),
    }


def _seconds(n_parameters: int, tokens: int, measured: Mapping[str, Any]) -> float | None:
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
