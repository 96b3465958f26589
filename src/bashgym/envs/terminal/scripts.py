"""Small scripts, judged by what they print when they are run apart from the verifier; held out: a loop."""

from __future__ import annotations

from bashgym.envs.terminal.base import Category, Draft, Draw, Split, family, text


def _prints(output: str) -> str:
    """The probe ended well and printed exactly these lines."""
    probe = '"$BASHGYM_VERIFIER_DIR"/probe'
    return f'[ "$(cat {probe}.code)" = 0 ]\n[ "$(cat {probe}.out)" = \'{output}\' ]'


@family(Category.SCRIPTS)
def script_says(d: Draw) -> Draft:
    """A script that prints a word."""
    a, word = d.file("sh"), d.word()
    return Draft(
        d.pick(f"write script {a} that says {word}", f"script {a} prints {word}"),
        f"echo echo {word} > {a}",
        (f"echo {word} > {a}", f"echo echo {word}", f"echo echo {a} > {a}"),
        {},
        {a: None},
        check=_prints(word),
        probe=f"sh {a}",
    )


@family(Category.SCRIPTS)
def script_shows(d: Draw) -> Draft:
    """A script that prints a file; run after that file has changed, so a copy of its text does not do."""
    a, b, word, lines = d.file("sh"), d.file(), d.word(), d.lines(2, 4)
    return Draft(
        d.pick(f"write script {a} that shows {b}", f"script {a} prints file {b}"),
        f"echo cat {b} > {a}",
        (f"cat {b} > {a}", f"echo echo {b} > {a}", f"echo cat {a} > {b}"),
        {b: text(lines)},
        {a: None, b: text([*lines, word])},
        check=_prints(text([*lines, word]).strip()),
        probe=f"echo {word} >> {b} && sh {a}",
    )


@family(Category.SCRIPTS, Split.HELDOUT_FAMILIES)
def script_repeats(d: Draw) -> Draft:
    """A script that prints a word several times."""
    a, word, n = d.file("sh"), d.word(), d.number(2, 5)
    return Draft(
        d.pick(f"write script {a} that says {word} {n} times", f"script {a} prints {n} lines with {word}"),
        f"echo 'for i in $(seq {n}); do echo {word}; done' > {a}",
        (f"echo echo {word} > {a}", f"for i in $(seq {n}); do echo {word}; done > {a}", f"echo echo {word} {n} > {a}"),
        {},
        {a: None},
        check=_prints("\n".join([word] * n)),
        probe=f"sh {a}",
    )
