"""Harbor task folders (task.toml, instruction.md, environment/, tests/, solution/) as EnvironmentSpecs.

The tests become private fixtures: as in Harbor, the model never sees them. solution/ is not read. A task's image is kept in
`build`, and then a container engine runs it; `without_image` drops it on record, for tasks that need no more than a shell.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.envs.spec import MAX_FILE_CHARS, EnvironmentSpec
from bashgym.envs.verdict import HARBOR

VERIFY = "verify.sh"
_CANARY = "canary"
_SCRIPT = """\
bash /tests/test.sh >/tmp/test.log 2>&1
code=$?
tail -c 4000 /tmp/test.log >&2
for name in reward.json reward.txt; do
  if [ -f "/logs/verifier/$name" ]; then
    reward=$(tr -d '[:space:]' < "/logs/verifier/$name" | head -c 400)
    case $name in reward.json) reward=$(printf %s "$reward" | sed -n 's/^{"reward":\\([-0-9.eE+]*\\)[,}].*/\\1/p') ;; esac
    printf '{"reward_components": {"reward": %s}}' "$reward"
    exit 0
  fi
done
echo "the tests ended with status $code and wrote no reward" >&2
exit 127
"""
"""127 is a broken verifier: a test script that leaves no reward says nothing about the model."""


def load(root: Path, *, without_image: bool = False) -> list[EnvironmentSpec]:
    """The task in `root`, or every task in the folders below it, by name. `environment_invalid` names folder and mend."""
    if not root.is_dir():
        raise fail("file_missing", f"{root} is not a folder", fields=["source"])
    folders = sorted({path.parent for path in root.glob("**/task.toml")})
    if not folders:
        raise fail("environment_invalid", f"{root} holds no task.toml", "Give a Harbor task or a folder of them.")
    return [load_task(folder, without_image=without_image) for folder in folders]


def load_task(folder: Path, *, without_image: bool = False) -> EnvironmentSpec:
    """One task folder."""
    config = _config(folder)
    tests = dict(_texts(folder, folder / "tests"))
    if "tests/test.sh" not in tests:
        raise _refused(folder, "tests/test.sh is missing: nothing would judge the effect")
    metadata = {key: value for key, value in _table(config, "metadata").items() if _plain(value)}
    return EnvironmentSpec.from_dict(
        {
            "id": folder.name,
            "instruction": _instruction(folder),
            "source": "harbor",
            "source_uri": str(_table(config, "task").get("name") or ""),
            "domain": str(metadata.get("category") or ""),
            "skills": [str(tag) for tag in metadata.get("tags") or []],
            "files": {VERIFY: _SCRIPT, **tests},
            "fixtures": [{"path": path, "kind": "private"} for path in tests],
            "verifier": {
                "kind": HARBOR,
                "command": f"./{VERIFY}",
                "path": VERIFY,
                "reward_type": "multi",
                "reward_components": [{"name": "reward"}],
                "timeout_sec": _seconds(folder, config, "verifier", 600.0),
            },
            "build": {} if without_image else _build(folder, config),
            "rollout": {"timeout_sec": _seconds(folder, config, "agent", 7200.0)},
            "metadata": {**metadata, **({"image_dropped": True} if without_image else {})},
        }
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / "task.toml").read_text("utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise _refused(folder, f"task.toml cannot be read: {error}") from error


def _instruction(folder: Path) -> str:
    """instruction.md without the leading canary lines that keep benchmarks out of training data."""
    try:
        lines = (folder / "instruction.md").read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise _refused(folder, f"instruction.md cannot be read: {error}") from error
    while lines and (not lines[0].strip() or (lines[0].startswith(("#", "<!--")) and _CANARY in lines[0].lower())):
        del lines[0]
    return "\n".join(lines).strip()


def _texts(folder: Path, part: Path) -> Iterator[tuple[str, str]]:
    """(path relative to the task, text) of every file of a part; links and binary files are refused."""
    for path in sorted(part.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise _refused(folder, f"{name} is a link")
        if not path.is_file():
            continue
        if path.stat().st_size > MAX_FILE_CHARS:
            raise _refused(folder, f"{name} is over {MAX_FILE_CHARS} bytes")
        try:
            yield name, path.read_text("utf-8")
        except UnicodeError as error:
            raise _refused(folder, f"{name} is not text: only text fixtures can be carried") from error


def _build(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    environment, place = _table(config, "environment"), folder / "environment"
    build: dict[str, Any] = {"network_disabled": not environment.get("allow_internet", False)}
    if image := environment.get("docker_image"):
        return {**build, "base_image": str(image)}
    for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml"):
        if (place / name).is_file():
            return {**build, "context_dir": str(place.resolve()), "compose_file": name}
    if (place / "Dockerfile").is_file():
        return {**build, "context_dir": str(place.resolve()), "dockerfile": "Dockerfile"}
    return build


def _seconds(folder: Path, config: dict[str, Any], part: str, default: float) -> float:
    value = _table(config, part).get("timeout_sec", default)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    raise _refused(folder, f"task.toml: {part}.timeout_sec is {value!r}, not a number of seconds")


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool) or (isinstance(value, list) and all(map(_plain, value)))


def _refused(folder: Path, reason: str) -> BashGymError:
    return fail("environment_invalid", f"{folder}: {reason}", fields=["source"])
