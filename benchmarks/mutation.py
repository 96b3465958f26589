"""`python -m benchmarks.mutation`: does a test fail when a gate is broken? Mutates gate and RunCard modules, one place at a time.

Operators: comparisons flipped, `and` and `or` swapped, `not` dropped, numbers and booleans changed, findings left unsaid.
Each mutant runs the fast tests in a fork of one warm process. Strings are not mutated: they are words for people.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ("tests/unit/evidence",)
GATES = ("tests/unit/evals/test_environment_gates.py", "tests/unit/evals/test_compare.py")
TARGETS = {
    **{
        f"bashgym.evidence.{name}": EVIDENCE
        for name in (
            *("release", "runcard", "binding", "bundle", "inspection", "scores"),
            *(
                f"checks.{part}"
                for part in ("claims", "documents", "integrity", "kinds", "metrics", "release", "rows", "run")
            ),
        )
    },
    **{f"bashgym.evals.{name}": GATES for name in ("compare", "holdout", "environment_comparison", "passk", "wire")},
    **{
        f"bashgym.evals.{name}": (f"tests/unit/evals/test_{name}.py",)
        for name in ("multiplicity", "contamination", "benchmarks")
    },
}
TIMEOUT_S = 90
_FLIPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SAYS = {"fail", "warn", "note"}


@dataclass(frozen=True)
class Mutant:
    """One change at one place."""

    module: str
    line: int
    what: str
    tree: ast.Module


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    source = Path(_file(module)).read_text()
    tree = ast.parse(source)
    places = list(ast.walk(tree))
    words = {
        id(inner) for node in places if isinstance(node, ast.Slice | ast.FormattedValue) for inner in ast.walk(node)
    }
    for index, node in enumerate(places):
        # Where a text is cut and how a number is shown is for people.
        for variant in range(0 if id(node) in words else _variants(node)):
            made = copy.deepcopy(tree)
            what = _mutate(list(ast.walk(made))[index], variant)
            yield Mutant(module, getattr(node, "lineno", 0), what, ast.fix_missing_locations(made))


def _file(module: str) -> Path:
    return ROOT / "src" / Path(*module.split(".")).with_suffix(".py")


def _variants(node: ast.AST) -> int:
    if isinstance(node, ast.Compare):
        return len(node.ops)
    if isinstance(node, ast.Constant):
        return int(isinstance(node.value, int | float))
    said = (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
    )
    return int(isinstance(node, ast.BoolOp) or _is_not(node) or (said and node.value.func.attr in _SAYS))  # type: ignore[attr-defined]


def _is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _mutate(node: ast.AST, variant: int) -> str:
    before = ast.unparse(node)
    if isinstance(node, ast.Compare):
        node.ops[variant] = _FLIPS[type(node.ops[variant])]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        node.value = (not node.value) if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.Expr):
        node.value = ast.Constant(None)
    return f"{before[:70]}  ->  {ast.unparse(node)[:70]}"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == self._mutant.module else None

    def exec_module(self, module):
        module.__file__ = str(_file(self._mutant.module))
        exec(compile(self._mutant.tree, module.__file__, "exec"), module.__dict__)


def survives(mutant: Mutant) -> bool:
    """Whether all fast tests pass with the mutant; a mutant that hangs is killed."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.meta_path.insert(0, _Finder(mutant))
        import pytest

        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TARGETS[mutant.module]])
        os._exit(0 if code == 0 else 1)
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def warm() -> None:
    """Imports what every mutant needs and none of the targets."""
    for name in (
        "pytest",
        "numpy",
        "scipy.special",
        "scipy.stats",
        "msgspec",
        "hypothesis",
        "bashgym.core.errors",
        "aiohttp",
    ):
        importlib.import_module(name)
    assert not TARGETS.keys() & sys.modules.keys()


def main() -> int:
    """Prints every survivor and the share that was killed; exit status 1 below the goal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=0, help="this many mutants, drawn by seed; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=0.9)
    parser.add_argument("--module", action="append")
    given = parser.parse_args()
    os.chdir(ROOT)
    warm()
    every = [mutant for module in TARGETS if not given.module or module in given.module for mutant in mutants(module)]
    chosen = random.Random(given.seed).sample(every, min(given.sample, len(every))) if given.sample else every
    survivors, counts = [], {}
    for i, mutant in enumerate(chosen, 1):
        lived = survives(mutant)
        total, alive = counts.get(mutant.module, (0, 0))
        counts[mutant.module] = (total + 1, alive + lived)
        if lived:
            survivors.append(mutant)
            print(f"survived  {mutant.module}:{mutant.line}  {mutant.what}", flush=True)
        print(f"\r{i}/{len(chosen)}", end="", file=sys.stderr, flush=True)
    for module, (total, alive) in sorted(counts.items()):
        print(f"{module}: {total - alive} of {total} killed")
    rate = 1 - len(survivors) / max(1, len(chosen))
    print(f"killed {len(chosen) - len(survivors)} of {len(chosen)} ({rate:.1%}) of {len(every)} mutants")
    return 0 if rate >= given.goal else 1


if __name__ == "__main__":
    sys.exit(main())
