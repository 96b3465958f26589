"""Text: write, append, replace, change case, sort, take the beginning or the end; held out: unique lines, a column."""

from __future__ import annotations

from bashgym.envs.terminal.base import Category, Draft, Draw, Split, family, text


@family(Category.TEXT)
def write_word(d: Draw) -> Draft:
    """A file with one line."""
    a, word = d.file(), d.word()
    return Draft(
        d.pick(f"write {word} to {a}", f"save word {word} in {a}"),
        f"echo {word} > {a}",
        (f"echo {a} > {word}", f"echo {word}", f"touch {a}"),
        {},
        {a: f"{word}\n"},
    )


@family(Category.TEXT)
def append_word(d: Draw) -> Draft:
    """One more line."""
    a, word, lines = d.file(), d.word(), d.lines(2, 4)
    return Draft(
        d.pick(f"append {word} to {a}", f"add line {word} to {a}"),
        f"echo {word} >> {a}",
        (f"echo {word} > {a}", f"echo {word}", f"sed -i 1i{word} {a}"),
        {a: text(lines)},
        {a: text([*lines, word])},
    )


@family(Category.TEXT)
def replace_word(d: Draw) -> Draft:
    """Every occurrence, also twice in a line."""
    a, old, new, rest = d.file(), d.word(), d.word(), d.lines(2, 4)
    lines = d.shuffled([*rest, f"{old} {old}", f"{d.filler()} {old}"])
    return Draft(
        d.pick(f"replace {old} with {new} in {a}", f"change {old} to {new} in {a}"),
        f"sed -i s/{old}/{new}/g {a}",
        (f"sed -i s/{old}/{new}/ {a}", f"sed s/{old}/{new}/g {a}", f"sed -i s/{new}/{old}/g {a}"),
        {a: text(lines)},
        {a: text([line.replace(old, new) for line in lines])},
    )


@family(Category.TEXT)
def uppercase(d: Draw) -> Draft:
    """All letters of a file, into another."""
    a, b, body = d.file(), d.file(), text(d.lines(2, 5))
    return Draft(
        d.pick(f"uppercase {a} into {b}", f"write {a} in capitals to {b}"),
        f"tr a-z A-Z < {a} > {b}",
        (f"tr A-Z a-z < {a} > {b}", f"cp {a} {b}", f"tr a-z A-Z < {a}"),
        {a: body},
        {a: body, b: body.upper()},
    )


@family(Category.TEXT)
def sort_lines(d: Draw) -> Draft:
    """In the order of bytes."""
    a, b, lines = d.file(), d.file(), d.lines(5, 8)
    while lines in (sorted(lines), sorted(lines, reverse=True)):
        lines = d.shuffled(lines)
    return Draft(
        d.pick(f"sort {a} into {b}", f"write sorted lines of {a} to {b}"),
        f"sort {a} > {b}",
        (f"sort -r {a} > {b}", f"cp {a} {b}", f"sort {a}"),
        {a: text(lines)},
        {a: text(lines), b: text(sorted(lines))},
    )


@family(Category.TEXT)
def first_lines(d: Draw) -> Draft:
    """The beginning of a file."""
    a, b, n, lines = d.file(), d.file(), d.number(2, 5), d.lines(8, 14)
    return Draft(
        d.pick(f"first {n} lines of {a} into {b}", f"put top {n} lines of {a} in {b}"),
        f"head -n {n} {a} > {b}",
        (f"tail -n {n} {a} > {b}", f"head -n {n + 1} {a} > {b}", f"head -n {n} {a}"),
        {a: text(lines)},
        {a: text(lines), b: text(lines[:n])},
    )


@family(Category.TEXT)
def last_lines(d: Draw) -> Draft:
    """The end of a file."""
    a, b, n, lines = d.file(), d.file(), d.number(2, 5), d.lines(8, 14)
    return Draft(
        d.pick(f"last {n} lines of {a} into {b}", f"put bottom {n} lines of {a} in {b}"),
        f"tail -n {n} {a} > {b}",
        (f"head -n {n} {a} > {b}", f"tail -n {n + 1} {a} > {b}", f"tail {a} > {b}x"),
        {a: text(lines)},
        {a: text(lines), b: text(lines[-n:])},
    )


@family(Category.TEXT, Split.HELDOUT_FAMILIES)
def unique_lines(d: Draw) -> Draft:
    """Sorted, each line once."""
    a, b, once = d.file(), d.file(), d.lines(4, 6)
    lines = d.shuffled([*once, *once[:3]])
    while lines == sorted(lines):
        lines = d.shuffled(lines)
    return Draft(
        d.pick(f"sort {a} without repeated lines into {b}", f"write the different lines of {a} sorted to {b}"),
        f"sort -u {a} > {b}",
        (f"sort {a} > {b}", f"uniq -c {a} > {b}", f"sort -ru {a} > {b}"),
        {a: text(lines)},
        {a: text(lines), b: text(sorted(once))},
    )


@family(Category.TEXT, Split.HELDOUT_FAMILIES)
def csv_column(d: Draw) -> Draft:
    """One of three columns."""
    a, b, n = d.file("csv"), d.file("txt"), d.number(1, 3)
    rows = [[d.filler() for _ in range(3)] for _ in range(d.number(3, 6))]
    body = text([",".join(row) for row in rows])
    return Draft(
        d.pick(f"write column {n} of {a} to {b}", f"put column {n} of the table {a} in {b}"),
        f"cut -d, -f{n} {a} > {b}",
        (f"cut -d, -f{n % 3 + 1} {a} > {b}", f"cut -f{n} {a} > {b}", f"cut -c{n} {a} > {b}"),
        {a: body},
        {a: body, b: text([row[n - 1] for row in rows])},
    )
