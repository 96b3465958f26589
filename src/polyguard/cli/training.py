"""What the two training commands share: flags, and how a report is shown."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from bashgym.core.errors import fail
from polyguard.cli.command import say
from polyguard.training.stages import Order

FALLBACK = "POLYGUARD_ALLOW_TRAIN_FALLBACK"
_TINY = "bashgym/tiny-qwen2"
TINY_RATE = 1e-3
"""Random weights take larger steps than pretrained ones."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of both stages."""
    parser.add_argument("--model-id", default=_TINY, help="built-in name, Hub id or folder")
    parser.add_argument(
        "--epochs", type=int, default=1, help="passes over the corpus, where --max-steps does not end it before"
    )
    parser.add_argument("--max-steps", type=int, default=0, help="optimizer steps; 0 or less: whole epochs")
    parser.add_argument("--use-unsloth", action="store_true", help="speed up with Unsloth where it is there")
    parser.add_argument(
        "--allow-fallback", action="store_true", help=f"train without TRL if need be (also {FALLBACK}=true)"
    )
    parser.add_argument("--lora-r", type=int, default=16, help="rank of the adapter; 0 trains all weights")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--max-length", type=int, default=1280, help="tokens of a row")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--ask", type=int, default=24, help="situations of each split that the saved artifact answers")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=JSON", help="a further field of the BashGym run"
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON document on stdout")


def order_of(args: argparse.Namespace, batch_size: int) -> Order:
    """The order; `missing_extra` where TRL is not installed, and nothing else is trained unless it is allowed."""
    from importlib.util import find_spec

    if find_spec("trl") is None:
        allowed = args.allow_fallback or os.environ.get(FALLBACK, "").lower() == "true"
        hint = "pip install 'bashgym[polyguard]'" + (
            ": there is no fallback trainer in this version" if allowed else ""
        )
        raise fail("missing_extra", "TRL is not installed", hint)
    rate = args.learning_rate or (TINY_RATE if args.model_id == _TINY else 2e-4)
    return Order(
        model_id=args.model_id,
        epochs=args.epochs,
        max_steps=args.max_steps,
        lora_r=args.lora_r,
        learning_rate=rate,
        batch_size=batch_size,
        max_length=args.max_length,
        seed=args.seed,
        use_unsloth=args.use_unsloth,
        ask=args.ask,
        settings=_settings(args.set),
    )


def _settings(items: list[str]) -> dict[str, Any]:
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
        if not equals or not name:
            raise fail("usage", f"--set needs FIELD=VALUE, not {item[:80]!r}", fields=["--set"])
    return found


def show(report: dict[str, Any], path: str, as_json: bool) -> int:
    """Prints a report; 0 if it is ok."""
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print(
            f"{report['stage']} {report['status']}: {report['steps_completed']} steps, {report['backend']}, "
            f"{report['artifact_path']}"
        )
        print(
            f"  held-out reward {report['holdout_reward']:.3f}, training {report['train_reward']:.3f}; report in {path}"
        )
        print(
            f"  readable {report['validity_rate']:.0%}, legal {report['legality_rate']:.0%}, "
            f"exploits {report['exploit_rate']:.0%}"
        )
        if report["unsloth"]["requested"] and not report["unsloth"]["used"]:
            say(f"unsloth is not used: {report['unsloth']['reason']}")
    return 0 if report["status"] == "ok" else 1
