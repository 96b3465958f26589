"""Writes the knowledge tables and some simulated patients as data files, under `data/` of the current folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.files import atomic_write_json, atomic_write_text, writable_dir
from polyguard import DISCLAIMER
from polyguard.cli.command import run, say
from polyguard.knowledge import load
from polyguard.knowledge.export import export, write_lines

PROCESSED = Path("data/processed")
SUMMARY = Path("data/artifacts/bootstrap_data_summary.json")
REPORT = Path("docs/results/dataset_report.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Writes them and says how many rows each has."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="bootstrap_data.py", description=__doc__)
    parser.add_argument("--patients", type=int, default=20, help="how many simulated patients (default 20)")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON document")
    args = parser.parse_args(argv)
    if args.patients < 1:
        parser.error("--patients must be 1 or more")
    summary = bootstrap(args.patients)
    if args.json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print(f"{len(summary['files'])} files in {summary['processed_dir']}, summary in {SUMMARY}")
    return 0


def bootstrap(n_patients: int) -> dict[str, Any]:
    """Writes every file, and the summary last: where it is, the others are."""
    for path in (PROCESSED, SUMMARY.parent, REPORT.parent):
        writable_dir(path)
    knowledge = load()
    say(f"knowledge {knowledge.version}: {len(knowledge.drugs)} drugs")
    files = export(knowledge, PROCESSED)
    say(f"{n_patients} simulated patients")
    files["patients_synthetic.jsonl"] = write_lines(PROCESSED / "patients_synthetic.jsonl", patients(n_patients))
    summary = {
        "status": "ok",
        "disclaimer": DISCLAIMER,
        "knowledge_version": knowledge.version,
        "processed_dir": PROCESSED.as_posix(),
        "docs_report": REPORT.as_posix(),
        "files": files,
    }
    atomic_write_text(REPORT, _markdown(summary))
    atomic_write_json(SUMMARY, summary)
    return summary


def patients(count: int) -> list[dict[str, Any]]:
    """What an agent is shown of the patients of the train split, task by task in turn; nothing latent."""
    from polyguard.env.engine import Engine
    from polyguard.env.tasks import TASKS

    names = list(TASKS)
    engine = Engine()
    rows = []
    for place in range(count):
        task, index = names[place % len(names)], place // len(names)
        seen = engine.reset(task, split="train", index=index)
        rows.append(
            {
                "patient_id": f"{task}:train:{index:05d}",
                "task_id": task,
                "difficulty": str(seen.difficulty),
                **{
                    name: msgspec.to_builtins(getattr(seen, name))
                    for name in ("patient", "medications", "labs", "vitals", "warnings", "burden", "missing")
                },
            }
        )
    return rows


def _markdown(summary: dict[str, Any]) -> str:
    rows = [f"| `{name}` | {row['rows']} | `{row['sha256'][:12]}` |" for name, row in summary["files"].items()]
    return "\n".join(
        [
            "# Data",
            "",
            summary["disclaimer"],
            "",
            f"Written by `scripts/bootstrap_data.py` into `{summary['processed_dir']}` from the knowledge tables, version",
            f"`{summary['knowledge_version']}`. Where they come from and what was mended: `src/polyguard/knowledge/CHANGES.md`.",
            "",
            "| file | rows | sha256 |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
