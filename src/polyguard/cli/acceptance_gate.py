"""Judges what this folder holds: training, artifacts, behaviour, improvement, corpus, knowledge, environment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bashgym.core.files import atomic_write_json, writable_dir
from polyguard.cli.command import run
from polyguard.loop.gate import CHECKS, document, run_checks


def main(argv: Sequence[str] | None = None) -> int:
    """Writes docs/results/acceptance_gate.json; exit status 1 if a check does not hold."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="acceptance_gate.py", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(CHECKS), default=(), help="only these; nothing is written")
    parser.add_argument("--json", action="store_true", help="the verdict as one JSON document on stdout")
    args = parser.parse_args(argv)
    checks = run_checks(Path(), tuple(args.only))
    found, target = document(Path(), checks), Path("docs/results/acceptance_gate.json")
    if not args.only:
        writable_dir(target.parent)
        atomic_write_json(target, found)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        for check in checks:
            print(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.evidence}")
            if check.remediation:
                print(f"       {check.remediation}")
        print(
            "accepted"
            if found["passed"]
            else f"refused: {sum(not check.passed for check in checks)} of {len(checks)} checks"
        )
    return 0 if found["passed"] else 1
