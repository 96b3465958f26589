"""Builds the training corpora: SFT conversations and GRPO prompts, from the training split alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from polyguard.cli.command import run, say
from polyguard.env.tasks import TASKS
from polyguard.training.corpus import PROFILES, PROMPTS, REPORT, SFT, Wish, build


def main(argv: Sequence[str] | None = None) -> int:
    """Writes data/processed/training_corpus_*.jsonl and outputs/reports/training_corpus_report.json."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="build_training_corpus.py", description=__doc__)
    parser.add_argument("--profile", choices=tuple(PROFILES), default="small", help="size (default small)")
    parser.add_argument("--with-local", action="store_true", help="questions from the knowledge tables")
    parser.add_argument("--with-synthetic", action="store_true", help="episodes that the teacher plays")
    parser.add_argument("--with-hf", action="store_true", help="an instruction dataset, where the Hub can be reached")
    parser.add_argument("--enable-ddi-api", action="store_true", help="openFDA labels, cached, as weak text")
    parser.add_argument(
        "--enable-web-fallback", action="store_true", help="named pages of allowed domains, as weak text"
    )
    parser.add_argument("--sft-rows", type=int, help="instead of the profile's number")
    parser.add_argument("--grpo-prompts", type=int, help="instead of the profile's number")
    parser.add_argument(
        "--tasks", nargs="+", choices=tuple(TASKS), default=tuple(TASKS), metavar="TASK", help="only these"
    )
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--json", action="store_true", help="the report as one JSON document on stdout")
    args = parser.parse_args(argv)
    wish = Wish(
        profile=args.profile,
        sft_rows=args.sft_rows,
        grpo_prompts=args.grpo_prompts,
        local=args.with_local,
        synthetic=args.with_synthetic,
        hf=args.with_hf,
        ddi_api=args.enable_ddi_api,
        web=args.enable_web_fallback,
        tasks=tuple(args.tasks),
        seed=args.seed,
    )
    report = build(wish, say)
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    print(
        f"{report['sft_examples']} SFT rows in {SFT}, {report['grpo_prompts']} GRPO prompts in {PROMPTS}, report in {REPORT}"
    )
    for name, source in report["sources"].items():
        if source["requested"]:
            print(
                f"  {name}: {source['count']}"
                + (f", skipped: {source['skipped_reason']}" if source["skipped_reason"] else "")
            )
    return 0
