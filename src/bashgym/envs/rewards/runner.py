"""Runs inside the sandbox, alone: pytest over /verifier with `solution` from /work, and one report to the first stdout.

Imports nothing of ours. Its order arrives as JSON on stdin: `nonce`, `tests` and `canary` (file names), `probe`. Each line
of the report begins with the nonce. Output of tests and solution goes nowhere. What this is worth is said in `verification`.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
import unittest
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

VERIFIER, WORK, SITE = "/verifier", "/work", "/site"
FOREIGN = (f"{WORK}/", "<")
"""How the file names of the solution's code begin; `<` is code made from text."""
_OTHER: dict[type, Callable[[Any], object]] = {
    bool: lambda value: not value,
    int: lambda value: value + 1_000_003,
    float: lambda value: 1_000_003.5 if value != 1_000_003.5 else 0.0,
    str: lambda value: value + "\0",
    bytes: lambda value: value + b"\0",
    list: lambda value: [*value, object()],
    tuple: lambda value: (*value, object()),
    set: lambda value: {*value, object()},
    dict: lambda value: {**value, object(): None},
    type(None): lambda value: object(),
}
"""Type -> another value, which whatever equals the first one must not equal as well."""


def main() -> None:
    """Never returns."""
    order = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    sys.path += [SITE, WORK]
    import pytest

    run, send, leave, me, own = pytest.main, os.write, os._exit, os.getpid, os.getpid()
    name = order["nonce"]

    def say(*words: str) -> None:
        data = memoryview(" ".join([name, *words, "\n"]).encode())
        while data:
            data = data[send(report, data) :]

    say("ready")
    # `import __main__` shall not find this.
    sys.modules["__main__"] = types.ModuleType("__main__")
    if order["probe"]:
        say("probe", json.dumps(_probe(Path(VERIFIER, order["tests"]))))
        leave(0)
    builtins.__build_class__ = _guarding(builtins.__build_class__)
    xml, plugin = os.memfd_create("report"), Watch()
    code = run([*_arguments(xml), *(f"{VERIFIER}/{order[file]}" for file in ("tests", "canary"))], plugins=[plugin])
    if me() != own:
        leave(1)  # a fork of the solution that came back
    with open(xml, "rb") as handle:
        handle.seek(0)
        say("report", str(int(code)), json.dumps(plugin.fault), json.dumps(handle.read().decode("utf-8", "replace")))
    leave(int(code))


def _arguments(xml: int) -> list[str]:
    off = ("cacheprovider", "terminal", "faulthandler", "pastebin", "doctest", "stepwise")
    return [
        "-s",
        "--noconftest",
        "--assert=plain",
        "--import-mode=importlib",
        "--continue-on-collection-errors",
        f"-c{os.devnull}",
        f"--rootdir={VERIFIER}",
        f"--junitxml=/proc/self/fd/{xml}",
        *(f"-pno:{plugin}" for plugin in off),
    ]


def _around(function: Any) -> Any:
    """`pytest.hookimpl(wrapper=True, tryfirst=True)`: pytest cannot be imported yet."""
    function.pytest_impl = {"wrapper": True, "tryfirst": True}
    return function


class Watch:
    """The plugin: tests of the solution's own do not count, a skip that the solution raises is a failure."""

    def __init__(self) -> None:
        self.fault = ""
        """Why the tests cannot be run whatever the solution is."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps the tests that the test file defines."""
        items[:] = [item for item in items if not _file_of(getattr(item, "function", None)).startswith(FOREIGN)]

    @_around
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
        """Sees the exception before pytest makes a skip of it."""
        import pytest

        raised = call.excinfo
        report = yield
        outcomes = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)
        if report.skipped and raised is not None and isinstance(raised.value, outcomes) and _passed_through(raised.tb):
            report.outcome, report.longrepr = "failed", "the solution skipped the test"
            report.__dict__.pop("wasxfail", None)
        if call.when == "setup" and raised is not None and isinstance(raised.value, pytest.FixtureLookupError):
            self.fault = f"{item.name} asks for a fixture that does not exist: {raised.value.argname}"
        return report


def _file_of(function: Any) -> str:
    function = getattr(function, "__func__", function)
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _passed_through(trace: types.TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(FOREIGN):
            return True
        trace = trace.tb_next
    return False


def _guarding(build: Callable[..., Any]) -> Callable[..., Any]:
    """`__build_class__` after which an `__eq__` of the solution no longer equals everything."""

    def build_class(body: Any, name: str, *bases: Any, **keywords: Any) -> Any:
        made = build(body, name, *bases, **keywords)
        if _file_of(body).startswith(FOREIGN) and isinstance(made, type) and "__eq__" in vars(made):
            setattr(made, "__eq__", _honest(vars(made)["__eq__"]))  # noqa: B010 - mypy
        return made

    return build_class


def _honest(equal: Any) -> Callable[[Any, Any], Any]:
    def honest(self: Any, other: Any) -> Any:
        result = equal(self, other)
        another = _OTHER.get(type(other))
        if result is True and another is not None and equal(self, another(other)) is True:
            return False
        return result

    return honest


def _probe(tests: Path) -> str:
    """Why the test file cannot be run whatever the solution is; empty if that cannot be told, or is not so."""
    import pytest

    namespace: dict[str, Any] = {"__name__": "tests", "__file__": str(tests)}
    sys.modules["solution"] = _Stub("solution")
    try:
        exec(compile(tests.read_bytes(), tests, "exec"), namespace)  # noqa: S102 - in the sandbox
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except ImportError as error:
        root = (error.name or "").split(".")[0]
        return f"{error}, and the sandbox has pytest only" if root and root != "solution" else ""
    except pytest.skip.Exception as error:
        return f"the test file skips itself: {error}"
    except Exception:  # noqa: BLE001 - boundary: at import it uses the solution in a way that the stub does not know
        return ""
    found = [key for key, value in namespace.items() if key.startswith(("test", "Test")) and callable(value)]
    cases = (value for value in namespace.values() if isinstance(value, type))
    tested = found or any(issubclass(case, unittest.TestCase) for case in cases)
    return "" if tested else "the test file defines no test"


class _Stub(types.ModuleType):
    """A solution with every name: each is a class that takes anything, so that it can be called, inherited from, raised."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


if __name__ == "__main__":
    main()
