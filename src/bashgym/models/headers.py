"""What a model folder holds, read from headers: parameter counts, unsafe formats, missing files, adapters."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from bashgym.core.errors import fail

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_LFS = b"version https://git-lfs"
_DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def safetensors_header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensor name → {dtype, shape} of one file; `model_incomplete` when it is not whole."""
    with path.open("rb") as handle:
        start = handle.read(len(_LFS))
        if start == _LFS:
            raise fail(
                "model_incomplete",
                f"{path} is a Git LFS pointer: the real file was not downloaded",
                hint="Run `git lfs pull`.",
            )
        handle.seek(0)
        raw = handle.read(8)
        size = struct.unpack("<Q", raw)[0] if len(raw) == 8 else -1
        if not 0 < size <= 100_000_000:
            raise fail("model_incomplete", f"{path} is not a safetensors file")
        try:
            header = json.loads(handle.read(size))
        except ValueError as error:
            raise fail("model_incomplete", f"{path} has a broken safetensors header") from error
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if path.stat().st_size != 8 + size + end:
        raise fail("model_incomplete", f"{path} has {path.stat().st_size} bytes; its header promises {8 + size + end}")
    return dict(header)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder; `model_unsafe` if there are pickles only, `model_incomplete` if nothing."""
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return found
    pickles = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
    if pickles:
        raise fail(
            "model_unsafe",
            f"{folder} has weights as pickles only ({', '.join(pickles[:3])}), which can run code when loaded",
            hint="Convert them to safetensors in a sandbox, or use a revision that ships safetensors.",
        )
    raise fail("model_incomplete", f"{folder} has no *.safetensors weights")


def count_parameters(folder: Path) -> tuple[int, int]:
    """(parameters, bytes of weights) from the headers alone."""
    parameters = size = 0
    for path in weight_files(folder):
        for entry in safetensors_header(path).values():
            n = math.prod(entry["shape"])
            parameters += n
            size += n * _DTYPE_BYTES.get(entry["dtype"], 1)
    return parameters, size
