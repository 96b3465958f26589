"""Archives: pack, unpack, compress; held out: a compressed archive. Judged by their content, never by their bytes."""

from __future__ import annotations

import hashlib

from bashgym.envs.terminal.base import Category, Draft, Draw, Split, family, text


def _folder(d: Draw, folder: str) -> dict[str, str]:
    return {f"{folder}/{d.file()}": text(d.lines(1, 3)) for _ in range(d.number(1, 3))}


def _holds(archive: str, folder: str) -> str:
    """The archive unpacks to exactly the folder."""
    unpack = f"mkdir /tmp/unpacked && tar xf {archive} -C /tmp/unpacked"
    return f'{unpack} && [ "$(ls -A /tmp/unpacked)" = {folder} ] && diff -r /tmp/unpacked/{folder} {folder} > /dev/null'


@family(Category.ARCHIVES)
def pack_folder(d: Draw) -> Draft:
    """An uncompressed tar of a folder, under its own name."""
    folder, archive = d.word(), d.file("tar")
    before = _folder(d, folder)
    return Draft(
        d.pick(f"pack folder {folder} into {archive}", f"make archive {archive} of folder {folder}"),
        f"tar cf {archive} {folder}",
        (f"tar tf {archive} {folder}", f"cp -r {folder} {archive}", f"tar czf {archive} {folder}"),
        before,
        {**before, archive: None},
        check=f"gzip -t < {archive} 2> /dev/null && exit 1\n{_holds(archive, folder)}",
    )


@family(Category.ARCHIVES)
def unpack_archive(d: Draw) -> Draft:
    """The files come back and the archive stays."""
    folder, archive = d.word(), d.file("tar")
    before = _folder(d, folder)
    return Draft(
        d.pick(f"unpack {archive}", f"extract archive {archive}"),
        f"tar xf {archive}",
        (f"tar tf {archive}", f"rm {archive}", f"mkdir {folder}"),
        before,
        {**before, archive: None},
        setup=(f"tar cf {archive} {folder} && rm -r {folder}",),
        check=_holds(archive, folder),
    )


@family(Category.ARCHIVES)
def compress_file(d: Draw) -> Draft:
    """The file becomes its gzip form."""
    a, other, body = d.file(), d.file(), text(d.lines(3, 6))
    digest = hashlib.sha256(body.encode()).hexdigest()
    return Draft(
        d.pick(f"compress {a}", f"gzip file {a}"),
        f"gzip {a}",
        (f"gzip {other}", f"gzip -k {a}", f"mv {a} {a}.gz"),
        {a: body, other: "x\n"},
        {f"{a}.gz": None, other: "x\n"},
        check=f"[ \"$(gzip -dc < {a}.gz | sha256sum)\" = '{digest}  -' ]",
    )


@family(Category.ARCHIVES, Split.HELDOUT_FAMILIES)
def pack_compressed(d: Draw) -> Draft:
    """A tar that is compressed with gzip."""
    folder = d.word()
    archive = f"{d.word()}.tar.gz"
    before = _folder(d, folder)
    return Draft(
        d.pick(f"pack folder {folder} compressed into {archive}", f"make a gzip archive {archive} of folder {folder}"),
        f"tar czf {archive} {folder}",
        (f"tar cf {archive} {folder}", f"gzip -r {folder}", f"tar czf {archive} -C {folder} ."),
        before,
        {**before, archive: None},
        check=f"gzip -t < {archive} 2> /dev/null\n{_holds(archive, folder)}",
    )
