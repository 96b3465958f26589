"""Loads the saved model from its files and asks it held-out situations."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bashgym.core.errors import fail
from polyguard.cli.command import run
from polyguard.loop.postsave import REPORT, check


def main(argv: Sequence[str] | None = None) -> int:
    """Writes outputs/reports/postsave_inference.json."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="test_inference_postsave.py", description=__doc__)
    parser.add_argument("--samples", type=int, default=3, help="situations (default 3)")
    parser.add_argument("--model", type=Path, help="an artifact (default: GRPO adapter, merged model, SFT adapter)")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document on stdout")
    args = parser.parse_args(argv)
    if not 1 <= args.samples <= 2000:
        raise fail("usage", "--samples is from 1 to 2000", fields=["samples"])
    report = check(args.samples, args.model)
    line = (
        f"{report['model_source']}: readable {report['valid_json_rate']:.0%}, legal {report['legality_rate']:.0%}, "
        f"reward {report['avg_env_reward']:.3f}, {report['latency_ms']['mean']:.0f} ms; report in {REPORT}"
    )
    print(json.dumps(report, indent=2) if args.json else line)
    return 0
