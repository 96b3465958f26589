"""Writing a model folder that can be trusted: every tensor is read back and compared before the folder gets its name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from bashgym.core.errors import fail
from bashgym.core.files import fsync_dir

TRAINED = "default"
"""PEFT's name for the adapter that is trained; a `ref` beside it is the reference of DPO or GRPO and is not kept."""


def write_verified(
    model: Any, tokenizer: Any, folder: Path, state: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Saves model and tokenizer into a fresh `folder`, reads all back; returns what was saved.

    `state` is what to save where the model itself holds only a shard. `training_failed` on any difference.
    """
    shutil.rmtree(folder, ignore_errors=True)
    only = {"selected_adapters": [TRAINED]} if hasattr(model, "peft_config") else {}
    model.save_pretrained(folder, state_dict=state, safe_serialization=True, **only)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's empty card; ours is written when the run has ended
    expected = _expected_tensors(model, state)
    _compare(folder, expected)
    for path in folder.iterdir():
        _fsync(path)
    return expected


def put_in_place(made: Path, target: Path) -> None:
    """Gives a finished folder its name; an older one of that name goes."""
    shutil.rmtree(target, ignore_errors=True)
    os.replace(made, target)
    fsync_dir(target.parent)


def _expected_tensors(model: Any, state: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        return dict(get_peft_model_state_dict(model, state_dict=state, adapter_name=TRAINED))
    return dict(model.state_dict() if state is None else state)


def _compare(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    """Every saved tensor equals the one in memory, and none but tied ones is missing."""
    saved: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as handle:
            saved.update({key: handle.get_tensor(key) for key in handle.keys()})  # noqa: SIM118
    if not saved:
        raise fail("training_failed", f"{folder} holds no tensors after saving")
    kept = {tensor.data_ptr() for key, tensor in expected.items() if key in saved}
    for key, tensor in expected.items():
        if key not in saved:
            if tensor.data_ptr() not in kept:
                raise fail("training_failed", f"the saved model lacks {key}; checkpoints are kept")
            continue
        if not _same_bits(saved[key], tensor.detach().cpu()):
            raise fail("training_failed", f"{key} read back differs from what was trained; checkpoints are kept")


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equality of bytes, so that a diverged model's NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def _fsync(path: Path) -> None:
    if path.is_file():
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
