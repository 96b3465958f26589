"""Checkpoints that can be trusted: each carries a manifest of sizes and sha256 that we wrote after the save.

A folder without a matching manifest is half-written or foreign and is never resumed. That is also what vouches for
the pickles inside (optimizer and rng state): only bytes that we hashed are loaded.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_json, read_object

MANIFEST = "checkpoint_manifest.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def seal(checkpoint: Path) -> dict[str, object]:
    """Hashes every file of a finished checkpoint into its manifest, and returns it."""
    files = {
        path.relative_to(checkpoint).as_posix(): {"size_bytes": path.stat().st_size, "sha256": digest_file(path)}
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != MANIFEST
    }
    manifest: dict[str, object] = {"schema_version": "bashgym.checkpoint_manifest.v1", "files": files}
    atomic_write_json(checkpoint / MANIFEST, manifest)
    return manifest


def problems(checkpoint: Path) -> list[str]:
    """What is wrong with a checkpoint, in words; empty if every byte is as sealed."""
    try:
        manifest = read_object(checkpoint / MANIFEST)
    except BashGymError as error:
        return [error.message]
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        return [f"{MANIFEST} lists no files"]
    found = []
    present = {p.relative_to(checkpoint).as_posix() for p in checkpoint.rglob("*") if p.is_file() or p.is_symlink()}
    found += [f"{name} is not in the manifest" for name in sorted(present - set(files) - {MANIFEST})]
    for name, facts in files.items():
        path = checkpoint / name
        if name not in present or path.is_symlink():
            found.append(f"{name} is missing")
        elif path.stat().st_size != facts["size_bytes"]:
            found.append(f"{name} has {path.stat().st_size} bytes, sealed with {facts['size_bytes']}")
        elif digest_file(path) != facts["sha256"]:
            found.append(f"{name} differs from what was sealed")
    return found


def list_checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every `checkpoint-<step>`, by step, valid or not."""
    found = []
    for path in run_dir.glob("checkpoint-*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            found.append((int(match[1]), path))
    return sorted(found)


def last_valid(run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose bytes are as sealed, and why newer ones were passed over."""
    passed_over: list[str] = []
    for _, path in reversed(list_checkpoints(run_dir)):
        found = problems(path)
        if not found:
            return path, passed_over
        passed_over.append(f"{path.name}: {found[0]}")
    return None, passed_over


def prune(run_dir: Path, keep: int) -> list[str]:
    """Removes all but the newest `keep` checkpoints; returns the names removed."""
    folders = [path for _, path in list_checkpoints(run_dir)]
    doomed = folders[: max(0, len(folders) - keep)]
    for path in doomed:
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    return [path.name for path in doomed]
