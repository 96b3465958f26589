"""BashGym runs as the trainer: started from here, followed to their end, their artifacts copied to where the scripts say."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object
from bashgym.store.run_dir import TERMINAL, RunDir, RunStatus
from bashgym.workspace import Workspace

ORIGIN = {"kind": "polyguard"}
POLL_S = 0.5
Say = Callable[[str], None]


def train(workspace: Workspace, body: dict[str, Any], say: Say) -> RunDir:
    """Starts a run and waits for its end. `training_failed` unless it completes; interrupting stops it."""
    run_id = str(workspace.runs.start({**body, "compute_target": "local"}, origin=ORIGIN)["run_id"])
    shown = ""
    try:
        while (state := workspace.runs.get(run_id))["status"] not in TERMINAL:
            steps = state["progress"]
            at = f"step {steps.get('step') or 0} of {steps.get('total_steps') or '?'}"
            line = f"{body['strategy']} {run_id}: {state['status']}, {at}"
            if line != shown:
                say(line)
                shown = line
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        workspace.runs.stop(run_id)
        raise
    if state["status"] != RunStatus.COMPLETED:
        error = state["error"] or {}
        text = f"{run_id} ended {state['status']}: {error.get('message') or state['message']}"
        raise fail("training_failed", text, str(error.get("hint") or ""))
    return workspace.runs.locate(run_id)


def publish(run: RunDir, target: Path) -> Path:
    """Copies the run's final artifact to `target`, whole or not at all; what was there is replaced."""
    made = target.with_name(f".{target.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    made.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(run.file("final"), made, ignore=shutil.ignore_patterns("optimizer*", "training_args.bin"))
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    made.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return target


def accelerator(asked: bool) -> dict[str, Any]:
    """What is said of Unsloth: used only where BashGym's training interpreter has it and a GPU is there."""
    if not asked:
        return {"requested": False, "used": False, "reason": None}
    from importlib.util import find_spec

    if find_spec("unsloth") is None:
        return {"requested": True, "used": False, "reason": "unsloth is not installed in this interpreter"}
    return {"requested": True, "used": False, "reason": "it needs a CUDA device and BASHGYM_TRAINING_PYTHON"}


def versions(run: RunDir) -> dict[str, Any]:
    """Of the packages that trained."""
    packages = run.manifest().get("packages") or {}
    return {name: packages.get(name) for name in ("torch", "transformers", "trl", "peft", "unsloth", "openenv")}


def kept(path: Path) -> dict[str, Any] | None:
    """An earlier report at that place, if it can be read."""
    try:
        found: dict[str, Any] = read_object(path)
    except BashGymError:
        return None
    return found
