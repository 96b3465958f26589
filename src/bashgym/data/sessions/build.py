"""Records from a folder of sessions, written whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bashgym.core.canonical import canonical_json
from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_bytes, writable_dir
from bashgym.data.sessions.outcomes import Outcome, outcome
from bashgym.data.sessions.reading import read_session, session_files
from bashgym.data.sessions.records import build_records, split_of
from bashgym.data.sessions.redact import scrub_session

Progress = Callable[[float, str], None]
SPLITS = ("all", "train", "validation")


def build(
    traces: Path,
    out: Path,
    *,
    min_confidence: float = 0.6,
    split: str = "all",
    limit: int | None = None,
    progress: Progress = lambda share, text: None,
) -> dict[str, Any]:
    """Reads every session below `traces`, in path order, and writes the records as JSONL to `out`.

    `split` keeps the records of the sessions on that side. Without a record nothing is written and `ok` is false.
    Raises `file_missing` and `directory_unwritable`; a file that cannot be read is in `unreadable`.
    """
    files = [path for path in session_files(traces) if path.resolve() != out.resolve()]
    kept: dict[str, dict[str, Any]] = {}
    skipped, redacted = Counter[str](), Counter[str]()
    entries, unreadable, errors = list[dict[str, Any]](), list[dict[str, str]](), list[str]()
    for done, path in enumerate(files):
        if limit is not None and len(kept) >= limit:
            break
        name = path.relative_to(traces).as_posix()
        progress(done / len(files), f"{done} of {len(files)} files, {len(kept)} records")
        try:
            session = scrub_session(read_session(path), redacted)
        except BashGymError as error:
            unreadable.append({"file": name, "reason": error.message})
            continue
        records, why_not, invalid = build_records(session, name)
        errors += invalid
        taken = 0
        for record in records:
            reason = _left_out(record, kept, min_confidence, split)
            if reason or (limit is not None and len(kept) >= limit):
                why_not[reason or "over_limit"] += 1
                continue
            kept[record["record_id"]] = record
            taken += 1
        skipped += why_not
        failed = sum(outcome(step) is Outcome.FAILED for step in session.steps)
        entries.append(
            {"file": name, "steps": len(session.steps), "failed": failed, "records": taken}
            | ({"skipped": dict(why_not)} if why_not else {})
            | ({"faults": session.faults[:20]} if session.faults else {})
        )
    progress(1.0, f"{len(kept)} records from {len(entries)} sessions")
    if kept:
        writable_dir(out.parent)
        atomic_write_bytes(out, b"".join(canonical_json(record) + b"\n" for record in kept.values()))
    return {
        "ok": bool(kept),
        "traces_dir": str(traces),
        "record_count": len(kept),
        "output_path": str(out) if kept else None,
        "min_confidence": min_confidence,
        "split": split,
        "skipped": dict(sorted(skipped.items())),
        "redacted": {kind: count for kind, count in sorted(redacted.items()) if count},
        "validation_errors": errors[:50],
        "unreadable": unreadable,
        "files": entries,
        **({} if kept else {"hint": _hint(traces, entries, unreadable)}),
    }


def _left_out(record: dict[str, Any], kept: dict[str, Any], min_confidence: float, split: str) -> str:
    if record["reader_confidence"] < min_confidence:
        return "below_min_confidence"
    if split not in ("all", split_of(record["session_id"])):
        return "other_split"
    return "duplicate" if record["record_id"] in kept else ""


def _hint(traces: Path, entries: list[dict[str, Any]], unreadable: list[dict[str, str]]) -> str:
    if not entries and not unreadable:
        return f"There is no .json or .jsonl file below {traces}; Claude Code keeps sessions in ~/.claude/projects."
    if not entries:
        kinds = " and ".join(sorted({Path(entry["file"]).suffix for entry in unreadable}))
        return f"None of {len(unreadable)} {kinds} file(s) is of a known format; the last: {unreadable[-1]['reason']}."
    if not any(entry["failed"] for entry in entries):
        return f"{len(entries)} session(s) were read and no step of them failed."
    return "Steps failed, but none has a recovery that can be told; `skipped` counts why."
