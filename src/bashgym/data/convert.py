"""A dataset of any known shape written anew as canonical JSONL, whole or not at all.

Owns: the file. Does not own: what a row becomes (`formats`). The output reads back as the same examples.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bashgym.core.errors import fail
from bashgym.core.files import fsync_dir
from bashgym.data.findings import Collector
from bashgym.data.formats import Reading
from bashgym.data.readers import Scan
from bashgym.data.types import Finding, SftExample


def convert(
    path: Path,
    output: Path,
    *,
    dataset_format: str = "auto",
    column_mapping: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes `output` and returns {path, output, format, rows_read, rows_written, rows_skipped, sha256, findings}.

    Rows with errors are left out and reported. Raises `dataset_*`; `file_exists` unless `overwrite`; `usage` if both
    paths are one file; `directory_unwritable`. On any error `output` stays as it was.
    """
    path, output = Path(path), Path(output)
    findings: list[Finding] = []
    collector = Collector(findings)
    scan = Scan(path, collector)
    _refuse_output(path, output, overwrite)
    reading = Reading(scan, collector, dataset_format, column_mapping)
    try:
        written, digest = _write_whole(output, reading)
        if not written:
            raise fail("dataset_empty", f"{path} has no row that could be converted", hint=_first_error(collector))
    finally:
        collector.flush()
    return {
        "path": str(path),
        "output": str(output),
        "format": reading.shape.format,
        "rows_read": scan.rows,
        "rows_written": written,
        "rows_skipped": scan.rows - written,
        "sha256": digest,
        "findings": findings,
    }


def canonical_row(example: SftExample) -> dict[str, Any]:
    """The JSON object of an example. Weights go into its messages as `loss_weight`."""
    row: dict[str, Any]
    if example.text is not None:
        return {"text": example.text}
    if example.messages is not None:
        weights: Sequence[float | None] = example.weights or [None] * len(example.messages)
        row = {
            "messages": [
                message if weight is None else {**message, "loss_weight": weight}
                for message, weight in zip(example.messages, weights, strict=True)
            ]
        }
    else:
        row = {"prompt": example.prompt, "completion": example.completion}
    return row if example.tools is None else {**row, "tools": example.tools}


def _refuse_output(path: Path, output: Path, overwrite: bool) -> None:
    if output.exists() and output.samefile(path):
        raise fail("usage", f"{output} is the dataset itself; name another file to write")
    if output.exists() and not overwrite:
        raise fail("file_exists", f"{output} exists", hint="Name another file, or say --overwrite.")


def _write_whole(output: Path, reading: Reading) -> tuple[int, str]:
    """Rows written and the sha256 of the bytes. Without a row nothing is left behind."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    except OSError as error:
        raise fail("directory_unwritable", f"{output.parent} cannot be written: {error.strerror}") from error
    temporary = Path(name)
    try:
        written, digest = _write(handle, reading)
        if written:
            temporary.chmod(0o644)
            temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(output.parent)
    return written, digest


def _write(handle: int, reading: Reading) -> tuple[int, str]:
    state, count = hashlib.sha256(), 0
    with os.fdopen(handle, "wb") as out:
        for example in reading:
            row = json.dumps(canonical_row(example), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            line = row.encode() + b"\n"
            state.update(line)
            out.write(line)
            count += 1
        out.flush()
        os.fsync(out.fileno())
    return count, state.hexdigest()


def _first_error(collector: Collector) -> str:
    issue = next((issue for issue in collector.issues), None)
    return f"The first problem, row {issue.line}: {issue.message}." if issue else ""
