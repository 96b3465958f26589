"""Manifests of the split and of decontamination: which rows were held out, and that training did not hold them.

Owns both documents and their rule. The comparison itself is `evals.contamination`'s, over every text of every training row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_json
from bashgym.data.readers import iter_rows
from bashgym.data.types import Finding
from bashgym.evals.contamination import contaminated
from bashgym.evidence.binding import read_or_empty
from bashgym.evidence.inspection import part
from bashgym.evidence.overlap import training_file, turns

SCHEMAS = {
    "split_manifest": "bashgym.split_manifest.v1",
    "decontamination_manifest": "bashgym.decontamination_manifest.v1",
}


def write(run_dir: Path, heldout: Path) -> dict[str, dict[str, Any]]:
    """Writes both manifests into the run directory. `dataset_missing` where the training file is not there as it was."""
    manifest = read_or_empty(run_dir / "manifest.json")
    train = training_file(manifest)
    if train is None:
        raise fail(
            "dataset_missing", "the file that the run trained on is not there as it was", fields=["dataset_path"]
        )
    findings: list[Finding] = []
    asked = {
        f"{row.number}.{i}": text
        for row in iter_rows(heldout, findings)
        for i, text in enumerate(turns(row.value.get("messages") or row.value.get("prompt")))
    }
    if not asked:
        raise fail("dataset_empty", f"{heldout.name} has no row with a prompt", fields=["heldout"])
    both = {
        "run_id": manifest.get("run_id"),
        "train_sha256": digest_file(train),
        "heldout_sha256": digest_file(heldout),
    }
    found = contaminated(asked, train)
    made = {
        "split_manifest": {
            **both,
            "train_rows": part(manifest, "dataset").get("rows"),
            "heldout_questions": len(asked),
        },
        "decontamination_manifest": {**both, "n_checked": len(asked), "contaminated": found},
    }
    for kind, document in made.items():
        document["schema_version"] = SCHEMAS[kind]
        atomic_write_json(run_dir / f"{kind}.json", document)
    return made


def fault(kind: str, document: dict[str, Any], run_id: str, trained: object) -> str:
    """What is wrong with a manifest of a run that trained on the file of digest `trained`."""
    held = document.get("heldout_sha256")
    checks = (
        (document.get("schema_version") != SCHEMAS[kind], f"not a {SCHEMAS[kind]}"),
        (document.get("run_id") != run_id, f"about {str(document.get('run_id'))[:60]!r}"),
        (not trained or document.get("train_sha256") != trained, "not of the file that the run trained on"),
        (not isinstance(held, str) or len(held) != 64 or held == trained, "nothing was held out"),
        (
            kind == "decontamination_manifest"
            and (document.get("contaminated") != {} or not document.get("n_checked")),
            "held-out questions are in the training rows, or none was looked for",
        ),
    )
    return next((reason for wrong, reason in checks if wrong), "")
