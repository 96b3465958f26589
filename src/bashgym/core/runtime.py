"""What an interpreter holds, without importing any of it: versions of the packages that decide a run's result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail

PACKAGES = (
    "bashgym", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "safetensors", "numpy",
    "bitsandbytes", "unsloth", "vllm", "liger-kernel", "wandb", "trackio", "mlflow", "tensorboard",
    "deepspeed", "flash-attn", "kernels", "verl", "skyrl-train", "skyrl", "open-instruct",
)  # fmt: skip
_PROBE = "import json; from bashgym.core.runtime import own_facts; print(json.dumps(own_facts()))"


def source_root() -> Path:
    """The folder that has to be on PYTHONPATH for `import bashgym` to find this very code."""
    return Path(__file__).resolve().parents[2]


def child_env(**extra: str) -> dict[str, str]:
    """This environment for a child interpreter that must import this very bashgym."""
    path = os.pathsep.join(filter(None, [str(source_root()), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **extra}


def own_facts() -> dict[str, Any]:
    """Python, platform and package versions of this interpreter; absent packages are left out."""
    from importlib import metadata  # 15 ms that only measuring needs

    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "packages": packages,
    }


@lru_cache
def runtime_facts(python: str) -> dict[str, Any]:
    """`own_facts` of the interpreter `python`; `missing_extra` if it cannot be run. Measured once per process."""
    if python == sys.executable:
        return own_facts()
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=60, env=child_env(), check=True
        )
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise fail(
            "missing_extra",
            f"the training interpreter {python} cannot be used: {error}",
            hint="Set BASHGYM_TRAINING_PYTHON to an interpreter with bashgym[train].",
        ) from error


def runtime_digest(facts: dict[str, Any]) -> str:
    """sha256 of runtime facts: the environment identity that a tracking context names."""
    return digest_json(facts)
