"""An adapter and its base as one model, kept only if a reload answers as the two did. Imports torch when it merges.

The merging itself is BashGym's. A base in 4 or 8 bit is refused; a folder that is not empty is not written over.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, writable_dir
from bashgym.core.settings import Settings
from polyguard import DISCLAIMER
from polyguard.training.corpus import SFT
from polyguard.training.reports import digests

REPORT = Path("outputs/reports/merge_report.json")
SCHEMA = "polyguard.merge_report.v1"


def merge(adapter_dir: Path, output_dir: Path, *, force: bool = False) -> dict[str, Any]:
    """Merges, compares, puts in place and gives the report. `merge_failed`, `file_missing`, `directory_unwritable`."""
    base, config = _checked(adapter_dir, output_dir, force)
    import torch

    from bashgym.training.load import load_tokenizer
    from bashgym.training.merge import adapter_on_base, answers, check_parity, check_tokenizer, probes
    from bashgym.training.saving import put_in_place, write_verified

    made = output_dir.with_name(f".{output_dir.name}.partial")
    writable_dir(output_dir.parent)
    tokenizer = load_tokenizer(adapter_dir if (adapter_dir / "tokenizer.json").is_file() else base)
    try:
        model = adapter_on_base(base, adapter_dir, torch.float32)
        reference = answers(model, probes(SFT, tokenizer, model.config.vocab_size))
        merged = model.merge_and_unload(safe_merge=True)
        write_verified(merged, tokenizer, made)
        greedy = _agreement(reference, merged)
        facts = check_parity(reference, made, torch.float32)
        check_tokenizer(reference, made, tokenizer)
    except ValueError as error:  # safe_merge: NaN in the adapter
        raise fail("merge_failed", f"{adapter_dir}: {error}") from error
    finally:
        failed = made.exists() and not (made / "config.json").is_file()
        if failed:
            shutil.rmtree(made, ignore_errors=True)
    atomic_write_json(made / "run.json", {"merged_from": adapter_dir.as_posix(), "model_id": config["model_id"]})
    put_in_place(made, output_dir)
    report = _report(adapter_dir, output_dir, config["model_id"], facts, greedy)
    writable_dir(REPORT.parent)
    atomic_write_json(REPORT, report)
    return report


def _checked(adapter_dir: Path, output_dir: Path, force: bool) -> tuple[Path, dict[str, Any]]:
    """(the base model's folder, what is known of the adapter)."""
    from bashgym.models.catalog import resolve

    if not (adapter_dir / "adapter_config.json").is_file():
        raise fail("file_missing", f"{adapter_dir} holds no adapter", "Train with --lora-r above 0.", ["adapter_dir"])
    if output_dir.is_dir() and any(output_dir.iterdir()) and not force:
        raise fail("directory_unwritable", f"{output_dir} is not empty", "Give --force to replace it.", ["output_dir"])
    note = json.loads((adapter_dir / "run.json").read_text()) if (adapter_dir / "run.json").is_file() else {}
    named = str(json.loads((adapter_dir / "adapter_config.json").read_text()).get("base_model_name_or_path") or "")
    try:
        ref = resolve(str(adapter_dir), Settings.from_env())
    except BashGymError as error:
        raise fail(error.code, f"{adapter_dir}: {error.message}", error.hint, ["adapter_dir"]) from error
    return ref.path, {"model_id": note.get("model_id") or named}


def _agreement(reference: Any, merged: Any) -> float:
    """Share of places at which both would choose the same token."""
    import torch

    same = total = 0
    for ids, logits in zip(reference.probes, reference.logits, strict=True):
        with torch.no_grad():
            found = merged(input_ids=torch.tensor([ids])).logits[0]
        same += int((found.argmax(-1) == logits.argmax(-1)).sum())
        total += len(ids)
    return same / total if total else 0.0


def _report(adapter: Path, output: Path, base: str, facts: dict[str, Any], greedy: float) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA,
        "disclaimer": DISCLAIMER,
        "status": "ok",
        "adapter_dir": adapter.as_posix(),
        "output_dir": output.as_posix(),
        "base_model": base,
        "dtype": "float32",
        "greedy_agreement": greedy,
        "parity": facts,
        "files": digests(output),
        "bytes": sum(path.stat().st_size for path in output.iterdir() if path.is_file()),
    }
