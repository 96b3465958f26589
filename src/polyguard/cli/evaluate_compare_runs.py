"""Compares two policies on the same scenarios and says whether the second is better: the improvement report.

A policy is the name of a stack (no_change, rules_only, ...), or a model: a folder, a built-in name, an adapter.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyguard.cli.command import run, say
from polyguard.cli.judging import chosen, finish, parser_of, policy_of
from polyguard.evaluation.improvement import improvement
from polyguard.evaluation.play import EpisodeRow, Scenario, play


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the improvement report; exit status 0 whether or not it improved."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = parser_of("evaluate_compare_runs", __doc__, "improvement_report.json", 200)
    parser.add_argument("--baseline", required=True, help="a stack or a model")
    parser.add_argument("--candidate", required=True, help="a stack or a model")
    args = parser.parse_args(argv)
    scenarios = chosen(args)
    baseline, candidate = (_rows(name, scenarios, args.profile) for name in (args.baseline, args.candidate))
    labels = {"baseline_label": args.baseline, "candidate_label": args.candidate}
    report = improvement(baseline, candidate, scenarios, **labels)
    lines = [
        f"{name:20} {row['baseline']:.3f} -> {row['candidate']:.3f}  [{row['ci_low']:+.3f}, {row['ci_high']:+.3f}]"
        for name, row in report["metrics"].items()
    ]
    verdict = "improved" if report["improved"] else f"not improved: {'; '.join(report['reasons'])}"
    finish(args, report, [*lines, verdict])
    return 0


def _rows(name: str, scenarios: Sequence[Scenario], profile: str) -> list[EpisodeRow]:
    say(f"{name}: {len(scenarios)} episodes")
    return play(policy_of(name, profile), scenarios, profile=profile)
