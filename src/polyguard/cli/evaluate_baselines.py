"""Plays the policies that need no model, with intervals and subgroups: what a trained model has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from polyguard.cli.command import run, say
from polyguard.cli.judging import chosen, finish, parser_of
from polyguard.evaluation.ablations import ablate, line_of
from polyguard.evaluation.stacks import NEEDS_MODEL, STACKS, Bench

_HERE = tuple(name for name in STACKS if name not in NEEDS_MODEL)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the baselines' report."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = parser_of("evaluate_baselines", __doc__, "baselines.json", 200)
    parser.add_argument("--stacks", nargs="+", choices=_HERE, default=_HERE, help="only these (default: all)")
    args = parser.parse_args(argv)
    report = ablate(chosen(args), Bench(profile=args.profile), stacks=args.stacks, say=say)
    finish(args, report, [line_of(name, row) for name, row in report["policy_stacks"].items()])
    return 0
