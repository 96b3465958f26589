"""Where the trackers of `report_to` write: below `<run>/trackers`, without network unless the user's environment says so.

Covers: directories, offline modes, one tracker run over all attempts. Does not cover: a tracking server that the user named
(WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID), whose credentials stay in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

FOLDER = "trackers"


def environment(run_path: Path, report_to: Sequence[str]) -> dict[str, str]:
    """Variables for the training process; makes the folders, as wandb takes /tmp instead of a missing one."""
    asked = [name for name in report_to if name != "none"]
    if not asked:
        return {}
    folder = run_path / FOLDER
    for name in asked:
        (folder / name).mkdir(parents=True, exist_ok=True)
    wandb = {
        name: str(folder / "wandb") for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    }
    unless_named = {
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": "bashgym",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}",
        "MLFLOW_EXPERIMENT_NAME": "bashgym",
    }
    return {
        **wandb,
        **{name: value for name, value in unless_named.items() if name not in os.environ},
        "WANDB_RUN_ID": run_path.name,
        "WANDB_RESUME": "allow",
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),
        "TRACKIO_DIR": str(folder / "trackio"),
    }
