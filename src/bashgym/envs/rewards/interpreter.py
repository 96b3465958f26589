"""The Python that judged code runs under, of our own version, and pytest for it: found in the sandbox or mounted read-only."""

from __future__ import annotations

import atexit
import compileall
import shlex
import shutil
import stat
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from bashgym.core.errors import fail
from bashgym.envs.sandbox import host_user

SITE = "/site"
"""Where pytest stands in the sandbox."""
ALL = "/packages/site-packages"
"""Where all packages stand; dill tells installed modules from one's own by the last name."""
_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Interpreter:
    """A Python without our packages."""

    command: str
    """What starts it, for bash."""
    mounts: tuple[tuple[Path, str], ...]
    """Host folders at the same path in the sandbox."""


@cache
def interpreter() -> Interpreter:
    """A Python of our minor version below /usr, which is in the sandbox anyway; else the one that runs us, mounted at its own
    path, because it finds its library by it. Options: -I isolates it (no variables, no user site, the current folder not on
    the path), -B keeps bytecode out of the workspace.

    `sandbox_unavailable` for a prefix that would show more than a Python, or that the sandbox's user cannot reach.
    """
    prefix = Path(sys.base_prefix).resolve()
    own = prefix / "bin" / _NAME
    for program in (Path("/usr/local/bin", _NAME), Path("/usr/bin", _NAME)):
        if program.exists() and program.resolve().is_relative_to("/usr"):
            return Interpreter(f"{program} -I -B", ())
    hint = f"Install {_NAME} with the system's packages, or use a Python of pyenv, uv or conda in a folder others can read."
    if prefix.parent == prefix or Path.home().resolve().is_relative_to(prefix):
        raise fail("sandbox_unavailable", f"{prefix} cannot be mounted: it holds more than a Python", hint)
    if not own.exists() or not _reachable(prefix):
        raise fail("sandbox_unavailable", f"the sandbox's user cannot reach the Python at {own}", hint)
    return Interpreter(f"{shlex.quote(str(own))} -I -B", ((prefix, str(prefix)),))


@cache
def all_packages() -> tuple[Path, str]:
    """The whole site-packages of this installation, at `ALL`; `sandbox_unavailable` if the sandbox's user cannot read it."""
    folder = Path(sysconfig.get_paths()["purelib"]).resolve()
    if not _reachable(folder):
        hint = "Install into a folder that others can read, or run as a user that is not root."
        raise fail("sandbox_unavailable", f"the sandbox's user cannot read the packages in {folder}", hint)
    return folder, ALL


@cache
def pytest_mounts() -> tuple[tuple[Path, str], ...]:
    """pytest and what it needs, each of their packages and nothing else, below `SITE`; `missing_extra` if one is not here."""
    mounts = {}
    for path in _packages():
        if path.is_dir():
            compileall.compile_dir(path, quiet=2)
        mounts[path.name] = path
    if not all(map(_reachable, mounts.values())):
        folder = Path(tempfile.mkdtemp(prefix="bashgym-pytest-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        for name, path in mounts.items():
            mounts[name] = Path((shutil.copytree if path.is_dir() else shutil.copy2)(path, folder / name))
    return tuple((path, f"{SITE}/{name}") for name, path in sorted(mounts.items()))


def _packages() -> list[Path]:
    found: dict[str, Path] = {}
    pending, seen = ["pytest"], set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise fail(
                "missing_extra",
                f"grpo_reward_mode verification runs the tests with pytest, and {name} is not installed",
                hint="Install it: pip install pytest",
                fields=["grpo_reward_mode"],
            ) from None
        for file in package.files or ():
            top = file.parts[0]
            if file.suffix == ".py" and top != "..":
                found[top] = Path(str(package.locate_file(top))).resolve()
        pending += _needs(package)
    return list(found.values())


def _needs(package: metadata.Distribution) -> list[str]:
    """Names of the requirements that hold here."""
    from packaging.requirements import Requirement  # pytest has it

    wanted = [Requirement(line) for line in package.requires or ()]
    return [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]


def _reachable(path: Path) -> bool:
    """Whether the user that commands run under may read `path`: started as root, that is one who owns nothing."""
    if host_user() is None:
        return True
    needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    above = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
    return above and path.stat().st_mode & needed == needed
