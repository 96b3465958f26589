"""Checkpoints, RunCards and a look into datasets. Ids where things are changed; confined paths where they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Response

from bashgym.api.http import Space, reply
from bashgym.core.errors import fail
from bashgym.core.settings import Settings

router = APIRouter(prefix="/api/training")


def _roots(settings: Settings) -> list[Path]:
    here = Path.cwd()
    return [settings.models_dir, settings.home, here / "data", here / "data-fixed"]


@router.get("/checkpoints")
def checkpoints(space: Space) -> Response:
    """Final, merged, GGUF and intermediate artifacts."""
    from bashgym.runs.artifacts import list_artifacts

    return reply(list_artifacts(space.settings.models_dir))


@router.delete("/checkpoints/{artifact_id}")
def delete_checkpoint(artifact_id: str, space: Space) -> Response:
    """Removes one artifact of a finished run."""
    from bashgym.runs.artifacts import artifact_name, delete_artifact

    artifact_name(artifact_id)
    return reply(delete_artifact(artifact_id, space.runs.locate(artifact_id.rpartition(":")[0])))


@router.get("/runcards")
def runcards(space: Space, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> Response:
    """The RunCards of the run directories."""
    from bashgym.evidence.runcard import list_cards

    return reply(list_cards([space.settings.models_dir], limit))


@router.get("/runcards/validate")
def validate_runcard(path: str, space: Space, promotion: bool = True) -> Response:
    """Re-hashes and re-judges a card below the run directories or the state folder."""
    from bashgym.evidence.runcard import validate
    from bashgym.runs.inspect_data import below

    card = below(path, _roots(space.settings))
    if not card.is_file():
        raise fail("file_missing", f"there is no RunCard {path[:200]}", fields=["path"])
    return reply(validate(card, promotion=promotion, models_dir=space.settings.models_dir))


@router.get("/dataset/inspect")
def inspect_dataset(
    path: str, space: Space, offset: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> Response:
    """A page of rows below the data folders."""
    from bashgym.runs.inspect_data import inspect

    return reply(inspect(path, _roots(space.settings), offset, limit))
