"""Which saved model acts: the order in which artifacts are looked for, and the manifest of the one that was activated.

Order: GRPO adapter, merged SFT model, SFT adapter. Nothing is ever put in the place of a model that is not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object, writable_dir
from bashgym.core.ids import check_identifier
from polyguard import DISCLAIMER
from polyguard.knowledge import load

MANIFEST = Path("checkpoints/active/active_model_manifest.json")
MIRROR = Path("docs/results/active_model_manifest.json")
GATE = Path("docs/results/acceptance_gate.json")
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


def activate(*, source: str, run_id: str, preferred: str, label: str = "", force: bool = False) -> dict[str, Any]:
    """Makes an artifact the active one and gives its manifest.

    `model_missing` if nothing is saved there, `invalid_transition` if the acceptance gate refused that artifact.
    """
    root, reports = places(source, run_id)
    order = [(kind, folder) for kind, folder in ORDER if folder == preferred]
    order += [(kind, folder) for kind, folder in ORDER if folder != preferred]
    found = [(kind, root / folder, look(kind, root / folder)) for kind, folder in order]
    chosen = next((item for _, _, item in found if item is not None), None)
    if chosen is None:
        raise fail("model_missing", f"there is no artifact in {root}", "Train or pull one first.", ["run_id"])
    gate = _gate(chosen)
    if gate["passed"] is False and not force:
        text = f"the acceptance gate refused {chosen.path}: {', '.join(gate['reasons'][:3])}"
        raise fail("invalid_transition", text, "Mend it and run acceptance_gate.py again, or give --force.", ["run_id"])
    manifest = {
        "schema_version": "polyguard.active_model.v1",
        "disclaimer": DISCLAIMER,
        "label": label or f"{run_id}-{chosen.kind}",
        "source": source,
        "run_id": run_id,
        "preferred_artifact": preferred,
        "load_order": [
            {"kind": kind, "path": path.as_posix(), "exists": item is not None, "sha256": item.sha256 if item else None}
            for kind, path, item in found
        ],
        "activated_kind": chosen.kind,
        "activated_path": chosen.path.as_posix(),
        "activated_sha256": chosen.sha256,
        **_known(reports),
        "gate": gate,
        "activated_at": utc_now(),
        "knowledge_version": load().version,
        "previous": active(),
    }
    _put(manifest)
    return manifest


def rollback() -> dict[str, Any]:
    """Makes the previous model active again; `model_missing` if there was none or its files are not as they were."""
    now = active()
    before = (now or {}).get("previous")
    if not isinstance(before, dict):
        raise fail("model_missing", "no model was active before", "Activate one.", ["rollback"])
    found = look(str(before["activated_kind"]), Path(str(before["activated_path"])))
    if found is None or found.sha256 != before["activated_sha256"]:
        raise fail("digest_mismatch", f"{before['activated_path']} is not what was active before", fields=["rollback"])
    _put(before)
    return dict(before)


def places(source: str, run_id: str) -> tuple[Path, Path]:
    """(checkpoints, reports) of a run: those of a sweep, or those at the top."""
    check_identifier(run_id, "run_id")
    if source == "sweep":
        return Path("checkpoints/sweeps") / run_id, Path("outputs/reports/sweeps") / run_id
    return Path("checkpoints"), Path("outputs/reports")


def _put(manifest: dict[str, Any]) -> None:
    """The mirror first: where the manifest itself stands, both do."""
    for path in (MIRROR, MANIFEST):
        writable_dir(path.parent)
        atomic_write_json(path, manifest)


def _gate(chosen: Saved) -> dict[str, Any]:
    """What the acceptance gate said of this artifact; None if it was not asked."""
    try:
        found: dict[str, Any] = read_object(GATE)
    except BashGymError:
        return {"passed": None, "reasons": []}
    if found.get("artifact_sha256") != chosen.sha256:
        return {"passed": None, "reasons": []}
    checks: list[dict[str, Any]] = list(found.get("checks") or [])
    return {"passed": found.get("passed"), "reasons": [item["name"] for item in checks if not item["passed"]]}


def _known(reports: Path) -> dict[str, Any]:
    """model, back ends and figures by the training reports that are there."""
    found: dict[str, dict[str, Any]] = {}
    for stage in ("sft", "grpo"):
        try:
            found[stage] = read_object(reports / f"{stage}_trl_run.json")
        except BashGymError:
            found[stage] = {}
    last = found["grpo"] or found["sft"]
    figures = {
        "reward": "holdout_reward",
        "validity": "validity_rate",
        "exploit_rate": "exploit_rate",
        "gap": "train_holdout_gap",
    }
    return {
        "model_id": last.get("model_id"),
        "model_revision": last.get("model_revision"),
        "backend": {stage: report.get("backend") for stage, report in found.items()},
        "metrics": {ours: last.get(theirs) for ours, theirs in figures.items()},
    }
