"""The tracking context: which project, experiment, model, data and environment a run belongs to.

Strict parsing, `init_context` (measures every digest) and the check of declared digests against measured ones.
Knows nothing of the database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file, digest_json, digest_tree
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_json, read_object
from bashgym.core.ids import stable_id
from bashgym.ledger import fields as f
from bashgym.ledger.fields import Field

_ID = Field(f.identifier, required=True)
_DIGEST = Field(f.digest, required=True)
_LINK = Field(f.identifier)
FIELDS: dict[str, Field] = {
    "workspace_id": _ID,
    "project_id": _ID,
    "project_display_name": Field(f.text(240), required=True),
    "project_description": Field(f.text(4000, empty=True), default=""),
    "experiment_id": _ID,
    "experiment_name": Field(f.text(240), required=True),
    "objective": Field(f.text(8000), required=True),
    "task_type": _ID,
    "model_id": _ID,
    "model_version_id": _ID,
    "model_source_uri": Field(f.text(2000), required=True),
    "model_source_revision": Field(f.text(500, empty=True), default=""),
    "model_config_digest": _DIGEST,
    "dataset_id": _ID,
    "dataset_version_id": _ID,
    "dataset_source_uri": Field(f.text(2000), required=True),
    "dataset_content_digest": _DIGEST,
    "dataset_split_manifest": Field(f.payload, default={}),
    "dataset_row_counts": Field(f.counts, default={}),
    "environment_id": _ID,
    "environment_runtime_digest": _DIGEST,
    "environment_hardware": Field(f.payload, default={}),
    "campaign_id": _LINK,
    "study_id": _LINK,
    "action_id": _LINK,
    "owner_actor_id": Field(f.identifier, default="bashgym"),
    "tags": Field(f.strings(100), default=[]),
    "metadata": Field(f.payload, default={}),
}
_MEASURED = ("dataset_content_digest", "model_config_digest", "environment_runtime_digest")


@dataclass(frozen=True)
class TrackingContext:
    """One parsed context; the fields are those of `FIELDS`."""

    workspace_id: str
    project_id: str
    project_display_name: str
    project_description: str
    experiment_id: str
    experiment_name: str
    objective: str
    task_type: str
    model_id: str
    model_version_id: str
    model_source_uri: str
    model_source_revision: str
    model_config_digest: str
    dataset_id: str
    dataset_version_id: str
    dataset_source_uri: str
    dataset_content_digest: str
    dataset_split_manifest: dict[str, Any]
    dataset_row_counts: dict[str, int]
    environment_id: str
    environment_runtime_digest: str
    environment_hardware: dict[str, Any]
    campaign_id: str | None
    study_id: str | None
    action_id: str | None
    owner_actor_id: str
    tags: list[str]
    metadata: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON form, which `parse_context` accepts."""
        return asdict(self)


def parse_context(value: object) -> TrackingContext:
    """A context from JSON; `training_tracking_invalid` lists every field that is wrong, unknown or missing."""
    if not isinstance(value, Mapping):
        raise fail("training_tracking_invalid", f"a tracking context is an object, not a {type(value).__name__}")
    values, problems = f.parse(value, FIELDS)
    if problems:
        raise fail(
            "training_tracking_invalid",
            "the tracking context is not acceptable: " + "; ".join(problem.message for problem in problems),
            hint="`bashgym training tracking-context init` writes a complete one.",
            fields=[problem.field for problem in problems],
        )
    arguments: dict[str, Any] = values
    return TrackingContext(**arguments)


def load_context(path: Path) -> TrackingContext:
    """`parse_context` of a JSON file."""
    return parse_context(read_object(path, max_bytes=1 << 20))


def check_measured(
    context: TrackingContext,
    *,
    dataset_digest: str | None,
    model_config_digest: str | None,
    environment_digest: str | None,
) -> dict[str, str]:
    """`measured` or `declared` for each digest; None means that it could not be measured here.

    `digest_mismatch` names every field whose declared value is not the measured one, and both values.
    """
    measured = dict(zip(_MEASURED, (dataset_digest, model_config_digest, environment_digest), strict=True))
    wrong = {name: value for name, value in measured.items() if value and value != getattr(context, name)}
    if wrong:
        raise fail(
            "digest_mismatch",
            "; ".join(
                f"{name} is declared {getattr(context, name)}, measured {value}" for name, value in wrong.items()
            ),
            hint="`bashgym training tracking-context init` measures anew; a changed dataset is a new version.",
            fields=list(wrong),
        )
    return {name: "measured" if value else "declared" for name, value in measured.items()}


def init_context(
    *,
    workspace_id: str,
    project_id: str,
    experiment_id: str,
    objective: str,
    task_type: str,
    model: Mapping[str, Any],
    dataset_path: Path,
    environment: Mapping[str, Any],
    output: Path | None = None,
    **given: object,
) -> dict[str, Any]:
    """A complete context with measured digests, written to `output` if that is given.

    `model`: name, path, revision, config_digest, digest. `environment`: digest, hardware. `given`: any further
    field of the context, which then replaces the derived one; digests cannot be given, they are measured.
    """
    if stated := [name for name in _MEASURED if name in given]:
        raise fail("training_tracking_invalid", f"{', '.join(stated)}: measured here, not given", fields=stated)
    data = _measure_dataset(dataset_path)
    runtime = str(environment.get("digest") or digest_json({k: v for k, v in environment.items() if k != "digest"}))
    name, config = str(model["name"]), str(model["config_digest"])
    revision = str(model.get("revision") or model.get("digest") or "")
    dataset_id = str(given.get("dataset_id") or slug(dataset_path.stem or "dataset"))
    context = parse_context(
        {
            "workspace_id": workspace_id,
            "project_id": project_id,
            "project_display_name": project_id,
            "experiment_id": experiment_id,
            "experiment_name": experiment_id,
            "objective": objective,
            "task_type": task_type,
            "model_id": slug(name),
            "model_version_id": stable_id("model_version", name, revision, config),
            "model_source_uri": name,
            "model_source_revision": revision,
            "model_config_digest": config,
            "dataset_id": dataset_id,
            "dataset_version_id": stable_id("dataset_version", dataset_id, data),
            "dataset_source_uri": str(dataset_path),
            "dataset_content_digest": data,
            "environment_id": stable_id("environment", runtime),
            "environment_runtime_digest": runtime,
            "environment_hardware": environment.get("hardware") or {},
            **given,
        }
    ).as_dict()
    if output is not None:
        atomic_write_json(output, context)
    return context


def _measure_dataset(path: Path) -> str:
    if not path.exists():
        raise fail("dataset_missing", f"{path} does not exist", fields=["dataset_path"])
    try:
        return digest_tree(path) if path.is_dir() else digest_file(path)
    except OSError as error:
        raise fail("dataset_unreadable", f"{path}: {error.strerror}", fields=["dataset_path"]) from error


def slug(name: str) -> str:
    """An identifier that resembles `name`."""
    found = re.sub(r"[^A-Za-z0-9_.:-]+", "-", name.replace("..", "-")).strip("-_.:")[:120]
    return found or stable_id("id", name)
