"""The share of a row's tests that a completion passes, judged by pytest's exit status and its JUnit XML together.

The completion's code is /work/solution.py in a fresh sandbox; the tests are read-only at /verifier, pytest at /site.
`runner` runs it. Solution and tests share one process, as `from solution import f` asks for, so what follows is what makes
cheating useless that a model finds by trying, not a proof against code that was written against this file.

Covers: sys.exit, os._exit, pytest.exit, a killed process (no report, or one without its canary: 0); files that pytest or
Python would read (conftest.py, pytest.ini, sitecustomize.py, a json.py: isolated mode, no conftest, no ini file, /work last
on the path); printing a report (output goes nowhere, the report's lines carry a nonce); writing XML files (the report is an
anonymous memory file); atexit (never runs); forks that come back (only the first process reports); patching pytest,
AssertionError or test outcomes wholesale (a second test file, named at random, must fail); tests that the solution brings
along, skips that it raises; objects that equal everything; endless loops, fork bombs, floods (the sandbox's limits).
Does not cover: code that looks for the nonce, the report's descriptor or the expected values in this process's memory,
frames or in /verifier and acts on them; patched builtins that the tests themselves use; objects whose other comparisons
(`<`, `in`, `bool`) or whose `__eq__`, made without a class statement, always hold.

Whose fault: a time-out is the solution's, as is every failure to import it. A test file that cannot be run whatever the
solution is (no Python, no test, all skipped, a missing fixture, an import beyond pytest and the standard library) is the
row's: no verdict. That is asked of a stub solution, once for each test file; what it cannot tell counts as the solution's.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from bashgym.envs.rewards.code import NOTHING, limits, stopped
from bashgym.envs.rewards.extract import code_block
from bashgym.envs.rewards.interpreter import interpreter, pytest_mounts
from bashgym.envs.rewards.types import RewardItem, RewardResult, RewardStatus
from bashgym.envs.sandbox import SandboxResult, run_command
from bashgym.envs.workspace import temporary_workspace, write_files

PART = "pass_rate"
TESTS = "test_solution.py"
RUNNER = (Path(__file__).with_name("runner.py"), "/runner/runner.py")
REPORT_BYTES = 8 << 20
PROBE_S = 30.0
_EXPECTED_STATUS = 1
"""pytest's for "some tests failed": the canary always does."""
_CANARY = "def test_canary():\n    assert 1 == 2\n"


def verification(item: RewardItem, tests: str, timeout_s: float) -> RewardResult:
    """passed / (passed + failed + errors) of `tests` with the completion's code as `solution`."""
    source = code_block(item.completion)
    if not source.strip():
        return NOTHING
    order = _Order(secrets.token_hex(16), TESTS, f"test_{secrets.token_hex(8)}.py")
    result = _run(source, tests, order, timeout_s)
    if ended := stopped(result, PART):
        return ended
    lines = _lines(result, order)
    if not lines:
        return _no_verdict(f"pytest did not start: status {result.exit_code}, {result.stderr.strip()[-300:]}")
    return _verdict([rest for kind, rest in lines if kind == "report"], result, order, tests)


@dataclass(frozen=True)
class _Order:
    """What the runner is told."""

    nonce: str
    tests: str
    canary: str
    probe: bool = False


@dataclass(frozen=True)
class _Report:
    """What pytest said."""

    status: int
    fault: str
    outcomes: dict[str, list[str]]
    """Module name of a test -> passed, failed, error or skipped, for each; an error of a whole file stands under ""."""
    message: str
    """Of the first test that did not pass."""

    @classmethod
    def parse(cls, line: str) -> _Report:
        """ValueError or ParseError for a line that the runner did not write."""
        status, rest = line.split(" ", 1)
        decoder = json.JSONDecoder()
        fault, end = decoder.raw_decode(rest)
        xml, _ = decoder.raw_decode(rest[end:].lstrip())
        if "<!" in xml:
            raise ValueError("a declaration in the XML")
        outcomes: dict[str, list[str]] = {}
        message = ""
        for case in ElementTree.fromstring(xml).iter("testcase"):  # noqa: S314 - no declarations
            bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
            outcome = "passed" if bad is None else "failed" if bad.tag == "failure" else bad.tag
            module = case.get("classname", "").split(".")[0]
            outcomes.setdefault(module, []).append(outcome)
            if bad is not None and module == TESTS[:-3]:
                message = message or f"{case.get('name')}: {bad.get('message', '')}"
            elif bad is not None and not module:
                message = message or (bad.text or "")[-300:]
        return cls(int(status), str(fault), outcomes, message)


def _verdict(reports: list[str], result: SandboxResult, order: _Order, tests: str) -> RewardResult:
    if not reports:
        return _zero(RewardStatus.FAILED, f"the process ended with status {result.exit_code} before the tests did")
    try:
        (line,) = reports
        report = _Report.parse(line)
    except (ValueError, ElementTree.ParseError) as error:
        return _zero(RewardStatus.TAMPERED, f"not one report that can be read: {error}")
    if report.fault:
        return _no_verdict(report.fault)
    canary = report.outcomes.get(order.canary[:-3], [])
    if not canary:
        return _zero(RewardStatus.FAILED, f"the tests were ended early (pytest's status {report.status})")
    if canary != ["failed"] or report.status != _EXPECTED_STATUS:
        return _zero(RewardStatus.TAMPERED, f"a test that must fail did not (pytest's status {report.status})")
    return _rate(report, tests)


def _rate(report: _Report, tests: str) -> RewardResult:
    counted = [outcome for module in (TESTS[:-3], "") for outcome in report.outcomes.get(module, [])]
    counted = [outcome for outcome in counted if outcome != "skipped"]
    passed = counted.count("passed")
    if not passed and (not counted or "" in report.outcomes):
        if reason := _probe(tests):
            return _no_verdict(reason)
        if not counted:
            return _no_verdict("no test was run: all are skipped")
    rate = passed / len(counted)
    status = RewardStatus.PASSED if passed == len(counted) else RewardStatus.FAILED
    return RewardResult(rate, {PART: rate, "all_pass": float(rate == 1)}, status, report.message.strip()[:500])


@lru_cache(maxsize=1024)
def _probe(tests: str) -> str:
    """Why the test file cannot be run with any solution; empty if that is not so, or cannot be told."""
    order = _Order(secrets.token_hex(16), TESTS, "", probe=True)
    for kind, rest in _lines(_run("", tests, order, PROBE_S), order):
        if kind == "probe":
            return str(json.loads(rest))
    return ""


def _run(source: str, tests: str, order: _Order, timeout_s: float) -> SandboxResult:
    python = interpreter()
    with temporary_workspace({"solution.py": source}) as workspace:
        write_files(workspace.aside, {TESTS: tests, **({order.canary: _CANARY} if order.canary else {})})
        return run_command(
            f"exec {python.command} {RUNNER[1]}",
            workdir=workspace.work,
            limits=msgspec.structs.replace(limits(timeout_s), output_bytes=REPORT_BYTES),
            readonly=[*python.mounts, *pytest_mounts(), RUNNER, (workspace.aside, "/verifier")],
            stdin=json.dumps(asdict(order)).encode(),
        )


def _lines(result: SandboxResult, order: _Order) -> list[tuple[str, str]]:
    """(kind, rest) of the lines that bear the nonce."""
    found = []
    for line in result.stdout.splitlines():
        nonce, _, rest = line.partition(" ")
        if nonce == order.nonce:
            kind, _, rest = rest.partition(" ")
            found.append((kind, rest))
    return found


def _zero(status: RewardStatus, detail: str) -> RewardResult:
    return RewardResult(0.0, {PART: 0.0, "all_pass": 0.0}, status, detail)


def _no_verdict(detail: str) -> RewardResult:
    return RewardResult(None, {}, RewardStatus.ERROR, detail)
