"""Score files: writing them whole, reading them strictly, and comparing two of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_bytes, read_object
from bashgym.evals.compare import compare, compare_counts
from bashgym.evals.suites import Score
from bashgym.store.jsonl import read_jsonl

REPORT = "report.json"


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """One line per score, whole or not at all."""
    atomic_write_bytes(path, b"".join(msgspec.json.encode(score) + b"\n" for score in scores))


def read_scores(path: Path) -> list[Score]:
    """Every line of a score file; `file_missing`, `file_unreadable`, or `eval_incomplete` if a line is torn."""
    if not path.is_file():
        raise fail("file_missing", f"the score file {path} does not exist")
    rows, torn = read_jsonl(path)
    if torn:
        raise fail("eval_incomplete", f"{torn} lines of {path} cannot be read", "Resume or repeat the evaluation.")
    try:
        return msgspec.convert(rows, list[Score])
    except msgspec.ValidationError as error:
        raise fail("file_unreadable", f"{path} is not a score file: {error}") from error


def compare_files(candidate: Path, baseline: Path, *, n_resamples: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """The comparison of two score files (JSONL), or of two objects with `n` and `correct`.

    Where a score file still is what the report beside it names, its suite digest counts too. `eval_incomplete` as
    `compare`.
    """
    if candidate.suffix == ".json" and baseline.suffix == ".json":
        return compare_counts(read_object(baseline), read_object(candidate))
    digests = (_suite_digest(candidate), _suite_digest(baseline))
    return compare(
        read_scores(candidate), read_scores(baseline), suite_digests=digests, n_resamples=n_resamples, seed=seed
    )


def _suite_digest(path: Path) -> str:
    """The suite digest by the report beside a score file, empty without one. `digest_mismatch` if the file changed."""
    try:
        report = read_object(path.parent / REPORT)
    except BashGymError:
        return ""
    named = report.get("scores")
    for entry in named.values() if isinstance(named, dict) else ():
        if isinstance(entry, dict) and Path(str(entry.get("path"))).name == path.name:
            if entry.get("sha256") != digest_file(path):
                raise fail("digest_mismatch", f"{path} is no longer what its report names")
            suite = report.get("suite")
            return str(suite.get("digest") or "") if isinstance(suite, dict) else ""
    return ""
