"""What the commands that judge policies share: which scenarios, which model, where the report goes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_json, writable_dir
from polyguard.env.tasks import COUNT, TASKS
from polyguard.evaluation.play import Scenario, scenarios
from polyguard.evaluation.stacks import NEEDS_MODEL, STACKS, Bench
from polyguard.policies.base import Policy

REPORTS = Path("outputs/reports")


def parser_of(name: str, doc: str | None, report: str, episodes: int) -> argparse.ArgumentParser:
    """A parser with the flags that all of them have."""
    parser = argparse.ArgumentParser(prog=f"{name}.py", description=doc)
    parser.add_argument(
        "--episodes", type=int, default=episodes, help=f"scenarios, the same for all (default {episodes})"
    )
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"))
    parser.add_argument("--profile", default="strict", choices=("compat", "strict"), help="weights of the reward")
    parser.add_argument("--output", type=Path, default=REPORTS / report, help="where the report is written")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document on stdout")
    return parser


def chosen(args: argparse.Namespace) -> list[Scenario]:
    """The scenarios of a command: at most as many as the split has."""
    most = COUNT[args.split] * len(TASKS)
    if not 1 <= args.episodes <= most:
        raise fail("invalid_field", f"--episodes is from 1 to {most} in {args.split}", fields=["episodes"])
    return scenarios(args.split, args.episodes)


def bench_of(model: str | None, profile: str) -> Bench:
    """A bench with the model that is named, or with the one that is active or was trained here, or with none."""
    if model is not None:
        return Bench(model=model, profile=profile)
    from polyguard.loop.active import resolve_model

    found = resolve_model()
    return Bench(model=None if found is None else found.path, profile=profile)


def policy_of(name: str, profile: str) -> Policy:
    """A policy by the name of a stack, or else a model by anything that the catalog resolves."""
    bench = bench_of(None, profile) if name in NEEDS_MODEL else Bench(model=name, profile=profile)
    policy = STACKS[name](bench) if name in STACKS else bench.llm()
    if not isinstance(policy, Policy):
        raise fail(
            "invalid_field", f"{name} sees the truth and cannot be judged by what it is shown", fields=["policy"]
        )
    return policy


def finish(args: argparse.Namespace, report: dict[str, Any], lines: list[str]) -> None:
    """Writes the report; prints it, or a few lines."""
    writable_dir(args.output.parent)
    atomic_write_json(args.output, report)
    print(
        json.dumps(report, indent=2, ensure_ascii=False) if args.json else "\n".join([*lines, f"report: {args.output}"])
    )
