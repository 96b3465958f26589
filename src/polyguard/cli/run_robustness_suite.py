"""Plays the same scenarios with labs lost, brand names, noise, other orders and hostile notes: what each costs a policy."""

from __future__ import annotations

from collections.abc import Sequence

from polyguard.cli.command import run, say
from polyguard.cli.judging import chosen, finish, parser_of, policy_of
from polyguard.evaluation.robustness import robustness


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the robustness report."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = parser_of("run_robustness_suite", __doc__, "robustness_report.json", 200)
    parser.add_argument("--policy", default="agent_stack", help="a stack or a model (default agent_stack)")
    args = parser.parse_args(argv)
    report = robustness(policy_of(args.policy, args.profile), chosen(args), profile=args.profile, say=say)
    lines = [
        f"{name:22} return {row['avg_return']['delta']:+.3f}  legality {row['legality_rate']['delta']:+.3f}"
        for name, row in report["changes"].items()
    ]
    finish(args, report, lines)
    return 0
