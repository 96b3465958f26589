"""`EnvironmentSpec`: the wire form of one task (instruction, files, verifier, limits), strict and content-addressed.

Owns parsing, path confinement, the id and digest, and which files are protected or withheld. Runs nothing.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import BashGymError, fail

SCHEMA = "bashgym.environment.v1"
PROTECTED_KINDS = frozenset({"private", "test", "tests", "verifier"})
WITHHELD_KINDS = frozenset({"private", "verifier"})
TEST_FOLDERS = ("tests", "test")
MAX_FILES = 10_000
MAX_FILE_CHARS = 16 << 20
MAX_METADATA_DEPTH = 32

INSTRUCTION_ALIASES = ("prompt", "task")
"""Other names under which foreign specs carry the instruction."""


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A coordinate of the task (difficulty, language) for mixes and reports."""

    name: str
    value: str | int | float | bool
    source: str = ""
    weight: float = 1.0


class Fixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one of `files` is for."""

    path: str
    kind: str = "file"
    """`private` and `verifier` are withheld from the model; `test` and `tests` are shown but may not change."""
    description: str = ""
    checksum: str = ""
    """sha256 of the content, checked when given; a `sha256:` prefix is allowed."""
    metadata: dict[str, Any] = {}

    def flag(self, name: str) -> bool:
        """A true value in the metadata."""
        return bool(self.metadata.get(name))


class RewardComponent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One named part of a reward that the verifier prints."""

    name: str
    weight: float = 1.0
    description: str = ""


class Verifier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the effect is judged: a command run after the model has finished, with exit status 0 for a pass."""

    kind: str = "exact_success"
    command: str = "./verify.sh"
    path: str = "verify.sh"
    reward_type: str = "binary"
    success_threshold: float = 1.0
    timeout_sec: float = 120.0
    reward_components: tuple[RewardComponent, ...] = ()
    """With components, the verifier prints one JSON object `{"reward_components": {name: number}, "total_reward"?}`."""
    probe: str = ""
    """A command that runs what the model made, before the verifier is mounted. The verifier finds its stdout, stderr
    and exit status as $BASHGYM_VERIFIER_DIR/probe.out, .err and .code: code of the model never runs beside it."""


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the workspace is made. The image fields are for other executors; the local sandbox refuses them."""

    context_dir: str = ""
    dockerfile: str = "Dockerfile"
    base_image: str = ""
    compose_file: str = ""
    setup_commands: tuple[str, ...] = ()
    network_disabled: bool = True


class Rollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one attempt. Times in seconds, lengths in tokens."""

    harness: str = "bashgym-persistent-shell"
    max_steps: int = 64
    max_tool_calls: int = 64
    timeout_sec: float = 7200.0
    bash_timeout_sec: float = 120.0
    max_prompt_tokens: int = 2048
    max_response_tokens: int = 65536


class EnvironmentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task. Make it with `EnvironmentSpec.from_dict` or `build`, which validate; the bare constructor does not."""

    instruction: str
    id: str = ""
    """`env_<16 hex>` of the content where the source gives none."""
    source: str = ""
    domain: str = ""
    skills: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
    fixtures: tuple[Fixture, ...] = ()
    verifier: Verifier = Verifier()
    build: Build = Build()
    rollout: Rollout = Rollout()
    files: dict[str, str] = {}
    """Path relative to the workspace -> text."""
    source_uri: str = ""
    license: str = ""
    metadata: dict[str, Any] = {}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvironmentSpec:
        """A validated spec; `environment_invalid` names the field path, and the nearest name for an unknown key."""
        try:
            spec = msgspec.convert(_without_aliases(data), cls)
        except msgspec.ValidationError as error:
            raise _refusal(str(error)) from error
        return spec.validated()

    def validated(self) -> EnvironmentSpec:
        """This spec with its id filled in; `environment_invalid` if its parts do not fit each other."""
        _check(self)
        return self if self.id else msgspec.structs.replace(self, id=f"env_{self.digest()[:16]}")

    def to_dict(self) -> dict[str, Any]:
        """JSON form; `from_dict` of it is this spec."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value

    def digest(self) -> str:
        """sha256 of all content but the id."""
        return digest_json({key: value for key, value in self.to_dict().items() if key != "id"})

    def withheld(self) -> frozenset[str]:
        """Files that do not exist in the workspace while the model acts: the verifier and private fixtures."""
        private = {f.path for f in self.fixtures if f.kind in WITHHELD_KINDS or f.flag("private")}
        return frozenset(private | ({self.verifier.path} & self.files.keys()))

    def protected(self) -> tuple[str, ...]:
        """Paths (files or whole folders) that must be after the episode as they were before, absent ones included.

        `env.json`, the verifier, tests/ and test/ where the task has them, fixtures of the protected kinds, and
        `metadata.protected_paths`. Empty with `metadata.allow_protected_file_edits`.
        """
        if self.metadata.get("allow_protected_file_edits"):
            return ()
        fixtures = {
            f.path for f in self.fixtures if f.kind in PROTECTED_KINDS or f.flag("private") or f.flag("protected")
        }
        folders = {name for name in TEST_FOLDERS if any(path.startswith(f"{name}/") for path in self.files)}
        listed = {path.rstrip("/") for path in self.metadata.get("protected_paths", ())}
        return tuple(sorted({"env.json"} | self.withheld() | fixtures | folders | listed))


def check_path(path: str, field: str) -> str:
    """`path` if it is relative, plain and stays below the workspace; otherwise `environment_invalid`."""
    parts = PurePosixPath(path).parts
    plain = path and not path.startswith("/") and "\\" not in path and all(c.isprintable() for c in path)
    if not plain or not parts or ".." in parts or path.endswith("/"):
        raise _invalid(f"{field}: {path[:120]!r} is not a plain path below the workspace", field)
    if len(path) > 512 or any(len(part.encode("utf-8", "replace")) > 255 for part in parts) or path != "/".join(parts):
        raise _invalid(f"{field}: {path[:120]!r} is too long or not in its shortest form", field)
    return path


def _invalid(message: str, field: str, hint: str = "") -> BashGymError:
    return fail("environment_invalid", message, hint, [field])


def _without_aliases(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with an alias of `instruction` renamed. Two of them at once is refused, rather than one ignored."""
    given = [name for name in ("instruction", *INSTRUCTION_ALIASES) if name in data]
    if len(given) > 1:
        raise _invalid(f"{' and '.join(given)} name the same field; give one", given[1])
    return {("instruction" if key in INSTRUCTION_ALIASES else key): value for key, value in data.items()}


_PARTS: dict[str, type[msgspec.Struct]] = {
    "": EnvironmentSpec,
    "axes": Axis,
    "fixtures": Fixture,
    "verifier": Verifier,
    "reward_components": RewardComponent,
    "build": Build,
    "rollout": Rollout,
}


def _refusal(text: str) -> BashGymError:
    """msgspec's message as ours: the field path in front, the nearest valid name as the hint."""
    reason, _, at = text.partition(" - at `$")
    path = at.strip("`.").replace("[...]", "[]")
    if not (found := re.search(r"unknown field `(.*)`", reason)):
        return _invalid(f"{path or 'environment'}: {reason}", path)
    name = found[1]
    owner = _PARTS.get(re.sub(r"\[.*?\]", "", path).rpartition(".")[2], EnvironmentSpec)
    near = get_close_matches(name, owner.__struct_fields__, 1, 0.5)
    field = f"{path}.{name}" if path else name
    hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(owner.__struct_fields__)}."
    return _invalid(f"{field} is not a field of an environment", field, hint)


def _check(spec: EnvironmentSpec) -> None:
    if not spec.instruction.strip():
        raise _invalid("instruction is empty", "instruction")
    if spec.id and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,159}", spec.id):
        raise _invalid(f"id is not an identifier: {spec.id[:80]!r}", "id")
    _check_files(spec)
    _check_numbers(spec)
    _check_metadata(spec.metadata)
    if not spec.verifier.command.strip():
        raise _invalid("verifier.command is empty: nothing would judge the effect", "verifier.command")
    if spec.verifier.reward_type not in ("binary", "multi"):
        raise _invalid(
            f"verifier.reward_type {spec.verifier.reward_type!r} is not binary or multi", "verifier.reward_type"
        )
    names = [component.name for component in spec.verifier.reward_components]
    if len(set(names)) != len(names) or "" in names:
        raise _invalid("verifier.reward_components need different, non-empty names", "verifier.reward_components")
    if spec.verifier.reward_type == "multi" and not names:
        raise _invalid("verifier.reward_type multi needs reward_components", "verifier.reward_components")
    try:
        spec.digest()
    except (ValueError, TypeError) as error:
        raise _invalid(f"the environment has no JSON form: {error}", "environment") from error


def _check_files(spec: EnvironmentSpec) -> None:
    if len(spec.files) > MAX_FILES:
        raise _invalid(f"files: {len(spec.files)} files; the limit is {MAX_FILES}", "files")
    for path, text in spec.files.items():
        check_path(path, "files")
        if len(text) > MAX_FILE_CHARS:
            raise _invalid(f"files.{path}: {len(text)} characters; the limit is {MAX_FILE_CHARS}", "files")
        for parent in PurePosixPath(path).parents:
            if parent.as_posix() in spec.files:
                raise _invalid(f"files: {parent} is a file and the folder of {path}", "files")
    check_path(spec.verifier.path, "verifier.path")
    for fixture in spec.fixtures:
        check_path(fixture.path, "fixtures.path")
        text = spec.files.get(fixture.path, "")
        if fixture.checksum and fixture.path in spec.files:
            found = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            if fixture.checksum.removeprefix("sha256:").lower() != found:
                raise _invalid(
                    f"fixtures: {fixture.path} has sha256 {found}, not its stated checksum", "fixtures.checksum"
                )


def _check_numbers(spec: EnvironmentSpec) -> None:
    positive = {
        "verifier.timeout_sec": spec.verifier.timeout_sec,
        **{
            f"rollout.{name}": value
            for name, value in msgspec.structs.asdict(spec.rollout).items()
            if name != "harness"
        },
    }
    for name, number in positive.items():
        if not (math.isfinite(number) and 0 < number <= 1e9):
            raise _invalid(f"{name} must be over 0, not {number}", name)
    numbers = {"verifier.success_threshold": spec.verifier.success_threshold}
    numbers |= {f"verifier.reward_components.{c.name}.weight": c.weight for c in spec.verifier.reward_components}
    numbers |= {f"axes.{axis.name}.weight": axis.weight for axis in spec.axes}
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise _invalid(f"{name} must be finite, not {number}", name)


def _check_metadata(metadata: dict[str, Any]) -> None:
    paths = metadata.get("protected_paths", [])
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise _invalid("metadata.protected_paths must be a list of paths", "metadata.protected_paths")
    for path in paths:
        check_path(path.rstrip("/"), "metadata.protected_paths")
    if not isinstance(metadata.get("allow_protected_file_edits", False), bool):
        raise _invalid(
            "metadata.allow_protected_file_edits must be true or false", "metadata.allow_protected_file_edits"
        )
    level: list[Any] = [metadata]
    for _ in range(MAX_METADATA_DEPTH):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise _invalid(f"metadata is nested deeper than {MAX_METADATA_DEPTH}", "metadata")
