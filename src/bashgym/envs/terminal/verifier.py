"""The verifier of a draft: a script that compares the whole workspace with the goal, so side effects fail too."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

from bashgym.envs.terminal.base import Draft

# `want` is written by the caller, sorted by bytes. Names with control characters could imitate its lines.
_SCRIPT = """\
export LC_ALL=C
find . -name '*[[:cntrl:]]*' | grep -q . && exit 1
want=$(cat <<'END'
{want}
END
)
have=$({{
find . -mindepth 1 -printf '%y %P %l\\n'
find . -type f{loose} -exec sha256sum {{}} +
{modes}
}} 2>&1 | sort)
[ "$have" = "$want" ] || exit 1
set -e
{check}
"""


def script(draft: Draft) -> str:
    """Shell text; exit status 0 only if the tree, the contents and modes in the goal, and `draft.check` hold."""
    loose = "".join(f" ! -path ./{path}" for path, body in draft.after.items() if body is None)
    modes = f"stat -c 'mode %a %n' {' '.join(sorted(draft.modes))}" if draft.modes else ":"
    return _SCRIPT.format(want="\n".join(sorted(_goal(draft))), loose=loose, modes=modes, check=draft.check or ":")


def _goal(draft: Draft) -> list[str]:
    paths = [*draft.after, *draft.links, *draft.folders]
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents} - {"."} | set(draft.folders)
    lines = [f"f {path} " for path in draft.after] + [f"d {path} " for path in folders]
    lines += [f"l {path} {target}" for path, target in draft.links.items()]
    lines += [f"{_sha256(body)}  ./{path}" for path, body in draft.after.items() if body is not None]
    return lines + [f"mode {mode} {path}" for path, mode in draft.modes.items()]


def _sha256(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
