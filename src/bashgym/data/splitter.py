"""Cuts a JSON array, or objects that follow each other, into the bytes of its elements, without decoding them.

Owns: where an element ends, chunk by chunk, with strings and escapes respected; commas and brackets between elements.
Does not own: what an element holds (`readers` decodes it). One element is in memory at a time, at most `MAX_ROW_BYTES`.
"""

from __future__ import annotations

import re

MAX_ROW_BYTES = 64 << 20
MAX_DEPTH = 1000
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


class Splitter:
    """Fed with chunks; `fault` says why it stopped, if it did."""

    def __init__(self) -> None:
        self.fault = ""
        self._buffer = b""
        self._wait = 0
        self._in_array = self._closed = False
        self._comma_due = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The elements completed by `chunk`."""
        self._buffer += chunk
        if len(self._buffer) < self._wait:
            return []
        elements, position = self._cut()
        self._buffer = self._buffer[position:]
        self._wait = 2 * len(self._buffer) if not elements else 0
        if len(self._buffer) > MAX_ROW_BYTES:
            self.fault = f"an element is over {MAX_ROW_BYTES >> 20} MiB or its end is missing"
        return elements

    def finish(self) -> list[bytes]:
        """The elements still held at the end of the file; `fault` if it ends too early."""
        elements, position = self._cut(final=True)
        if self._buffer[position:].strip():
            self.fault = self.fault or "the file ends in the middle of this element"
        elif self._in_array and not self._closed:
            self.fault = self.fault or "the closing ] of the array is missing"
        return elements

    def _cut(self, final: bool = False) -> tuple[list[bytes], int]:
        elements: list[bytes] = []
        depth, start, done = 0, 0, 0
        for match in _TOKEN.finditer(self._buffer):
            token = match[0]
            if token == b'"' or (match.end() == len(self._buffer) and token[:1] not in b'"{}[],:' and not final):
                break  # the string or bare word goes on in the next chunk
            if depth == 0 and self._separator(token):
                done = match.end()
            elif token in (b"{", b"["):
                start = match.start() if depth == 0 else start
                depth += 1
                if depth > MAX_DEPTH:
                    self.fault = "an element is nested too deeply to be read"
            elif token in (b"}", b"]") or depth == 0:
                start = match.start() if depth == 0 else start
                depth = max(0, depth - 1)
                if depth == 0:
                    done = match.end()
                    elements.append(self._buffer[start:done])
                    self._comma_due = self._in_array
            if self.fault:
                break
        return elements, done

    def _separator(self, token: bytes) -> bool:
        """Handles what stands between elements; True if `token` is not part of one."""
        if self._closed:
            self.fault = "something follows the end of the array"
        elif token == b"[" and not self._in_array:
            self._in_array = True
        elif token == b"]" and self._in_array:
            self._closed = True
        elif token == b"," and self._comma_due:
            self._comma_due = False
        elif self._comma_due or token in (b",", b":", b"}", b"]"):
            self.fault = "a comma is missing or too much between two elements"
        else:
            return False
        return True
