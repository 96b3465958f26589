"""What a card check has to say, and to which gate it belongs."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How much a finding weighs."""

    FAIL = "fail"
    """The card is not ok."""
    WARN = "warn"
    """The card stands; a reader should know."""
    DIAGNOSTIC = "diagnostic"
    """Explains; never a reason for or against."""


class Gate(StrEnum):
    """Groups of checks, in the order in which a person should mend them."""

    CARD = "card"
    RUN = "run"
    EVIDENCE = "evidence"
    SOURCES = "sources"
    METRICS = "metrics"
    RELEASE = "release"
    METHOD = "method"
    CLAIM = "claim_tier"
    THRESHOLDS = "thresholds"
    DECISION = "decision"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One judgement."""

    code: str
    level: Level
    message: str
    gate: Gate
    field: str = ""
    path: str = ""


class Book:
    """Collects findings; each code is said once per field and path."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def fail(self, gate: Gate, code: str, message: str, field: str = "", *, path: str = "") -> None:
        """Records a blocking finding."""
        self._add(Finding(code, Level.FAIL, message, gate, field, path))

    def warn(self, gate: Gate, code: str, message: str, field: str = "", *, path: str = "") -> None:
        """Records a warning."""
        self._add(Finding(code, Level.WARN, message, gate, field, path))

    def note(self, gate: Gate, code: str, message: str, field: str = "", *, path: str = "") -> None:
        """Records a diagnostic."""
        self._add(Finding(code, Level.DIAGNOSTIC, message, gate, field, path))

    def _add(self, finding: Finding) -> None:
        key = (finding.code, finding.field, finding.path)
        if all((f.code, f.field, f.path) != key for f in self.findings):
            self.findings.append(finding)

    def blocked(self, *gates: Gate) -> bool:
        """Whether something blocks, in these gates or in any."""
        return any(f.level == Level.FAIL and (not gates or f.gate in gates) for f in self.findings)
