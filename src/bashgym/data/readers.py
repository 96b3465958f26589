"""Rows of JSONL, JSON arrays and single JSON objects, streamed in bounded memory, with every oddity named by line.

Owns: lines, array elements, JSON faults (NaN, lone surrogates, doubled keys, depth, torn tails), and which rows are
`odd`, that is, may hold something that the text checks look for. Does not own: what the columns mean (`formats`).
Covers: any bytes at all. The answer is rows, findings or a typed error; a line over 64 MiB is skipped, not loaded.
The fast path decodes each row once and looks at whole chunks; a row is inspected only where its chunk shows a sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from bashgym.core.errors import fail
from bashgym.data import jsonfaults
from bashgym.data.findings import Collector, shown
from bashgym.data.sources import Source
from bashgym.data.splitter import MAX_ROW_BYTES, Splitter
from bashgym.data.types import Finding, Row, Severity

LONG_ROW_BYTES = 128 << 10
_INT64 = 1 << 63
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
_RUN_TABLE = bytes.maketrans(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", b"a" * 62)
_RUN = b"a" * 16
"""A word of 16 letters and digits: what keys, tokens and integers over 64 bits have in common."""
_SIGNS = (b"{{", b"<", b"uthorization", b"OBSERVATION", b"access_key", b"ACCESS_KEY")
_ESCAPE = b"\\u00"


class RowBatch(NamedTuple):
    """Readable rows that follow each other, with gaps where rows were rejected."""

    numbers: Sequence[int]
    lines: list[bytes]
    """The bytes of each row."""
    values: list[dict[str, Any]]
    odd: set[int]
    """Indexes into `values` of the rows that need the text checks."""


_Batch = tuple[int, list[bytes], bool]
"""Number of the first row, the bytes of rows in a row, whether the last one lacks its newline."""


def iter_rows(path: Path, findings: list[Finding]) -> Iterator[Row]:
    """The readable rows of a dataset file; what is wrong with the others is in `findings` once the iterator ends.

    Raises `dataset_missing`, `dataset_empty` or `dataset_unreadable` if there is nothing to read.
    """
    collector = Collector(findings)
    try:
        for batch in Scan(path, collector):
            yield from map(Row, batch.numbers, batch.values)
    finally:
        collector.flush()


class Scan:
    """One pass over a file. After it: `rows` seen, `rejected` among them, the `sha256` of the file's bytes."""

    def __init__(self, path: Path, collector: Collector) -> None:
        self.path, self.collector = Path(path), collector
        self.rows = self.rejected = 0
        self.unit = "line"
        self._source = Source(self.path)

    @property
    def sha256(self) -> str:
        """Of the file as it lies on disk; empty until the pass has ended."""
        return self._source.sha256

    def __iter__(self) -> Iterator[RowBatch]:
        chunks = _Peekable(self._source.chunks())
        chunks.fill()
        for code, message in self._source.notes:
            self.collector.add(code, Severity.INFO, message)
        if _is_jsonl(chunks.head):
            batches = self._lines(chunks)
        else:
            self.unit = "row"
            batches = self._elements(chunks)
        for first, lines, torn in batches:
            batch = self._rows(first, lines, torn)
            if batch.values:
                yield batch
        if not self.rows:
            raise fail("dataset_empty", f"{self.path} has no rows")

    def _lines(self, chunks: Iterable[bytes]) -> Iterator[_Batch]:
        number, parts, size, skipping = 1, list[bytes](), 0, False
        for chunk in chunks:
            cut = chunk.rfind(b"\n")
            if cut < 0:
                size += len(chunk)
                if size > MAX_ROW_BYTES:
                    parts, skipping = [], True
                if not skipping:
                    parts.append(chunk)
                continue
            end = chunk.index(b"\n")
            if skipping or size + end > MAX_ROW_BYTES:
                self._too_long(number)
                number, skipping = number + 1, False
                chunk, cut = chunk[end + 1 :], cut - end - 1
                block = chunk[:cut] if cut >= 0 else None
            else:
                block = b"".join((*parts, chunk[:cut]))
            if block is not None:
                lines = block.split(b"\n")
                yield number, lines, False
                number += len(lines)
            parts, size = [chunk[cut + 1 :]], len(chunk) - cut - 1
        if skipping:
            self._too_long(number)
        elif size:
            yield number, [b"".join(parts)], True

    def _elements(self, chunks: Iterable[bytes]) -> Iterator[_Batch]:
        """The same for the elements of a JSON array, or for objects that follow each other over several lines."""
        splitter, number = Splitter(), 1
        for chunk in chain(chunks, (None,)):
            elements = splitter.finish() if chunk is None else splitter.feed(chunk)
            if elements:
                yield number, elements, False
                number += len(elements)
            if splitter.fault:
                self._reject("json_invalid", f"{splitter.fault}; nothing after it was read", number)
                break
        for _ in chunks:
            pass  # so that the digest is that of the whole file

    def _rows(self, first: int, lines: list[bytes], torn: bool) -> RowBatch:
        try:
            values = list(map(_decode, lines))
            numbers: Sequence[int] = range(first, first + len(lines))
            clean = set(map(type, values)) == {dict}
        except _DECODE_ERRORS:
            clean = False
        if not clean:
            numbers, lines, values = self._decode_each(first, lines, torn)
        self.rows += len(values)
        odd = self._odd(lines, values)
        bad = {index for index in sorted(odd) if not self._inspect(numbers[index], lines[index], values[index])}
        if not bad:
            return RowBatch(numbers, lines, values, odd)
        kept = [index for index in range(len(values)) if index not in bad]
        return RowBatch(
            [numbers[index] for index in kept],
            [lines[index] for index in kept],
            [values[index] for index in kept],
            {place for place, index in enumerate(kept) if index in odd},
        )

    def _decode_each(
        self, first: int, lines: list[bytes], torn: bool
    ) -> tuple[list[int], list[bytes], list[dict[str, Any]]]:
        numbers: list[int] = []
        kept: list[bytes] = []
        values: list[dict[str, Any]] = []
        for index, line in enumerate(lines):
            if not line or line.isspace():
                continue
            number = first + index
            try:
                value = _decode(line)
            except _DECODE_ERRORS as error:
                self._fault(number, line, torn and index == len(lines) - 1, error)
                continue
            if type(value) is dict:
                numbers.append(number)
                kept.append(line)
                values.append(value)
            else:
                self._reject(
                    "row_not_object",
                    f"a JSON object is needed, found a {jsonfaults.json_type(value)}",
                    number,
                    sample=line,
                )
        return numbers, kept, values

    def _odd(self, lines: list[bytes], values: list[dict[str, Any]]) -> set[int]:
        """Indexes of the rows worth a closer look."""
        block = b"\n".join(lines)
        odd: set[int] = set()
        escaped = b"\\" in block
        for sign in (*_SIGNS, _ESCAPE) if escaped else _SIGNS:
            if sign in block:
                odd.update(i for i, line in enumerate(lines) if sign in line)
        if _RUN in block.translate(_RUN_TABLE):
            odd.update(i for i, line in enumerate(lines) if _RUN in line.translate(_RUN_TABLE))
        # A key that is given twice is decoded once: its quotes are missing from the re-encoded value. An escaped
        # \u0022 has fewer quotes than its re-encoding and could hide that, so then every row is compared by itself.
        if (escaped and b"\\u0022" in block) or _quotes(values) != block.count(b'"'):
            odd.update(
                i for i, line in enumerate(lines) if b"\\u0022" in line or _quotes(values[i]) != line.count(b'"')
            )
        if max(map(len, lines), default=0) > LONG_ROW_BYTES:
            odd.update(i for i, line in enumerate(lines) if len(line) > LONG_ROW_BYTES)
        return odd

    def _inspect(self, number: int, line: bytes, value: dict[str, Any]) -> bool:
        """The slow look at an odd row. False: the row is rejected."""
        quotes = _quotes(value)
        if quotes < 0:
            self._reject("nested_too_deep", "the row is nested too deeply to be read", number, counted=True)
            return False
        if quotes != line.count(b'"') or b"\\u0022" in line:
            doubled = jsonfaults.doubled_key(line)
            if doubled:
                self._reject(
                    "duplicate_key", f"the key {shown(doubled)!r} is given twice in one object", number, counted=True
                )
                return False
        if len(line) > LONG_ROW_BYTES:
            self._warn(
                "row_very_long", f"the length of the row is {len(line):,} bytes, far above any max_length", number
            )
        if b"\\u0000" in line and any("\0" in text for text in jsonfaults.strings(value)):
            self._warn("nul_character", "a text holds the NUL character \\u0000", number)
        if any(not -_INT64 <= whole < 2 * _INT64 for whole in jsonfaults.integers(value)):
            self._warn(
                "integer_over_64_bit",
                "an integer does not fit in 64 bits; kept as written, other tools round it",
                number,
            )
        return True

    def _fault(self, number: int, line: bytes, torn: bool, error: Exception) -> None:
        try:
            code, message = jsonfaults.diagnose(line, torn, error)
        except UnicodeDecodeError:
            self._not_utf8()
        self._reject(code, message, number, sample=line if code != "lone_surrogate" else b"")

    def _not_utf8(self) -> NoReturn:
        line, offset, byte = jsonfaults.first_bad_byte(self._source.path)
        name = self.path.name
        raise fail(
            "dataset_unreadable",
            f"{self.path} is not UTF-8: line {line}, byte offset {offset} is 0x{byte:02x}",
            hint=f"If it is Latin-1 or Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 {name} > utf8-{name}",
        )

    def _too_long(self, number: int) -> None:
        self._reject("line_too_long", f"the length is over {MAX_ROW_BYTES >> 20} MiB; skipped", number)

    def _reject(self, code: str, message: str, number: int, *, sample: bytes = b"", counted: bool = False) -> None:
        """An error in a row that is not passed on. `counted`: it is already in `rows`."""
        self.rejected += 1
        self.rows += not counted
        text = sample[:200].decode("utf-8", "replace") if sample else None
        self.collector.add(code, Severity.ERROR, message, row=number, unit=self.unit, sample=text)

    def _warn(self, code: str, message: str, number: int) -> None:
        self.collector.add(code, Severity.WARNING, message, row=number, unit=self.unit if "long" not in code else "row")


class _Peekable:
    """Chunks of which the first that is not white space can be looked at, as `head`."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self.head = chunks, b""
        self._held: list[bytes] = []

    def fill(self) -> None:
        """Reads on until `head` holds something."""
        newlines = 0
        for chunk in self._chunks:
            self.head = chunk.lstrip()
            if self.head:
                self._held = [b"\n" * newlines, chunk]
                return
            newlines += chunk.count(b"\n")

    def __iter__(self) -> Iterator[bytes]:
        yield from self._held
        self._held = []
        yield from self._chunks


def _is_jsonl(head: bytes) -> bool:
    """False for an array, and for an object that does not end on its line while the next line is not a new object."""
    if head[:1] == b"[":
        return False
    first, newline, rest = head.partition(b"\n")
    if not newline or head[:1] != b"{":
        return True
    try:
        _decode(first)
    except _DECODE_ERRORS:
        return first.strip() != b"{" and rest.lstrip()[:1] == b"{"
    return True


def _quotes(value: object) -> int:
    try:
        return _encode(value).count(b'"')
    except _DECODE_ERRORS:
        return -1
