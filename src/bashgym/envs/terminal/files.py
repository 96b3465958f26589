"""Files and folders: make, copy, rename, delete, move, link."""

from __future__ import annotations

from bashgym.envs.terminal.base import Category, Draft, Draw, family, text


@family(Category.FILES)
def make_folder(d: Draw) -> Draft:
    """An empty folder."""
    a, other = d.word(), d.file()
    return Draft(
        d.pick(f"make folder {a}", f"create a folder {a}"),
        f"mkdir {a}",
        (f"touch {a}", f"mkdir {a}.d", f"mkdir -p {a}/{a}"),
        {other: "x\n"},
        {other: "x\n"},
        folders=(a,),
    )


@family(Category.FILES)
def make_empty(d: Draw) -> Draft:
    """An empty file."""
    a, other = d.file(), d.file()
    return Draft(
        d.pick(f"create empty file {a}", f"make an empty file {a}"),
        f"touch {a}",
        (f"mkdir {a}", f"echo > {a}", f"touch {other}"),
        {other: "x\n"},
        {other: "x\n", a: ""},
    )


@family(Category.FILES)
def copy_file(d: Draw) -> Draft:
    """The same content twice."""
    a, b, body = d.file(), d.file(), text(d.lines(1, 3))
    return Draft(
        d.pick(f"copy {a} to {b}", f"make a copy of {a} as {b}"),
        f"cp {a} {b}",
        (f"mv {a} {b}", f"cp {b} {a}", f"touch {b}"),
        {a: body},
        {a: body, b: body},
    )


@family(Category.FILES)
def rename_file(d: Draw) -> Draft:
    """The same content under another name."""
    a, b, body = d.file(), d.file(), text(d.lines(1, 3))
    return Draft(
        d.pick(f"rename {a} to {b}", f"change name of {a} to {b}"),
        f"mv {a} {b}",
        (f"cp {a} {b}", f"mv {b} {a}", f"rm {a}"),
        {a: body},
        {b: body},
    )


@family(Category.FILES)
def delete_file(d: Draw) -> Draft:
    """One of two files goes."""
    a, other, body = d.file(), d.file(), text(d.lines(1, 3))
    return Draft(
        d.pick(f"delete {a}", f"remove file {a}"),
        f"rm {a}",
        (f"rm {other}", "rm *", f"> {a}"),
        {a: body, other: body},
        {other: body},
    )


@family(Category.FILES)
def move_into(d: Draw) -> Draft:
    """A file into a folder that is there."""
    a, folder, other, body = d.file(), d.word(), d.file(), text(d.lines(1, 3))
    return Draft(
        d.pick(f"move {a} into folder {folder}", f"put {a} in folder {folder}"),
        f"mv {a} {folder}/",
        (f"cp {a} {folder}/", f"mv {a} {folder}.d", f"mv {folder} {a}"),
        {a: body, f"{folder}/{other}": "x\n"},
        {f"{folder}/{a}": body, f"{folder}/{other}": "x\n"},
    )


@family(Category.FILES)
def link_file(d: Draw) -> Draft:
    """A symbolic link with the given target."""
    a, b, body = d.file(), d.file(), text(d.lines(1, 3))
    return Draft(
        d.pick(f"link {b} to {a}", f"make {b} a link to {a}"),
        f"ln -s {a} {b}",
        (f"ln -s {b} {a}", f"ln {a} {b}", f"cp {a} {b}"),
        {a: body},
        {a: body},
        links={b: a},
    )
