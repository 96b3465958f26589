"""Which saved model acts: the order in which artifacts are looked for, and the manifest of the one that was activated.

Order: GRPO adapter, merged SFT model, SFT adapter. Nothing is ever put in the place of a model that is not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object

MANIFEST = Path("checkpoints/active/active_model_manifest.json")
ORDER: tuple[tuple[str, str], ...] = (
    ("grpo_adapter", "grpo_adapter"),
    ("merged_sft", "merged"),
    ("sft_adapter", "sft_adapter"),
)
"""(kind, folder below the checkpoints), in the order in which they are looked for."""
WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


class Saved(msgspec.Struct, frozen=True):
    """An artifact on disk."""

    kind: str
    path: Path
    sha256: str
    """Of its weights."""


def saved(root: Path = Path("checkpoints")) -> list[Saved]:
    """The artifacts that are there, in their order."""
    return [found for kind, name in ORDER if (found := look(kind, root / name)) is not None]


def look(kind: str, folder: Path) -> Saved | None:
    """The artifact in a folder; None without weights."""
    for name in WEIGHTS:
        if (folder / name).is_file() and (folder / name).stat().st_size:
            return Saved(kind, folder, digest_file(folder / name))
    return None


def active() -> dict[str, Any] | None:
    """The manifest of the activated model, if there is one that can be read."""
    try:
        found: dict[str, Any] = read_object(MANIFEST)
    except BashGymError:
        return None
    return found


def resolve_model() -> Saved | None:
    """The activated artifact if it is as it was, else the first that is there, else None."""
    manifest = active()
    if manifest:
        found = look(str(manifest.get("activated_kind")), Path(str(manifest.get("activated_path"))))
        if found is not None and found.sha256 == manifest.get("activated_sha256"):
            return found
    return next(iter(saved()), None)
