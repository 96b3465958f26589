"""Measures how fast a model answers, and how often its answers are valid: the inference benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from bashgym.core.errors import fail
from polyguard.cli.command import run, say
from polyguard.cli.judging import bench_of, chosen, finish, parser_of, policy_of
from polyguard.evaluation.inference import benchmark
from polyguard.evaluation.stacks import STACKS


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the benchmark."""
    return run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = parser_of("benchmark_inference", __doc__, "inference_benchmark.json", 20)
    parser.add_argument("--provider", default="transformers", choices=("transformers", "stack"), help="what answers")
    parser.add_argument("--model", help="a model, or with --provider stack a policy stack (default: the active model)")
    parser.add_argument("--runs", type=int, default=5, help="how often (default 5)")
    args = parser.parse_args(argv)
    if args.runs < 1:
        raise fail("invalid_field", "--runs must be at least 1", fields=["runs"])
    if args.provider == "stack":
        name = args.model or "agent_stack"
        if name not in STACKS:
            raise fail("invalid_field", f"{name} is no stack; one of {', '.join(STACKS)}", fields=["model"])
        policy = policy_of(name, args.profile)
    else:
        bench = bench_of(args.model, args.profile)
        policy, name = bench.llm(), str(bench.model)
    report = benchmark(policy, chosen(args), runs=args.runs, provider=args.provider, model=name, say=say)
    mean, latency = report["mean"], report["latency_ms"]
    finish(args, report, [f"{name}: {latency['mean']:.1f} ms, valid {mean['valid_json_rate']:.2f}"])
    return 0
