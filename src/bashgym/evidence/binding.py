"""The identity of the run that a card speaks about, measured from the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file, digest_json
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.core.settings import Settings
from bashgym.evidence.bundle import stored
from bashgym.models.digests import folder_digest


def find_run(run_id: str, card_dir: Path, models_dir: Path | None = None, bound: object = None) -> Path | None:
    """The directory of a run, None if it is not here: the card's own folder, where the card was `bound` to it, or
    `<models_dir>/<run_id>`."""
    if not run_id or "/" in run_id or "\0" in run_id or run_id in (".", ".."):
        return None
    places = [card_dir, card_dir / bound] if isinstance(bound, str) else [card_dir]
    places.append((models_dir or Settings.from_env().models_dir) / run_id)
    return next((place for place in places if _is_run(place, run_id)), None)


def _is_run(path: Path, run_id: str) -> bool:
    return read_or_empty(path / "manifest.json").get("run_id") == run_id


def bind(run_dir: Path, card_dir: Path) -> dict[str, Any]:
    """What a card records of its run: digests of manifest, request, model, dataset and every saved artifact."""
    manifest = read_or_empty(run_dir / "manifest.json")
    model, dataset = _object(manifest, "model"), _object(manifest, "dataset")
    return {
        "run_id": manifest.get("run_id"),
        "path": stored(run_dir, card_dir),
        "manifest_digest": _digest(run_dir / "manifest.json"),
        "request_digest": _digest(run_dir / "request.json"),
        "strategy": manifest.get("strategy"),
        "model_name": model.get("name"),
        "model_digest": model.get("digest"),
        "dataset_digest": dataset.get("digest"),
        "environment_digest": _object(manifest, "environment").get("digest"),
        "artifacts": artifact_digests(run_dir),
        "status": read_or_empty(run_dir / "run_state.json").get("status"),
        "forced": manifest.get("forced") or [],
    }


def artifact_digests(run_dir: Path) -> dict[str, str]:
    """Digest of `final` and `merged`, as model resolution measures a model: an adapter's includes its base's."""
    found: dict[str, str] = {}
    base = _object(read_or_empty(run_dir / "manifest.json"), "model").get("digest")
    for name in ("final", "merged"):
        folder = run_dir / name
        if not folder.is_dir() or not any(folder.glob("*.safetensors")):
            continue
        own = folder_digest(folder)
        found[name] = digest_json([base, own]) if (folder / "adapter_config.json").is_file() else own
    return found


def read_or_empty(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is none."""
    try:
        return read_object(path)
    except BashGymError:
        return {}


def _object(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def _digest(path: Path) -> str:
    return digest_file(path) if path.is_file() else ""
