"""What is left of a finished run. Checkpoints go only after the saved model was read back and compared, bit by bit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from bashgym.core.errors import fail
from bashgym.core.files import fsync_dir
from bashgym.store.checkpoints import prune
from bashgym.training import ranks
from bashgym.training.load import load_model

if TYPE_CHECKING:
    from bashgym.training.loop import Job

KEEPS_CHECKPOINTS = frozenset({"adapter_checkpoint", "full_run"})
SAVES_MERGED = frozenset({"deployable", "full_run"})
MERGE_TOLERANCE = 1e-3
"""Largest relative difference of logits that a merge in this dtype may make."""


def finish(job: Job, trainer: Any, tokenizer: Any) -> None:
    """Saves final/ (and merged/), verifies, then prunes by the policy. Raises before anything is pruned."""
    policy = str(job.request["artifact_retention"])
    state = ranks.whole_state(trainer)
    if not ranks.is_first():
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    saved = save_verified(job, model, tokenizer, "final", state)
    job.run.append_event("final-saved", path="final", tensors=saved)
    if policy in SAVES_MERGED:
        _save_merged(job, model, tokenizer)
    if policy not in KEEPS_CHECKPOINTS:
        removed = prune(job.run.path, 0)
        job.run.append_event("checkpoints-pruned", removed=removed, policy=policy)


def save_verified(job: Job, model: Any, tokenizer: Any, name: str, state: dict[str, torch.Tensor] | None = None) -> int:
    """Writes `<run>/<name>` beside its place, reads every tensor back, renames. Returns the number of tensors.

    `state` is what to save where the model itself holds only a shard.
    """
    target = job.run.file(name)
    made = job.run.file(f".{name}.partial")
    shutil.rmtree(made, ignore_errors=True)
    model.save_pretrained(made, state_dict=state, safe_serialization=True)
    tokenizer.save_pretrained(made)
    expected = _expected_tensors(model, state)
    _compare(made, expected)
    for path in made.iterdir():
        _fsync(path)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(made, target)
    fsync_dir(job.run.path)
    return len(expected)


def _expected_tensors(model: Any, state: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        return dict(get_peft_model_state_dict(model, state_dict=state))
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


def _save_merged(job: Job, model: Any, tokenizer: Any) -> None:
    """merged/: a standalone model whose logits match the adapter's, checked on a reload from disk."""
    if not hasattr(model, "peft_config"):
        job.run.append_event("merged-skipped", reason="full fine-tuning: final/ is already a standalone model")
        return
    probe = torch.arange(1, 17, device=model.device).unsqueeze(0) % model.config.vocab_size
    model.eval()
    with torch.no_grad():
        before = model(probe).logits.float().cpu()
    merged = model.merge_and_unload()
    save_verified(job, merged, tokenizer, "merged")
    reloaded = load_model(job.run.file("merged"), dtype=merged.dtype).eval()
    with torch.no_grad():
        after = reloaded(probe.to(reloaded.device)).logits.float().cpu()
    difference = float((before - after).abs().max() / before.abs().max())
    job.run.append_event("merged-saved", path="merged", logits_relative_difference=difference)
    if not difference <= MERGE_TOLERANCE:
        raise fail(
            "training_failed", f"merged logits differ from the adapter's by {difference:.2e}; checkpoints are kept"
        )


def _fsync(path: Path) -> None:
    if path.is_file():
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
