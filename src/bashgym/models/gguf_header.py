"""The header of a GGUF file (versions 2 and 3): metadata and tensor count, without the weights and without the gguf package.

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md, little-endian. Covers: hostile lengths, which are bounded by
the file's size. Does not cover: whether the weights make sense.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from bashgym.core.errors import fail

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_KEYS = 100_000


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of itself."""

    version: int
    metadata: dict[str, Any]
    """An array stands as its length, but for arrays of numbers up to 64 long."""
    tensors: dict[str, int]
    """Tensor name → offset of its data from the start of the data."""
    data_bytes: int
    """Bytes after the header."""


def read_gguf(path: Path) -> GgufHeader:
    """The header; `export_failed` where the file is not a whole GGUF."""
    size = path.stat().st_size
    try:
        with path.open("rb") as handle:
            return _Reader(handle, size).header()
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise fail("export_failed", f"{path} is not a whole GGUF file: {error}") from error


class _Reader:
    def __init__(self, handle: BinaryIO, size: int) -> None:
        self._handle, self._size = handle, size

    def header(self) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is unknown")
        n_tensors, n_keys = self._scalar("Q"), self._scalar("Q")
        if n_keys > _MAX_KEYS or n_tensors > _MAX_KEYS:
            raise ValueError(f"it claims {n_tensors} tensors and {n_keys} keys")
        metadata = {self._string(): self._value(self._scalar("I")) for _ in range(n_keys)}
        tensors = {}
        for _ in range(n_tensors):
            name, dims = self._string(), self._scalar("I")
            self._bytes(8 * dims + 4)
            tensors[name] = self._scalar("Q")
        stated = metadata.get("general.alignment")
        alignment = stated if isinstance(stated, int) and stated > 0 else 32
        start = -(-self._handle.tell() // alignment) * alignment
        if tensors and start + max(tensors.values()) >= self._size:
            raise ValueError(f"it ends at {self._size} bytes, before its last tensor")
        return GgufHeader(version, metadata, tensors, max(0, self._size - start))

    def _bytes(self, n: int) -> bytes:
        if n > self._size - self._handle.tell():
            raise ValueError(f"{n} bytes promised at {self._handle.tell()}, the file has {self._size}")
        return self._handle.read(n)

    def _scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._bytes(struct.calcsize(code)))[0]

    def _string(self) -> str:
        return self._bytes(self._scalar("Q")).decode()

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise ValueError(f"value type {kind} is unknown")
        inner, n = self._scalar("I"), self._scalar("Q")
        if inner in _SCALARS:
            raw = self._bytes(n * struct.calcsize(_SCALARS[inner]))
            return list(struct.unpack(f"<{n}{_SCALARS[inner]}", raw)) if n <= 64 else n
        if inner != _STRING:
            raise ValueError(f"an array of type {inner} is unknown")
        for _ in range(n):
            self._bytes(self._scalar("Q"))
        return n
