"""`bashgym training session-records ...`: records for session distillation, built from sessions and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bashgym.cli.output import Reply, note, safe
from bashgym.core.errors import fail


def build(
    traces: Annotated[Path, typer.Argument(help="Folder of session files.", metavar="DIR")],
    out: Annotated[Path, typer.Option(help="File to write; replaced whole.")] = Path(
        "data/session_distillation/records.jsonl"
    ),
    min_confidence: Annotated[float, typer.Option(help="Leave less certain records out.", min=0, max=1)] = 0.6,
    split: Annotated[str, typer.Option(help="Sessions to take: all, train or validation (1 in 10, by hash).")] = "all",
    limit: Annotated[int | None, typer.Option(help="At most this many records.", min=1)] = None,
) -> Reply:
    """Find failed steps and what mended them in Claude Code, Codex and own sessions. Exit status 1 without a record."""
    from bashgym.cli.progress import shown
    from bashgym.data.sessions.build import SPLITS
    from bashgym.data.sessions.build import build as build_file

    if split not in SPLITS:
        raise fail("usage", f"--split is one of {', '.join(SPLITS)}, not {split[:40]!r}", fields=["split"])
    with shown() as progress:
        doc = build_file(
            traces,
            out,
            min_confidence=min_confidence,
            split=split,
            limit=limit,
            progress=lambda share, text: progress("sessions", share, text),
        )
    if not doc["ok"]:
        note(f"no records: {doc['hint']}")

    def show() -> None:
        print(f"{doc['record_count']} records from {len(doc['files'])} sessions -> {safe(doc['output_path'])}")
        for reason, count in doc["skipped"].items():
            print(f"  left out: {count} {reason}")
        for kind, count in doc["redacted"].items():
            print(f"  redacted: {count} {kind}")
        for entry in doc["unreadable"]:
            print(f"  not read: {safe(entry['file'])}: {safe(entry['reason'])}")

    return Reply(doc, show, 0 if doc["ok"] else 1)


def validate(path: Annotated[Path, typer.Argument(help="File of records.", metavar="PATH")]) -> Reply:
    """Check every row of a record file. The exit status is 2 if one is not acceptable."""
    import msgspec

    from bashgym.data.contracts import check_dataset

    report = check_dataset(path, "session_distillation")
    doc = {
        "ok": report.is_valid,
        "path": str(path),
        "record_count": report.total_examples,
        "valid_count": report.valid_examples,
        "sha256": report.sha256,
        "findings": msgspec.to_builtins(report.findings),
    }

    def show() -> None:
        print(f"{safe(path)}: {report.valid_examples} of {report.total_examples} records are valid")
        for finding in report.findings:
            print(f"  {finding.severity} {finding.code}: {safe(finding.message)}")

    return Reply(doc, show, 0 if report.is_valid else 2)
