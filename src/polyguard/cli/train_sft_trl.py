"""Trains on the teacher's answers, as a BashGym run of strategy sft."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from polyguard.cli.command import run, say
from polyguard.cli.training import add_flags, order_of, show
from polyguard.training import corpus, stages


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the adapter and outputs/reports/sft_trl_run.json."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="train_sft_trl.py", description=__doc__)
    add_flags(parser)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--corpus", type=Path, default=corpus.SFT)
    parser.add_argument("--output-dir", type=Path, default=stages.SFT_ADAPTER)
    parser.add_argument("--report-path", type=Path, default=stages.SFT_REPORT)
    args = parser.parse_args(argv)
    order = order_of(args, args.batch_size)
    report = stages.sft(order, data=args.corpus, target=args.output_dir, report=args.report_path, say=say)
    return show(report, str(args.report_path), args.json)
