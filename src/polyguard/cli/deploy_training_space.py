"""Bundles the training sweep for a Docker Space, and sends it there."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from polyguard.cli.command import run, say
from polyguard.loop.deploy import BUNDLE, Deployment, bundle, upload


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the bundle; unless it is all that is asked for, uploads it with HF_TOKEN."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="deploy_training_space.py", description=__doc__)
    parser.add_argument("--repo-id", required=True, help="the Space, owner/name")
    parser.add_argument("--artifact-repo-id", required=True, help="where reports and adapters go, owner/name")
    parser.add_argument("--hardware", default="cpu-basic", help="as the Hub names it: a10g-large, ...")
    parser.add_argument("--model-sweep", required=True, help="models, separated by commas")
    parser.add_argument("--training-mode", choices=("full", "sft-baseline"), default="full")
    for name in ("sft-epochs", "grpo-epochs"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("sft-max-steps", "grpo-max-steps", "grpo-max-prompts"):
        parser.add_argument(f"--{name}", type=int, default=0, help="0: no limit")
    parser.add_argument(
        "--sleep-time", type=int, default=3600, help="seconds without traffic after which the Space sleeps"
    )
    parser.add_argument("--bundle-dir", type=Path, default=BUNDLE)
    parser.add_argument(
        "--bundle-only", "--skip-upload", dest="bundle_only", action="store_true", help="nothing is sent"
    )
    parser.add_argument("--public", action="store_true", help="Space and artifacts may be seen by everybody")
    parser.add_argument("--json", action="store_true", help="the bundle's manifest as one JSON document on stdout")
    args = parser.parse_args(argv)
    asked = Deployment(
        repo_id=args.repo_id,
        artifact_repo_id=args.artifact_repo_id,
        hardware=args.hardware,
        models=tuple(name.strip() for name in args.model_sweep.split(",") if name.strip()),
        mode=args.training_mode,
        sft_epochs=args.sft_epochs,
        grpo_epochs=args.grpo_epochs,
        sft_max_steps=args.sft_max_steps,
        grpo_max_steps=args.grpo_max_steps,
        grpo_max_prompts=args.grpo_max_prompts,
        sleep_time=args.sleep_time,
        public=args.public,
        bundle_dir=args.bundle_dir,
    )
    found = bundle(asked)
    say(f"bundle: {len(found['files'])} files in {args.bundle_dir}")
    where = "not sent" if args.bundle_only else upload(asked)
    print(json.dumps(found, indent=2) if args.json else f"{', '.join(found['run_ids'])}: {where}")
    return 0
