"""Were held-out things in the training rows? Asked of the run's own training file, whatever a report says it was told.

Covers: what `evals.contamination` covers, and environments by their content and by their id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.data.readers import iter_rows
from bashgym.data.types import Finding
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals.contamination import contaminated
from bashgym.evals.holdout import environment_hash


def training_file(manifest: Mapping[str, Any]) -> Path | None:
    """The file that a run trained on; None if it is not there as it was."""
    dataset = manifest.get("dataset")
    dataset = dataset if isinstance(dataset, dict) else {}
    path = Path(str(dataset.get("path") or ""))
    return path if path.is_file() and digest_file(path) == dataset.get("digest") else None


def questions(prompts: Mapping[str, Any], dataset: Path) -> list[str] | None:
    """Ids of the items whose question the training file holds; None if it cannot be read."""
    asked = {f"{item}\0{i}": text for item, prompt in prompts.items() for i, text in enumerate(turns(prompt))}
    try:
        return sorted({key.partition("\0")[0] for key in contaminated(asked, dataset)})
    except BashGymError:
        return None


def environments(held: Mapping[str, str], dataset: Path) -> list[str] | None:
    """Ids of the held-out environments ({id: hash}) that the training rows hold; None if the file cannot be read."""
    names, hit, findings = {sha: name for name, sha in held.items()}, set(), list[Finding]()
    try:
        for row in iter_rows(dataset, findings):
            raw = row.value.get("environment")
            if isinstance(raw, dict):
                spec = EnvironmentSpec.from_dict(raw)
                hit |= {spec.id} & held.keys() | {names[sha] for sha in (environment_hash(spec),) if sha in names}
    except BashGymError:
        return None
    return sorted(hit)


def turns(prompt: Any) -> Iterator[str]:
    """Every user turn of a conversation, or the string itself."""
    if isinstance(prompt, str):
        yield prompt
    for turn in prompt if isinstance(prompt, list) else ():
        if isinstance(turn, dict) and turn.get("role", turn.get("from")) in ("user", "human"):
            content = turn.get("content", turn.get("value"))
            if isinstance(content, str):
                yield content
