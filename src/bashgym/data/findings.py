"""Collecting findings in bounded memory while a file streams by.

Owns: merging the same remark about many rows into one `Finding`, and the first issues row by row.
Does not own: what is worth remarking; that is for readers, formats, messages and contracts.
"""

from __future__ import annotations

import re

import msgspec

from bashgym.data.types import MAX_ROWS_LISTED, Finding, Severity

MAX_MESSAGES_PER_CODE = 30
"""Beyond this many different messages of one code, the rest share one finding: a hostile file stays cheap."""
MAX_ISSUES = 50
_ROWS_IN_TEXT = 5
_LONG_WORD = re.compile(r"[A-Za-z0-9+/_\-]{16,}")


class Issue(msgspec.Struct, frozen=True):
    """One remark about one row, as the dataset contract reports it."""

    line: int
    """1-based line (JSONL) or index (array); 0 for the whole file."""
    severity: Severity
    field: str
    message: str
    sample: str = ""
    """The start of the value, never a secret."""


class _Group(msgspec.Struct):
    code: str
    severity: Severity
    message: str
    field: str
    mend: str
    unit: str
    rows: list[int]
    count: int = 0


class Collector:
    """Takes remarks and turns them into findings, appended to `out` by `flush`."""

    def __init__(self, out: list[Finding]) -> None:
        self.out = out
        self.issues: list[Issue] = []
        self.errors = 0
        self.warnings = 0
        self._groups: dict[tuple[str, Severity, str, str], _Group] = {}
        self._per_code: dict[tuple[str, Severity], int] = {}

    def add(
        self,
        code: str,
        severity: Severity,
        message: str,
        *,
        row: int = 0,
        field: str = "",
        mend: str = "",
        unit: str = "row",
        sample: object = None,
    ) -> None:
        """One remark. `row` 0 means the file as a whole; `unit` is "row" or "line"."""
        self.errors += severity is Severity.ERROR
        self.warnings += severity is Severity.WARNING
        if severity is not Severity.INFO and len(self.issues) < MAX_ISSUES:
            self.issues.append(Issue(row, severity, field, message, _sample(sample)))
        key = (code, severity, field, message)
        group = self._groups.get(key)
        if group is None:
            group = self._open_group(key, mend, unit)
        group.count += row > 0
        if row > 0 and len(group.rows) < MAX_ROWS_LISTED and (not group.rows or group.rows[-1] != row):
            group.rows.append(row)

    def error(self, code: str, message: str, row: int, field: str = "", *, sample: object = None) -> None:
        """`add` of an error in a row."""
        self.add(code, Severity.ERROR, message, row=row, field=field, sample=sample)

    def warn(
        self, code: str, message: str, row: int, field: str = "", *, sample: object = None, mend: str = ""
    ) -> None:
        """`add` of a warning about a row."""
        self.add(code, Severity.WARNING, message, row=row, field=field, sample=sample, mend=mend)

    def _open_group(self, key: tuple[str, Severity, str, str], mend: str, unit: str) -> _Group:
        code, severity, field, message = key
        opened = self._per_code.get((code, severity), 0)
        if opened >= MAX_MESSAGES_PER_CODE:
            key = (code, severity, "", "more of the same kind")
            if key in self._groups:
                return self._groups[key]
            field, message = "", key[3]
        self._per_code[code, severity] = opened + 1
        group = self._groups[key] = _Group(code, severity, message, field, mend, unit, [])
        return group

    def flush(self) -> None:
        """Appends what was collected since the last flush, errors first."""
        order = list(Severity)
        for group in sorted(self._groups.values(), key=lambda group: order.index(group.severity)):
            where = f"{_where(group.unit, group.rows, group.count)}: " if group.rows else ""
            self.out.append(
                Finding(
                    code=group.code,
                    severity=group.severity,
                    message=where + group.message,
                    mend=group.mend,
                    field=group.field,
                    rows=tuple(group.rows),
                    count=group.count,
                )
            )
        self._groups.clear()
        self._per_code.clear()


def shown(value: object, width: int = 80) -> str:
    """A short printable form of a value; control characters and line breaks escaped."""
    text = value[: width * 2] if isinstance(value, str) else repr(value)[: width * 2]
    text = text.encode("unicode_escape" if not text.isprintable() else "utf-8", "replace").decode("utf-8", "replace")
    return text if len(text) <= width else text[: width - 3] + "..."


def _sample(value: object) -> str:
    """The start of a value; long words are left out, for a faulty row may hold a key."""
    if value is None:
        return ""
    text = value[:400] if isinstance(value, str) else repr(value)[:400]
    return shown(_LONG_WORD.sub("[...]", text))


def _where(unit: str, rows: list[int], count: int) -> str:
    listed = ", ".join(map(str, rows[:_ROWS_IN_TEXT]))
    if count <= 1:
        return f"{unit} {listed}"
    if count <= _ROWS_IN_TEXT:
        return f"{unit}s {listed}"
    return f"{count} {unit}s ({listed}, ...)"
