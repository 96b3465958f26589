"""Permissions: a given mode, executable, read-only; held out: only the owner."""

from __future__ import annotations

from bashgym.envs.terminal.base import Category, Draft, Draw, Split, family

_BODY = "x\n"


@family(Category.PERMISSIONS)
def set_mode(d: Draw) -> Draft:
    """An octal mode."""
    a, mode = d.file(), d.pick("600", "640", "660", "700", "750", "755", "444", "440")
    other = "604" if mode != "604" else "640"
    return Draft(
        d.pick(f"set mode {mode} on {a}", f"give {a} mode {mode}"),
        f"chmod {mode} {a}",
        (f"chmod {other} {a}", f"touch {a}", f"chmod a+rwx {a}"),
        {a: _BODY},
        {a: _BODY},
        modes={a: mode},
    )


@family(Category.PERMISSIONS)
def make_executable(d: Draw) -> Draft:
    """At least the owner may run it."""
    a, b = d.file("sh"), d.file("sh")
    return Draft(
        d.pick(f"make {a} executable", f"allow running {a}"),
        f"chmod +x {a}",
        (f"chmod +x {b}", f"chmod -x {a}", f"chmod +w {a}"),
        {a: "echo hi\n", b: "echo hi\n"},
        {a: "echo hi\n", b: "echo hi\n"},
        check=f"[ -x {a} ] && [ ! -x {b} ]",
    )


@family(Category.PERMISSIONS)
def make_readonly(d: Draw) -> Draft:
    """Nobody may write, the owner may read."""
    a, b = d.file(), d.file()
    return Draft(
        d.pick(f"make {a} read only", f"forbid writing {a}"),
        f"chmod a-w {a}",
        (f"chmod a-w {b}", f"chmod 000 {a}", f"chmod +w {a}"),
        {a: _BODY, b: _BODY},
        {a: _BODY, b: _BODY},
        check=f'[ -z "$(find {a} -perm /222)" ] && [ -r {a} ] && [ -w {b} ]',
    )


@family(Category.PERMISSIONS, Split.HELDOUT_FAMILIES)
def only_owner(d: Draw) -> Draft:
    """Owner reads and writes, the others nothing."""
    a, b = d.file(), d.file()
    return Draft(
        d.pick(f"let only the owner read and write {a}", f"take all rights on {a} from group and others"),
        f"chmod 600 {a}",
        (f"chmod 644 {a}", f"chmod 600 {b}", f"chmod 660 {a}"),
        {a: _BODY, b: _BODY},
        {a: _BODY, b: _BODY},
        modes={a: "600", b: "644"},
    )
