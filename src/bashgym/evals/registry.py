"""What is known of a model by name: the evaluations that were recorded for it, one JSON object a line, append-only."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.files import append_line, writable_dir
from bashgym.core.settings import Settings
from bashgym.store.jsonl import read_jsonl

KINDS = (
    "heldout",
    "environment_passk",
    "environment_holdout",
    "environment_comparison",
    "spurious_control",
    "forgetting",
    "external_benchmark",
)
_MAX_NAME = 200


def record(settings: Settings, model_id: str, kind: str, document: dict[str, Any]) -> bool:
    """Appends `document` under the model; True. KeyError for a kind that is not one of KINDS."""
    if kind not in KINDS:
        raise KeyError(kind)
    writable_dir(_root(settings))
    line = {"model_id": check_model_id(model_id), "kind": kind, "recorded_at": utc_now(), "document": document}
    append_line(_path(settings, model_id), msgspec.json.encode(line))
    return True


def verdict(settings: Settings, model_id: str) -> dict[str, Any]:
    """The latest evaluation of each sort and how many there are; `eval_not_found` for a model nobody recorded."""
    path = _path(settings, check_model_id(model_id))
    rows = read_jsonl(path)[0] if path.is_file() else []
    if not rows:
        raise fail("eval_not_found", f"nothing was recorded for the model {model_id!r}", fields=["model_id"])
    held = [row for row in rows if row["kind"] == "heldout"]
    environment = [row for row in rows if row["kind"] == "environment_holdout"]
    return {
        "model_id": model_id,
        "display_name": model_id,
        "latest_heldout_eval": held[-1] if held else None,
        "n_heldout_evals": len(held),
        "latest_environment_holdout_eval": environment[-1] if environment else None,
        "n_environment_holdout_evals": len(environment),
        "latest_by_kind": {row["kind"]: row for row in rows},
    }


def check_model_id(model_id: str) -> str:
    """A short printable name; `invalid_field` otherwise."""
    if not model_id or len(model_id) > _MAX_NAME or not model_id.isprintable():
        raise fail("invalid_field", "model_id must be 1 to 200 printable characters", fields=["model_id"])
    return model_id


def _root(settings: Settings) -> Path:
    return settings.models_dir.parent / "evals" / "registry"


def _path(settings: Settings, model_id: str) -> Path:
    return _root(settings) / f"{hashlib.sha256(model_id.encode()).hexdigest()[:24]}.jsonl"
