"""The canary endpoint: a strict body, the report, and its place under the run that it speaks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_json
from bashgym.core.ids import check_identifier
from bashgym.core.settings import Settings
from bashgym.envs.canaries import canary_report
from bashgym.evals.wire import decode, environments_of

FILE = "canaries.json"


class CanaryRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/environments/reward-hacking-canaries."""

    categories: list[str] | None = None
    environments: list[dict[str, Any]] | None = None
    """The user's own: generic attacks are run against each."""
    workspace_root: str | None = None
    keep_workspace: bool = False
    run_id: str | None = None
    """Files the report under this run, so that its RunCard can bind it."""


def run(
    settings: Settings, body: Mapping[str, Any], progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """The report of `envs.canaries`, with `output_path` if a run is named. `run_not_found`, `canary_unknown`, ..."""
    request = decode(body, CanaryRequest)
    folder = _run_folder(settings, request.run_id)
    root = Path(request.workspace_root).expanduser().absolute() if request.workspace_root else None
    if root is not None and not root.is_dir():
        raise fail("file_missing", f"{root} is not a folder", fields=["workspace_root"])
    report = canary_report(
        request.categories or (),
        environments=environments_of(request.environments) if request.environments else (),
        workspace_root=root,
        keep_workspace=request.keep_workspace,
        run_id=request.run_id or "",
        progress=progress,
    )
    if folder is None:
        return report
    path = folder / "evals" / FILE
    path.parent.mkdir(exist_ok=True)
    atomic_write_json(path, report)
    return {**report, "output_path": str(path)}


def _run_folder(settings: Settings, run_id: str | None) -> Path | None:
    if run_id is None:
        return None
    folder = settings.models_dir / check_identifier(run_id, "run_id")
    if not (folder / "manifest.json").is_file():
        raise fail("run_not_found", f"no run {run_id!r}", fields=["run_id"])
    return folder
