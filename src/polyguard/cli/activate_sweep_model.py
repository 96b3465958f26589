"""Makes a trained model the active one, or the previous one again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from bashgym.core.errors import fail
from polyguard.cli.command import run
from polyguard.loop.active import MANIFEST, ORDER, activate, rollback


def main(argv: Sequence[str] | None = None) -> int:
    """Writes checkpoints/active/active_model_manifest.json and its mirror in docs/results."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="activate_sweep_model.py", description=__doc__)
    parser.add_argument("--source", choices=("sweep", "top-level"), default="sweep", help="where the run is")
    parser.add_argument("--run-id", help="of the sweep; at the top level a name")
    parser.add_argument("--preferred-artifact", choices=tuple(folder for _, folder in ORDER), default="grpo_adapter")
    parser.add_argument("--label", default="", help="what it is called")
    parser.add_argument("--force", action="store_true", help="although the acceptance gate refused it")
    parser.add_argument("--rollback", action="store_true", help="the previous one again")
    parser.add_argument("--json", action="store_true", help="the manifest as one JSON document on stdout")
    args = parser.parse_args(argv)
    if not args.rollback and not args.run_id:
        raise fail("usage", "which run is meant?", "Give --run-id.", ["--run-id"])
    how = {
        "source": args.source,
        "run_id": args.run_id or "",
        "preferred": args.preferred_artifact,
        "label": args.label,
    }
    found = rollback() if args.rollback else activate(**how, force=args.force)
    line = f"active: {found['label']}, {found['activated_kind']} at {found['activated_path']}; manifest in {MANIFEST}"
    print(json.dumps(found, indent=2) if args.json else line)
    return 0
