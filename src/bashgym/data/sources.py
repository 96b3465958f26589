"""From a path to chunks of UTF-8: what the file is, its encoding, its compression, its sha256.

Owns: refusing by name what is not JSON text (missing, empty, Git LFS pointer, parquet, CSV, archives); UTF-16, gzip.
Does not own: lines, rows and JSON (`readers`).
Covers: special files (never opened), unbounded decompression (streamed), torn gzip. Any size in a few MiB of memory.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from bashgym.core.errors import BashGymError, fail

CHUNK_BYTES = 1 << 17
_TO_JSONL = "python -c \"import pandas; pandas.read_{0}('{1}').to_json('data.jsonl', orient='records', lines=True)\""
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"PAR1", "a Parquet file", "Convert it: " + _TO_JSONL.format("parquet", "FILE")),
    (b"ARROW1", "an Arrow/Feather file", "Convert it: " + _TO_JSONL.format("feather", "FILE")),
    (b"FEA1", "a Feather file", "Convert it: " + _TO_JSONL.format("feather", "FILE")),
    (b"\xff\xff\xff\xff", "an Arrow stream", "Load it with the datasets library and write to_json('data.jsonl')."),
    (b"SQLite format 3\0", "an SQLite database", "Export the rows as one JSON object a line."),
    (b"PK\x03\x04", "a zip archive or spreadsheet", "Unpack it, or save the sheet as CSV and convert that."),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "Decompress it first: zstd -d FILE"),
    (b"\xfd7zXZ\0", "xz-compressed", "Decompress it first: xz -d FILE"),
    (b"BZh", "bzip2-compressed", "Decompress it first: bzip2 -d FILE"),
    (b"\x89HDF", "an HDF5 file", "Export the rows as one JSON object a line."),
    (b"\x80\x04", "a pickle", "Pickles run code when opened. Export the rows as JSONL on the machine that wrote it."),
)
_BOMS: tuple[tuple[bytes, str, str], ...] = (
    (codecs.BOM_UTF32_LE, "utf-32-le", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32-be", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16-le", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16-be", "UTF-16"),
)
_LFS = re.compile(rb"version https://git-lfs\.github\.com/spec/\S+\n(?:.*\n)*?size (\d+)")


class Source:
    """An opened dataset file. `notes` says what was found (code, message); `sha256` is set once all was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[tuple[str, str]] = []
        self.offset = 0
        """Bytes of BOM before the first chunk, so that stated offsets are those of the file."""
        self.sha256 = ""
        self.size = check_file(path)

    def chunks(self) -> Iterator[bytes]:
        """UTF-8 chunks of up to `CHUNK_BYTES`, BOM removed. `dataset_unreadable` with the reason otherwise."""
        try:
            with self.path.open("rb") as handle:
                tap = _Tap(handle)
                yield from self._decoded(cast(IO[bytes], tap))
                self.sha256 = tap.finish()
        except BashGymError:
            raise
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise fail(
                "dataset_unreadable", f"{self.path}: the gzip data is damaged or ends early ({error})"
            ) from error
        except OSError as error:
            raise fail("dataset_unreadable", f"{self.path} cannot be read: {error.strerror or error}") from error

    def _decoded(self, stream: IO[bytes]) -> Iterator[bytes]:
        head = stream.read(CHUNK_BYTES)
        if head.startswith(b"\x1f\x8b"):
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=cast(IO[bytes], _Rewound(head, stream)), mode="rb"))
            head = stream.read(CHUNK_BYTES)
        refuse_foreign(self.path, head, self.size)
        if head.startswith(codecs.BOM_UTF8):
            self.notes.append(("utf8_bom", "the file begins with a UTF-8 BOM; it was skipped"))
            head, self.offset = head[3:], 3
        encoding, name = _wide_encoding(head)
        if encoding:
            self.notes.append(("utf16_read", f"the file is {name}, read as such; everything written is UTF-8"))
            yield from self._transcoded(head, stream, encoding, name)
            return
        refuse_table(self.path, head)
        while head:
            yield head
            head = stream.read(CHUNK_BYTES)

    def _transcoded(self, head: bytes, stream: IO[bytes], encoding: str, name: str) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)("strict")
        start, first = 0, True
        while True:
            try:
                text = decoder.decode(head, final=not head)
            except UnicodeDecodeError as error:
                where = start + error.start
                raise fail(
                    "dataset_unreadable",
                    f"{self.path} is not valid {name} near byte {where}",
                    hint="Re-save it as UTF-8.",
                ) from error
            if not head:
                return
            start += len(head)
            yield text.removeprefix("\ufeff").encode() if first else text.encode()
            head, first = stream.read(CHUNK_BYTES), False


class _Tap:
    """Reads through to a file and hashes what passes. Only `read`."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle, self._state = handle, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._handle.read(size)
        self._state.update(data)
        return data

    def finish(self) -> str:
        while self.read(CHUNK_BYTES):
            pass
        return self._state.hexdigest()


class _Rewound:
    """A stream with its first bytes put back."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._stream.read(size)
        data = self._head if size < 0 else self._head[:size]
        self._head = self._head[len(data) :]
        return data


def check_file(path: Path) -> int:
    """The size of a non-empty regular file; a typed refusal otherwise."""
    try:
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        if "\0" not in str(path) and path.is_symlink():
            target = path.readlink()
            raise fail("dataset_missing", f"{path} is a link to {target}, which does not exist") from error
        near = _nearest_sibling(path)
        raise fail(
            "dataset_missing", f"{str(path)!r} does not exist", hint=f"Did you mean {near}?" if near else ""
        ) from error
    except OSError as error:
        raise fail("dataset_unreadable", f"{path} cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(info.st_mode):
        files = ", ".join(sorted(p.name for p in _listed(path) if ".json" in p.name)[:5])
        raise fail(
            "dataset_unreadable",
            f"{path} is a folder, not a file",
            hint=f"Name one file in it: {files}" if files else "",
        )
    if not stat.S_ISREG(info.st_mode):
        raise fail("dataset_unreadable", f"{path} is not a regular file")
    if info.st_size == 0:
        raise fail("dataset_empty", f"{path} is empty (0 bytes)")
    return info.st_size


def refuse_foreign(path: Path, head: bytes, size: int) -> None:
    """Raises `dataset_unreadable` for Git LFS pointers and for binary formats, told by their first bytes."""
    pointer = _LFS.match(head)
    if pointer:
        raise fail(
            "dataset_unreadable",
            f"{path} is a Git LFS pointer: the real file ({int(pointer[1])} bytes) was not downloaded",
            hint="Run `git lfs pull` in the repository that it came from.",
        )
    for magic, name, mend in _MAGIC:
        if head.startswith(magic):
            raise fail(
                "dataset_unreadable",
                f"{path} is {name} ({size} bytes); datasets are read as JSON or JSONL",
                hint=mend.replace("FILE", path.name),
            )


def refuse_table(path: Path, head: bytes) -> None:
    """Raises `dataset_unreadable` for CSV, TSV and HTML, which would otherwise be one JSON error a line."""
    start = head.lstrip()
    if not start or start[:1] in b"{[":
        return
    line = start.split(b"\n", 1)[0]
    if path.suffix.lower() in (".csv", ".tsv") or (b"{" not in line and (line.count(b",") or line.count(b"\t"))):
        raise fail(
            "dataset_unreadable",
            f"{path} looks like CSV, not JSON",
            hint="Convert it: " + _TO_JSONL.format("csv", path.name),
        )
    if start[:1] == b"<":
        raise fail(
            "dataset_unreadable",
            f"{path} is HTML or XML, perhaps a login or error page saved under this name",
            hint="Download it again.",
        )


def _wide_encoding(head: bytes) -> tuple[str, str]:
    for bom, encoding, name in _BOMS:
        if head.startswith(bom):
            return encoding, name
    if head[:1] in b"{[" and head[1:2] == b"\0":
        return "utf-16-le", "UTF-16"
    if head[:1] == b"\0" and head[1:2] in (b"{", b"["):
        return "utf-16-be", "UTF-16"
    return "", ""


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):
        return []


def _nearest_sibling(path: Path) -> str:
    from difflib import get_close_matches

    near = get_close_matches(path.name, [p.name for p in _listed(path.parent)], n=1, cutoff=0.7)
    return str(path.parent / near[0]) if near else ""
