"""`python -m benchmarks.mutation`: does a test fail when a gate is broken? Mutates gate and RunCard modules, one place at a time.

Operators: comparisons flipped, `and` and `or` swapped, `not` dropped, numbers and booleans changed, findings left unsaid. Strings
are not mutated: they are words for people. The tests are collected once and traced once; each mutant of a function is then a
fork in which the function has other code, and which runs the tests that reach the changed statement. What no test reaches
survives. Mutants outside of functions run in a fork that imports everything anew.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import copy
import importlib
import importlib.abc
import importlib.util
import inspect
import os
import pickle
import random
import select
import signal
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = tuple(sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("tests/unit/evidence/test_*.py")))
FIRST = {
    **dict.fromkeys(("checks.kinds", "retrieval", "overlap"), "test_kinds.py"),
    "recount": "test_recount.py",
    **dict.fromkeys(("release", "sections", "inspection"), "test_sections.py"),
    **dict.fromkeys(("archive", "signing"), "test_archive.py"),
    **dict.fromkeys(("checks.documents", "checks.rows"), "test_refusals.py"),
}
"""Which tests to run before the others of `EVIDENCE`: those that a mutant of the module most likely fails."""
GATES = ("tests/unit/evals/test_environment_gates.py", "tests/unit/evals/test_compare.py")
TARGETS = {
    **{
        f"bashgym.evidence.{name}": tuple(
            sorted(EVIDENCE, key=lambda test: not test.endswith(FIRST.get(name, "card_promotion.py")))
        )
        for name in (
            *("release", "runcard", "binding", "bundle", "inspection", "scores"),
            *("recount", "sections", "retrieval", "overlap", "archive", "signing", "rules", "manifests"),
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
TIMEOUT_S = 180
_FLIPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_NOT_SWAPPED = "not swapped"
_SAYS = {"fail", "warn", "note"}
_OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "tmp_path_retention_policy=none")


@dataclass(frozen=True)
class Mutant:
    """One change at one place."""

    module: str
    line: int
    what: str
    tree: ast.Module
    function: str
    """Qualified name of the function or method around it; empty outside of them."""
    span: range
    """Lines of the changed statement."""


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    source = Path(_file(module)).read_text()
    tree = ast.parse(source)
    places = list(ast.walk(tree))
    words = {
        id(inner) for node in places if isinstance(node, ast.Slice | ast.FormattedValue) for inner in ast.walk(node)
    }
    spans = _spans(tree)
    for index, node in enumerate(places):
        # Where a text is cut and how a number is shown is for people.
        for variant in range(0 if id(node) in words else _variants(node)):
            made = copy.deepcopy(tree)
            what = _mutate(list(ast.walk(made))[index], variant)
            function, span = spans.get(id(node), ("", range(0)))
            yield Mutant(module, getattr(node, "lineno", 0), what, ast.fix_missing_locations(made), function, span)


def _spans(tree: ast.Module) -> dict[int, tuple[str, range]]:
    """id of a node in a body -> (function or method, lines of the innermost statement; of a compound one, its head)."""
    found: dict[int, tuple[str, range]] = {}
    methods = [(f"{top.name}.{f.name}", f) for top in tree.body if isinstance(top, ast.ClassDef) for f in top.body
               if isinstance(f, ast.FunctionDef)]  # fmt: skip
    for name, function in [*((f.name, f) for f in tree.body if isinstance(f, ast.FunctionDef)), *methods]:
        for statement in (inner for top in function.body for inner in ast.walk(top) if isinstance(inner, ast.stmt)):
            body = getattr(statement, "body", None)
            end = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno or statement.lineno
            # Statements come before those inside them, so the innermost has the last word.
            found |= {id(node): (name, range(statement.lineno, end + 1)) for node in ast.walk(statement)}
    return found


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


class _Loop:
    """A pytest plugin that runs, in place of the tests, one fork for the traced tests and then one for each mutant."""

    def __init__(self, chosen, tell):
        self._chosen, self._tell = chosen, tell
        self._files = {str(_file(mutant.module)): mutant.module for mutant in chosen}
        self._now, self._tests = "", {}

    def pytest_runtestloop(self, session):
        self._items = {item.nodeid: item for item in session.items}
        begun = time.monotonic()
        reached = _forked(self._trace, 3600)
        # A mutant that takes so much longer than all tests, traced, hangs.
        limit_s = max(TIMEOUT_S, 3 * (time.monotonic() - begun))
        if not isinstance(reached, dict):
            raise pytest.UsageError(f"the tests of the targets do not pass unchanged: {reached}")
        kills = collections.Counter()
        for mutant in self._chosen:
            wanted = set().union(*(reached.get((mutant.module, line), ()) for line in mutant.span))
            # Those that found others come first.
            items = sorted((self._items[name] for name in wanted), key=lambda item: (-kills[item.nodeid], item.nodeid))
            found = _forked(lambda m=mutant, i=items: _swap(m) or _failing(i), limit_s) if items else ""
            if found == _NOT_SWAPPED:
                raise pytest.UsageError(f"{mutant.module}:{mutant.line}: {mutant.function} cannot be given other code")
            kills[found] += 1
            self._tell(mutant, found == "")
        return True

    def _trace(self):
        for name, item in self._items.items():
            self._now = name
            sys.settrace(self._call)
            try:
                if _failing([item]):
                    return name
            finally:
                sys.settrace(None)
        return self._tests

    def _call(self, frame, event, _):
        module = self._files.get(frame.f_code.co_filename)
        if module is None:
            return None
        self._tests.setdefault((module, frame.f_lineno), set()).add(self._now)
        return self._call


def _failing(items) -> str:
    """The first of these tests that fails; empty if none does."""
    bad = (item.nodeid for item in items if any(r.failed for r in runtestprotocol(item, log=False, nextitem=None)))
    return next(bad, "")


def _swap(mutant: Mutant) -> str:
    """Gives the function of the imported module the mutant's code; `_NOT_SWAPPED` where that cannot be done."""
    pending = [compile(mutant.tree, str(_file(mutant.module)), "exec")]
    codes = {}
    while pending:
        code = pending.pop()
        codes.setdefault(code.co_qualname, code)
        pending += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    found = sys.modules[mutant.module]
    try:
        for name in mutant.function.split("."):
            found = inspect.getattr_static(found, name)
        for inner in ("fget", "func", "__func__", "__wrapped__"):
            found = getattr(found, inner, found)
        found.__code__ = codes[mutant.function]
    except (AttributeError, KeyError, TypeError, ValueError):
        return _NOT_SWAPPED
    return ""


def _forked(work, timeout_s):
    """What `work` returns in a fork of this process; None if it fails or takes longer."""
    receive, send = os.pipe()
    if (pid := os.fork()) == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        with os.fdopen(send, "wb") as pipe:
            pickle.dump(work(), pipe)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        ready = select.select([pipe], [], [], timeout_s)[0]
        data = pipe.read() if ready else b""
    if not data:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else None


def _anew(mutant: Mutant) -> bool:
    """Whether all tests pass where the mutant is imported in place of its module, and all of ours after it."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith((f"{ROOT}/src/", f"{ROOT}/tests/")):
            del sys.modules[name]
    sys.meta_path.insert(0, _Finder(mutant))
    return pytest.main([*_OPTIONS, "-x", *TARGETS[mutant.module]]) == 0


def main() -> int:
    """Prints every survivor and the share that was killed; exit status 1 below the goal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=0, help="this many mutants, drawn by seed; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=0.9)
    parser.add_argument("--module", action="append")
    given = parser.parse_args()
    os.chdir(ROOT)
    every = [mutant for module in TARGETS if not given.module or module in given.module for mutant in mutants(module)]
    chosen = random.Random(given.seed).sample(every, min(given.sample, len(every))) if given.sample else every
    survivors, counts = [], {}

    def tell(mutant: Mutant, lived: bool) -> None:
        total, alive = counts.get(mutant.module, (0, 0))
        counts[mutant.module] = (total + 1, alive + lived)
        if lived:
            survivors.append(mutant)
            print(f"survived  {mutant.module}:{mutant.line}  {mutant.what}", file=out, flush=True)
        print(f"\r{sum(n for n, _ in counts.values())}/{len(chosen)}", end="", file=err, flush=True)

    # pytest captures what it can: these are the terminal's own.
    with os.fdopen(os.dup(1), "w") as out, os.fdopen(os.dup(2), "w") as err:
        inside = [mutant for mutant in chosen if mutant.function]
        files = list(dict.fromkeys(test for mutant in inside for test in TARGETS[mutant.module]))
        if inside and pytest.main([*_OPTIONS, "--no-summary", *files], plugins=[_Loop(inside, tell)]):
            return 2
        for mutant in (mutant for mutant in chosen if not mutant.function):
            tell(mutant, _forked(lambda m=mutant: _anew(m), TIMEOUT_S) is True)
    for module, (total, alive) in sorted(counts.items()):
        print(f"{module}: {total - alive} of {total} killed")
    rate = 1 - len(survivors) / max(1, len(chosen))
    print(f"killed {len(chosen) - len(survivors)} of {len(chosen)} ({rate:.1%}) of {len(every)} mutants")
    return 0 if rate >= given.goal else 1


if __name__ == "__main__":
    sys.exit(main())
