"""What a command says: one `Reply`, shown as one JSON document or as text for people.

Covers: control characters of foreign data never reach the terminal. Progress and notes go to stderr.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MAX_WIDTH = 100


@dataclass(frozen=True)
class Reply:
    """The result of a command."""

    doc: Any
    """JSON-able; what `--json` prints."""
    show: Callable[[], None] | None = None
    """Prints the text form; None prints `doc` as `key: value` lines."""
    exit_code: int = 0


def emit(reply: Reply, as_json: bool) -> None:
    """Prints a reply on stdout."""
    if as_json:
        print_json(reply.doc)
    elif reply.show:
        reply.show()
    else:
        for line in lines(reply.doc):
            print(line)


def print_json(doc: object) -> None:
    """One JSON document: sorted keys, indent 2, UTF-8; a lone surrogate is written as its escape."""
    try:
        text = json.dumps(doc, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        text = json.dumps(_finite(doc), indent=2, sort_keys=True, ensure_ascii=False, default=str)
    write(text + "\n")


def _finite(value: object) -> object:
    """The same document with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(text: str) -> None:
    """UTF-8 on stdout, whatever the terminal's locale says."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def safe(value: object) -> str:
    """A value as one printable line: control characters are shown as escapes, never sent."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if c != "\n" else " ⏎ " for c in text)


def lines(doc: object, indent: str = "") -> Iterable[str]:
    """A document as readable text, nested by indentation."""
    if isinstance(doc, Mapping):
        for key, value in doc.items():
            if isinstance(value, Mapping | list | tuple) and value:
                yield f"{indent}{safe(key)}:"
                yield from lines(value, indent + "  ")
            else:
                yield f"{indent}{safe(key)}: {safe(value) if value not in ({}, [], ()) else '-'}"
    elif isinstance(doc, list | tuple):
        for item in doc:
            if isinstance(item, Mapping) and item:
                first, *rest = lines(item, indent + "  ")
                yield f"{indent}- {first.strip()}"
                yield from rest
            else:
                yield f"{indent}- {safe(item)}"
    else:
        yield indent + safe(doc)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str = "none") -> None:
    """Rows as a table: drawn with rich on a terminal, plain columns in a pipe."""
    if not rows:
        print(empty)
    elif sys.stdout.isatty():
        _rich_table(rows, columns)
    else:
        cells = [list(columns), *([safe(row.get(c)) for c in columns] for row in rows)]
        widths = [min(_MAX_WIDTH, max(len(line[i]) for line in cells)) for i in range(len(columns))]
        for line in cells:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


_COLOURS = {
    **dict.fromkeys(("completed", "improved", "promote", "ok"), "green"),
    **dict.fromkeys(("failed", "error", "regressed", "reject"), "red"),
    **dict.fromkeys(("running", "preparing", "queued"), "cyan"),
    **dict.fromkeys(("warning", "paused", "pausing", "stopping", "cancelled", "unknown", "hold"), "yellow"),
}


def _rich_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        # Ids are there to be copied: they stay on one line.
        view.add_column(column, overflow="fold", no_wrap=column.endswith("_id"))
    for row in rows:
        cells = [safe(row.get(column)) for column in columns]
        view.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in cells))
    Console().print(view)


def note(text: str) -> None:
    """A remark for people, on stderr."""
    print(safe(text), file=sys.stderr, flush=True)


def warn(warnings: Iterable[Mapping[str, Any]]) -> None:
    """Warnings of a reply, on stderr."""
    for warning in warnings:
        mend = f" {warning['mend']}" if warning.get("mend") else ""
        note(f"warning {warning.get('code', '')}: {warning.get('message', '')}{mend}")
