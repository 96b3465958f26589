"""Counting: lines, lines with a word, files; held out: words."""

from __future__ import annotations

from bashgym.envs.terminal.base import Category, Draft, Draw, Split, family, text


@family(Category.COUNTING)
def count_lines(d: Draw) -> Draft:
    """A bare number."""
    a, b, lines = d.file(), d.file(), d.lines(3, 9)
    return Draft(
        d.pick(f"count lines of {a} into {b}", f"write line count of {a} to {b}"),
        f"wc -l < {a} > {b}",
        (f"wc -l {a} > {b}", f"wc -c < {a} > {b}", f"wc -l < {a}"),
        {a: text(lines)},
        {a: text(lines), b: f"{len(lines)}\n"},
    )


@family(Category.COUNTING)
def count_with(d: Draw) -> Draft:
    """How many lines hold a word, which can be there twice in one."""
    a, b, word, rest = d.file(), d.file(), d.word(), d.lines(3, 6)
    hits = [f"{word} {word}", f"{d.filler()} {word}", word][: d.number(1, 3)]
    lines = d.shuffled([*rest, *hits])
    return Draft(
        d.pick(f"count lines with {word} of {a} into {b}", f"count {word} in {a} and save to {b}"),
        f"grep -c {word} {a} > {b}",
        (f"grep {word} {a} > {b}", f"wc -l < {a} > {b}", f"grep -cv {word} {a} > {b}x"),
        {a: text(lines)},
        {a: text(lines), b: f"{len(hits)}\n"},
    )


@family(Category.COUNTING)
def count_files(d: Draw) -> Draft:
    """The entries of a folder."""
    folder, b = d.word(), d.file()
    before = {f"{folder}/{d.file()}": "x\n" for _ in range(d.number(2, 7))}
    return Draft(
        d.pick(f"count files of folder {folder} into {b}", f"write number of files in {folder} to {b}"),
        f"ls {folder} | wc -l > {b}",
        (f"ls {folder} > {b}", f"ls -la {folder} | wc -l > {b}", f"ls | wc -l > {b}x"),
        before,
        {**before, b: f"{len(before)}\n"},
    )


@family(Category.COUNTING, Split.HELDOUT_FAMILIES)
def count_words(d: Draw) -> Draft:
    """A bare number."""
    a, b, lines = d.file(), d.file(), [*d.lines(3, 8), f"{d.filler()} {d.filler()}"]
    return Draft(
        d.pick(f"count words of {a} into {b}", f"write word count of {a} to {b}"),
        f"wc -w < {a} > {b}",
        (f"wc -l < {a} > {b}", f"wc -w {a} > {b}", f"wc -c < {a} > {b}"),
        {a: text(lines)},
        {a: text(lines), b: f"{len(text(lines).split())}\n"},
    )
