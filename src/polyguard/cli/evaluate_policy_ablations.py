"""Plays every policy stack, and the agent stack without each of its parts, on the same scenarios of the test split."""

from __future__ import annotations

from collections.abc import Sequence

from polyguard.cli.command import run, say
from polyguard.cli.judging import bench_of, chosen, finish, parser_of
from polyguard.evaluation.ablations import ablate, line_of
from polyguard.evaluation.stacks import STACKS


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the ablation report. Stacks without a model are recorded as skipped."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = parser_of("evaluate_policy_ablations", __doc__, "grpo_ablation_report.json", 200)
    parser.add_argument("--stacks", nargs="+", choices=tuple(STACKS), help="only these (default: all)")
    parser.add_argument(
        "--model", help="a model for the llm stacks (default: the active one, or what was trained here)"
    )
    parser.add_argument(
        "--component-episodes",
        type=int,
        help="scenarios for the parts of stacks; 0 leaves them out (default: as --episodes)",
    )
    args = parser.parse_args(argv)
    scenarios, bench = chosen(args), bench_of(args.model, args.profile)
    parts_on = scenarios
    if args.component_episodes is not None:
        args.episodes = args.component_episodes
        parts_on = chosen(args) if args.episodes else []
    report = ablate(scenarios, bench, stacks=args.stacks, parts_on=parts_on, say=say)
    finish(args, report, [line_of(name, row) for name, row in report["policy_stacks"].items()])
    return 0
