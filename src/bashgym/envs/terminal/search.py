"""Search: lines with and without a word, files by extension; held out: files by name in nested folders."""

from __future__ import annotations

from bashgym.envs.terminal.base import EXTENSIONS, Category, Draft, Draw, Split, family, text


@family(Category.SEARCH)
def lines_with(d: Draw) -> Draft:
    """The lines that hold a word."""
    a, b, word, rest = d.file(), d.file(), d.word(), d.lines(3, 6)
    hits = [f"{d.filler()} {word}", f"{word} {d.filler()}", word][: d.number(1, 3)]
    lines = d.shuffled([*rest, *hits])
    return Draft(
        d.pick(f"lines with {word} of {a} into {b}", f"find {word} in {a} and save to {b}"),
        f"grep {word} {a} > {b}",
        (f"grep -v {word} {a} > {b}", f"grep {word} {a}", f"grep -n {word} {a} > {b}"),
        {a: text(lines)},
        {a: text(lines), b: text([line for line in lines if word in line])},
    )


@family(Category.SEARCH)
def lines_without(d: Draw) -> Draft:
    """The lines that do not hold a word."""
    a, b, word, rest = d.file(), d.file(), d.word(), d.lines(3, 6)
    lines = d.shuffled([*rest, f"{d.filler()} {word}", word])
    return Draft(
        d.pick(f"lines without {word} of {a} into {b}", f"drop lines with {word} of {a} into {b}"),
        f"grep -v {word} {a} > {b}",
        (f"grep {word} {a} > {b}", f"sed s/{word}// {a} > {b}", f"cp {a} {b}"),
        {a: text(lines)},
        {a: text(lines), b: text([line for line in lines if word not in line])},
    )


@family(Category.SEARCH)
def list_kind(d: Draw) -> Draft:
    """The names of the files with one extension, in a folder with others."""
    wanted, b = d.pick("log", "csv", "md"), d.file("txt")
    named = [d.file(wanted) for _ in range(d.number(2, 4))]
    others = [d.file(e) for e in EXTENSIONS if e != wanted]
    before = dict.fromkeys([*named, *others], "x\n")
    return Draft(
        d.pick(f"list {wanted} files into {b}", f"write names of {wanted} files to {b}"),
        f"ls *.{wanted} > {b}",
        (f"ls > {b}", f"ls *.{wanted}", f"cat *.{wanted} > {b}"),
        before,
        {**before, b: text(sorted(named))},
    )


@family(Category.SEARCH, Split.HELDOUT_FAMILIES)
def find_named(d: Draw) -> Draft:
    """Paths of the files with one extension, in nested folders; any order, with or without a leading ./"""
    top, inner, wanted, b = d.word(), d.word(), d.pick("log", "csv", "md"), d.file("txt")
    folders = (top, f"{top}/{inner}")
    named = [f"{folder}/{d.file(wanted)}" for folder in folders]
    others = [f"{folder}/{d.file('txt')}" for folder in folders]
    before = dict.fromkeys([*named, *others], "x\n")
    listing = " ".join(sorted(named))
    return Draft(
        d.pick(
            f"list all {wanted} files below folder {top} into {b}", f"find every {wanted} file in {top} and save to {b}"
        ),
        f"find {top} -name '*.{wanted}' > {b}",
        (f"find {top} > {b}", f"ls {top}/*.{wanted} > {b}", f"find {top} -name '*.{wanted}'"),
        before,
        {**before, b: None},
        check=f"[ \"$(sed 's|^\\./||' {b} | LC_ALL=C sort | tr '\\n' ' ')\" = '{listing} ' ]",
    )
