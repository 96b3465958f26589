"""Checks the knowledge tables: those of the package, or a file."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bashgym.core.files import read_object
from polyguard import DISCLAIMER
from polyguard.cli.command import run
from polyguard.knowledge.tables import Knowledge, read_tables
from polyguard.knowledge.validate import faults

_COUNTED = ("drugs", "groups", "products", "beers", "stopp_start", "renal_rules", "hepatic_rules", "taper_rules")
_COUNTED_TOO = ("substitutions", "monitoring_rules", "duplicate_therapy", "sources")


def main(argv: Sequence[str] | None = None) -> int:
    """Says what is in the tables, or every fault; exit status 1 if there is one."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="validate_knowledge.py", description=__doc__)
    parser.add_argument("--tables", type=Path, help="a JSON file of this form (default: the tables of the package)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args(argv)
    tables = read_tables() if args.tables is None else read_object(args.tables)
    report = report_on(tables)
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(report)))
    return 0 if report["valid"] else 1


def report_on(tables: dict[str, Any]) -> dict[str, Any]:
    """Faults, and what the tables hold if there are none."""
    found = faults(tables)
    report: dict[str, Any] = {"valid": not found, "faults": found, "disclaimer": DISCLAIMER}
    if not found:
        knowledge = Knowledge(tables)
        report |= {
            "version": knowledge.version,
            "rows": {name: len(tables[name]) for name in (*_COUNTED, *_COUNTED_TOO)},
            "interactions": {
                "rules": len(tables["interactions"]),
                "pairs": len(knowledge.pairs),
                "pairs_by_severity": dict(Counter(item.severity for item in knowledge.pairs.values())),
            },
        }
    return report


def _lines(report: dict[str, Any]) -> list[str]:
    if not report["valid"]:
        return [*report["faults"], f"{len(report['faults'])} faults"]
    pairs = report["interactions"]
    rows = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in report["rows"].items())
    return [
        f"valid, version {report['version']}: {rows}",
        f"{pairs['rules']} interaction rules for {pairs['pairs']} pairs: {pairs['pairs_by_severity']}",
        report["disclaimer"],
    ]
