"""What runs left on disk (final, merged, gguf, checkpoints): listing and safe removal.

Covers: ids, never paths; only folders of the four kinds, only of finished runs, never links, never outside.
"""

from __future__ import annotations

import re
import secrets
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.runs.reconcile import lock_held
from bashgym.store.run_dir import TERMINAL, RunDir

_NAME = re.compile(r"final|merged|gguf|checkpoint-\d{1,12}")


def list_artifacts(models_dir: Path) -> list[dict[str, Any]]:
    """[{id, run_id, kind, path, size_mb, created_at, base_model}], newest first. `id` is `<run id>:<folder>`."""
    found = []
    for request in models_dir.glob("*/request.json"):
        run = RunDir(request.parent)
        base = _base_model(run)
        for path in run.path.iterdir():
            if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                found.append(_entry(run, path, base))
    return sorted(found, key=lambda entry: (entry["created_at"], entry["id"]), reverse=True)


def delete_artifact(artifact_id: str, run: RunDir) -> dict[str, Any]:
    """Removes one artifact of a finished run. `checkpoint_not_found`, `checkpoint_in_use`."""
    name = artifact_name(artifact_id)
    path = run.path / name
    if path.is_symlink() or not path.is_dir():
        raise fail(
            "checkpoint_not_found", f"{run.run_id} has no {name}", "GET /api/training/checkpoints lists the ids."
        )
    status = run.state().status
    if status not in TERMINAL or lock_held(run):
        raise fail(
            "checkpoint_in_use", f"{run.run_id} is {status}; its {name} may still be needed", "Stop the run first."
        )
    # Renamed first: whatever happens then, no half-deleted folder bears the name of a whole one.
    doomed = path.with_name(f".deleting-{secrets.token_hex(4)}")
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    run.append_event("artifact-deleted", name=name)
    return {"deleted": True, "id": artifact_id}


def artifact_name(artifact_id: str) -> str:
    """The folder's name in an id; `checkpoint_not_found` for anything that is not exactly such an id."""
    run_id, colon, name = artifact_id.rpartition(":")
    if not colon or not run_id or not _NAME.fullmatch(name):
        raise fail(
            "checkpoint_not_found", f"{artifact_id[:200]!r} is not an artifact id", "It looks like <run id>:final."
        )
    return name


def _entry(run: RunDir, path: Path, base_model: str | None) -> dict[str, Any]:
    kind = "intermediate" if path.name.startswith("checkpoint-") else path.name
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return {
        "id": f"{run.run_id}:{path.name}",
        "run_id": run.run_id,
        "kind": kind,
        "path": str(path),
        "size_mb": round(size / 2**20, 3),
        "created_at": modified.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "base_model": base_model,
    }


def _base_model(run: RunDir) -> str | None:
    try:
        name = run.request().get("base_model")
    except BashGymError:
        return None
    return name if isinstance(name, str) else None
