"""Python source that somebody else wrote, read without running it: does it parse, and does it test `solution`?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

MAX_CHARS = 100_000
"""Longer source is not parsed: the parser holds the interpreter's lock."""


def parse(source: str) -> tuple[ast.Module | None, str]:
    """(the module, "") or (None, why it is not Python). CPython itself stops at source nested too deeply for its stack."""
    if len(source) > MAX_CHARS:
        return None, f"longer than {MAX_CHARS} characters"
    try:
        return ast.parse(source), ""
    except SyntaxError as error:
        return None, f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return None, f"{type(error).__name__}: {error}"


@lru_cache(maxsize=1024)
def fault_of_tests(source: str) -> tuple[str, str]:
    """("", "") for source that pytest can judge `solution` by, else ("error" or "warning", what is wrong)."""
    module, reason = parse(source)
    if module is None:
        return "error", f"tests is not Python: {reason}"
    names = [*_defined(module)]
    if not any(name.startswith("test") or name.startswith("Test") for name in names):
        return "warning", "tests defines no test function, so nothing would be judged"
    if not any(_imports_solution(node) for node in ast.walk(module)):
        return "warning", "tests does not import from solution, so it cannot judge the answer"
    return "", ""


def _defined(module: ast.Module) -> Iterator[str]:
    """Names of functions and classes anywhere; a unittest class counts as a test whatever its name."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _imports_solution(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "solution"
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "solution" for alias in node.names)
    # importlib.import_module("solution") and the like.
    return isinstance(node, ast.Constant) and node.value == "solution"
