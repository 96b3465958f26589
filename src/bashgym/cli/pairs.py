"""`bashgym training dpo-pairs ...`: preference pairs checked as evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bashgym.cli.output import Reply, safe


def validate(
    path: Annotated[Path, typer.Argument(help="File of preference pairs.", metavar="PATH")],
    strict: Annotated[bool, typer.Option("--strict", help="Missing provenance and metadata fail too.")] = False,
    max_length_ratio: Annotated[
        float, typer.Option(help="Warn where one answer has so many times the characters of the other.", min=1)
    ] = 3.0,
) -> Reply:
    """Check every pair of a file. The exit status is 2 if one is not acceptable."""
    from bashgym.data.pair_validation import validate_pairs

    doc = validate_pairs(path, strict=strict, max_length_ratio=max_length_ratio)

    def show() -> None:
        print(f"{safe(path)}: {doc['trainable_records']} of {doc['total_records']} pairs can be trained on")
        for finding in doc["findings"]:
            print(f"  {finding['level']} {finding['code']}: {safe(finding['message'])}")

    return Reply(doc, show, 0 if doc["ok"] else 2)
