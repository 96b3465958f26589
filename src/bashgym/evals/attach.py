"""Binds a finished evaluation to the run that it is about: `<run>/evals/<eval_id>.json` and the run's model profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_json, read_object
from bashgym.core.ids import check_identifier
from bashgym.core.settings import Settings

if TYPE_CHECKING:
    from bashgym.models.catalog import ModelRef

SCHEMA = "bashgym.eval_link.v1"
KEPT = 20
"""Evaluations that a profile lists, the newest."""


def run_of(model: ModelRef, run_id: str | None, settings: Settings) -> str | None:
    """The run that saved `model`: the one whose directory holds it, or None.

    With `run_id` it must be that run: `run_not_found`, or `digest_mismatch` for a model from elsewhere.
    """
    root = settings.models_dir.resolve()
    saved = (model.adapter_path or model.path).resolve()
    owner = saved.relative_to(root).parts[0] if saved.is_relative_to(root) and saved != root else None
    if owner is not None and not (root / owner / "request.json").is_file():
        owner = None
    if run_id is None:
        return owner
    check_identifier(run_id, "run_id")
    if not (root / run_id).is_dir():
        raise fail("run_not_found", f"there is no run {run_id}", fields=["run_id"])
    if owner != run_id:
        raise fail(
            "digest_mismatch",
            f"{model.name} is {saved}, which {run_id} did not save",
            f"Evaluate the run itself: --model {run_id}.",
            ["run_id", "model"],
        )
    return run_id


def attach(report: dict[str, Any], report_path: Path, run_dir: Path) -> None:
    """Writes the link, and adds it to model_profile.json if there is one. Attaching twice changes nothing."""
    comparison = report["comparison"] or {}
    link = {
        "schema_version": SCHEMA,
        "run_id": run_dir.name,
        "eval_id": report["eval_id"],
        "created_at": report["created_at"],
        "report": {"path": str(report_path), "sha256": digest_file(report_path)},
        "suite": {key: report["suite"][key] for key in ("name", "split", "seed", "digest", "n_items")},
        "pass_rate": report["pass_rate"]["candidate"]["value"],
        "effect": comparison.get("effect"),
        "verdict": comparison.get("verdict"),
        "smoke": report["smoke"],
    }
    folder = run_dir / "evals"
    folder.mkdir(exist_ok=True)
    atomic_write_json(folder / f"{report['eval_id']}.json", link)
    profile_path = run_dir / "model_profile.json"
    if not profile_path.is_file():
        return
    profile = read_object(profile_path)
    known = profile.get("heldout_evals")
    others = [old for old in known if old.get("eval_id") != link["eval_id"]] if isinstance(known, list) else []
    profile["heldout_evals"] = [*others, link][-KEPT:]
    atomic_write_json(profile_path, profile)
