"""Trains on rewards of the environment, as a BashGym run of strategy grpo."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from polyguard.cli.command import run, say
from polyguard.cli.training import add_flags, order_of, show
from polyguard.training import corpus, stages


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the adapter and outputs/reports/grpo_trl_run.json."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="train_grpo_trl.py", description=__doc__)
    add_flags(parser)
    parser.add_argument("--num-generations", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--batch-size", type=int, default=8, help="answers of an optimizer step")
    parser.add_argument(
        "--sft-adapter", type=Path, help="start from this artifact (default: checkpoints/sft_adapter if it fits)"
    )
    parser.add_argument("--max-prompts", type=int, default=0, help="the first so many prompts; 0: all")
    parser.add_argument("--max-completion-length", type=int, default=64)
    parser.add_argument("--beta", type=float, default=0.0, help="weight of the KL term")
    parser.add_argument("--corpus", type=Path, default=corpus.PROMPTS)
    parser.add_argument("--output-dir", type=Path, default=stages.GRPO_ADAPTER)
    parser.add_argument("--report-path", type=Path, default=stages.GRPO_REPORT)
    args = parser.parse_args(argv)
    report = stages.grpo(
        order_of(args, args.batch_size),
        num_generations=args.num_generations,
        max_prompts=args.max_prompts,
        max_completion_length=args.max_completion_length,
        beta=args.beta,
        start=args.sft_adapter,
        data=args.corpus,
        target=args.output_dir,
        report=args.report_path,
        say=say,
    )
    return show(report, str(args.report_path), args.json)
