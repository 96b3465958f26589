"""Temporary workspaces: made from a spec's files, owned by the sandbox's user, fingerprinted, and always removed.

Reads of what a command left behind never follow links, open devices or wait for a pipe.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bashgym.core.errors import fail
from bashgym.envs.sandbox import SandboxResult, host_user, run_command

HOOKS = frozenset(
    {
        *("conftest.py", "sitecustomize.py", "usercustomize.py"),
        *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    }
)
"""Files that change how a verifier written in Python runs merely by being there. New ones count as tampering."""
MAYBE_HOOKS = frozenset({"pyproject.toml", "setup.cfg", "tox.ini"})
"""Hooks if they speak of pytest, which takes options from them."""
MAX_CONFIG_BYTES = 1 << 20
"""A longer one counts as a hook unread."""
KEPT = ("file ", "folder ")
"""How the fingerprint of something begins that is really there, and not a link."""
MAX_HOOK_ENTRIES = 100_000
_HOMES = ("/work", "/app", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/tmp", "/dev/null")  # noqa: S108 - of the sandbox
"""Where a link may lead: nothing of a verifier ever stands there."""


@dataclass(frozen=True)
class Workspace:
    """The two folders of an episode."""

    work: Path
    """Mounted writable at /work."""
    aside: Path
    """Never mounted while the model acts; read-only at /verifier afterwards."""
    run: Callable[..., SandboxResult] = run_command
    """What runs a command here."""


@contextmanager
def temporary_workspace(files: Mapping[str, str], root: Path | None = None) -> Iterator[Workspace]:
    """A fresh workspace below `root` (default: the system's temporary folder); removed whatever happens."""
    base = Path(tempfile.mkdtemp(prefix="bashgym-episode-", dir=root))
    try:
        workspace = Workspace(base / "work", base / "aside")
        user = host_user()
        for folder in (workspace.work, workspace.aside):
            folder.mkdir(mode=0o755)
        if user is not None:
            os.chown(base, user, user)
            if root and not all(parent.stat().st_mode & stat.S_IXOTH for parent in base.parents):
                hint = "Commands run under another user: give a folder that others may enter (chmod o+x)."
                raise fail("directory_unwritable", f"the sandbox's user cannot reach {root}", hint, ["workspace_root"])
        write_files(workspace.work, files, user)
        yield workspace
    finally:
        remove_tree(base)


def write_files(folder: Path, files: Mapping[str, str], user: int | None = None) -> None:
    """Writes `files` (validated relative paths) as 0644 into a folder that no command has touched yet."""
    made: set[Path] = {folder}
    for path, text in files.items():
        target = folder / path
        if target.parent not in made:
            target.parent.mkdir(parents=True, exist_ok=True)
            made.update(parent for parent in target.parents if parent.is_relative_to(folder))
        target.write_bytes(text.encode("utf-8", "surrogatepass"))
        target.chmod(0o644)
        made.add(target)
    for item in made:
        if item.is_dir():
            item.chmod(0o755)
        if user is not None:
            os.chown(item, user, user)


def remove_tree(folder: Path) -> None:
    """Removes a folder that a command may have filled with unreadable or absurdly deep folders."""
    # Not shutil.rmtree: it recurses, and at Python's limit even its own clean-up fails.
    rm, chmod = (shutil.which(name, path=os.defpath) or name for name in ("rm", "chmod"))
    remove = [rm, "-rf", "--", str(folder)]
    done = subprocess.run(remove, capture_output=True, check=False)
    if folder.exists():
        subprocess.run([chmod, "-R", "u+rwX", "--", str(folder)], capture_output=True, check=False)
        done = subprocess.run(remove, capture_output=True, check=False)
    if folder.exists():
        reason = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise fail("directory_unwritable", f"{folder} could not be removed: {reason}")


def fingerprint(folder: Path, path: str) -> str:
    """What is at `folder/path`: `absent`, or a string that differs whenever content, kind or a link on the way differs.

    Folders count with everything in them. Unreadable content is a state of its own.
    """
    at = folder
    for part in path.split("/"):
        if at.is_symlink():
            return f"below a link: {at}"
        at = at / part
    return _state(at)


def _state(path: Path) -> str:
    try:
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            return f"link {os.readlink(path)}"
        if stat.S_ISREG(info.st_mode):
            return f"file {_digest(path)}"
        if stat.S_ISDIR(info.st_mode):
            return f"folder {_digest_folder(path)}"
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    except (OSError, RecursionError) as error:
        return f"unreadable: {type(error).__name__}"
    return f"special {stat.S_IFMT(info.st_mode):o}"


def _digest(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _digest_folder(path: Path) -> str:
    entries = sorted(os.listdir(path))
    return hashlib.sha256(repr([(name, _state(path / name)) for name in entries]).encode()).hexdigest()


def fingerprints(folder: Path, paths: Iterable[str]) -> dict[str, str]:
    """`fingerprint` of each path, and of what changes a verifier merely by being there, anywhere below `folder`: hook files,
    and links that lead to where verifiers stand. More entries than can be looked through are a state of their own."""
    found, whole = _risky(folder)
    asked = [*paths, *found]
    asked += [other for path in asked for other in _shadows(folder, path)]
    return {path: fingerprint(folder, path) for path in asked} | ({} if whole else {"": "too many files"})


def _shadows(folder: Path, path: str) -> list[str]:
    """What would be taken instead of a file: by make, another name; by Python's import, a package, a library or bytecode."""
    at, name = os.path.split(path)
    if name in ("Makefile", "makefile"):
        return [os.path.join(at, other) for other in ("GNUmakefile", "makefile") if other != name]
    stem, suffix = os.path.splitext(name)
    if suffix != ".py":
        return []
    found = [stem]
    for place, ending in ((at, ".so"), (os.path.join(at, "__pycache__"), ".pyc")):
        if (folder / place).resolve() == folder.resolve() / place and (folder / place).is_dir():
            names = [n for n in os.listdir(folder / place) if n.startswith(f"{stem}.") and n.endswith(ending)]
            found += [os.path.relpath(os.path.join(place, name), at or ".") for name in names]
    return [os.path.join(at, other) for other in found]


def _risky(folder: Path) -> tuple[list[str], bool]:
    found, pending, entries = [], [folder], 0
    while pending and entries < MAX_HOOK_ENTRIES:
        try:
            with os.scandir(pending.pop()) as listing:
                for entry in listing:
                    entries += 1
                    if _hook(entry) or (entry.is_symlink() and _escapes(entry.path, folder)):
                        found.append(os.path.relpath(entry.path, folder))
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
        except OSError:
            continue
    return found, not pending


def _hook(entry: os.DirEntry[str]) -> bool:
    if entry.name in MAYBE_HOOKS and entry.is_file(follow_symlinks=False):
        with open(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as handle:
            text = handle.read(MAX_CONFIG_BYTES + 1)
        return b"pytest" in text or len(text) > MAX_CONFIG_BYTES
    return entry.name in HOOKS or (entry.name in MAYBE_HOOKS and entry.is_symlink()) or entry.name.endswith(".pth")


def _escapes(path: str, folder: Path) -> bool:
    """Whether a link may lead out of /work to a place that is not there while the model acts: a verifier, its tests, /proc.

    Leading `..` count from the link's real folder; one further in may follow another link, so that no text can judge it.
    """
    target = os.readlink(path)
    if not target.startswith("/"):
        parts = [part for part in target.split("/") if part not in ("", ".")]
        up = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
        if ".." in parts[up:]:
            return True
        depth = len(Path(path).relative_to(folder).parts) - 1
        if up <= depth:
            return False
        target = "/" + "/".join(parts[up:])
    elif ".." in target.split("/"):
        return True
    return not any(target == home or target.startswith(f"{home}/") for home in _HOMES)
