"""Merges an adapter into its base, and keeps the result only if it answers as the two did."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from polyguard.cli.command import run
from polyguard.training.merge import REPORT, merge


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the merged model and outputs/reports/merge_report.json."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="merge_adapters_safe.py", description=__doc__)
    parser.add_argument("--adapter-dir", type=Path, default=Path("checkpoints/sft_adapter"))
    parser.add_argument("--output-dir", type=Path, default=Path("checkpoints/merged"))
    parser.add_argument("--force", action="store_true", help="replace what is in --output-dir")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document on stdout")
    args = parser.parse_args(argv)
    report = merge(args.adapter_dir, args.output_dir, force=args.force)
    worst, greedy = report["parity"]["max_relative_difference"], report["greedy_agreement"]
    line = f"merged into {args.output_dir}: logits differ by at most {worst:.1e}, same token {greedy:.1%}; report in {REPORT}"
    print(json.dumps(report, indent=2) if args.json else line)
    return 0
