"""What evaluation requests are made of: strict bodies, attempts, environments. Refusals name the field and the mend."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.envs.spec import EnvironmentSpec

T = TypeVar("T")


class Attempt(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One attempt at one environment, as observed."""

    environment_id: str
    attempt_index: int
    passed: bool | None = None
    """Null: not observed (the endpoint failed). That is never a miss."""
    reward: float = 0.0
    reward_components: dict[str, float] = {}
    verifier_status: str = ""
    timeout: bool = False
    tool_calls: int = 0
    tokens: int = 0
    action_tokens: int = 0
    observation_tokens: int = 0
    metadata: dict[str, Any] = {}

    @property
    def key(self) -> tuple[str, int]:
        """What makes it unique."""
        return self.environment_id, self.attempt_index


def decode(body: Mapping[str, Any], kind: type[T]) -> T:
    """`body` as a `kind`: `unknown_field` with the nearest name, else `invalid_field` with the path of the field."""
    try:
        return msgspec.convert(dict(body), kind)
    except msgspec.ValidationError as error:
        raise refusal(str(error), kind) from error


def refusal(text: str, kind: type) -> BashGymError:
    """msgspec's message as ours."""
    reason, _, at = text.partition(" - at `$")
    path = at.strip("`.").replace("[...]", "[]")
    if found := re.search(r"unknown field `(.*)`", reason):
        name = found[1]
        near = get_close_matches(name, names_of(kind), 1, 0.5)
        field = f"{path}.{name}" if path else name
        hint = f"Did you mean {near[0]}?" if near else ""
        return fail("unknown_field", f"{field[:160]} is not a field here", hint, [field[:160]])
    if found := re.search(r"missing required field `(.*)`", reason):
        field = f"{path}.{found[1]}" if path else found[1]
        return fail("missing_field", f"{field} is missing", fields=[field])
    return fail("invalid_field", f"{path or 'body'}: {reason}", fields=[path] if path else [])


def names_of(kind: type) -> list[str]:
    """The field names of a struct and of the structs inside it."""
    seen: list[str] = []
    pending: list[Any] = [kind]
    known: set[Any] = set()
    while pending:
        at = pending.pop()
        if at in known:
            continue
        known.add(at)
        if isinstance(at, type) and issubclass(at, msgspec.Struct):
            for field in msgspec.structs.fields(at):
                seen.append(field.encode_name)
                pending.append(field.type)
        pending += [part for part in getattr(at, "__args__", ()) if isinstance(part, type) or hasattr(part, "__args__")]
    return seen


def environments_of(specs: Iterable[Mapping[str, Any]]) -> list[EnvironmentSpec]:
    """Validated environments with different ids; `environment_invalid` names the index."""
    found: dict[str, EnvironmentSpec] = {}
    for i, value in enumerate(specs):
        try:
            spec = EnvironmentSpec.from_dict(value)
        except BashGymError as error:
            fields = [f"environments[{i}].{name}" for name in error.fields] or [f"environments[{i}]"]
            raise fail(error.code, f"environments[{i}]: {error.message}", error.hint, fields) from error
        if spec.id in found:
            raise fail(
                "environment_invalid", f"environments[{i}]: a second {spec.id}", fields=[f"environments[{i}].id"]
            )
        found[spec.id] = spec
    if not found:
        raise fail("environment_invalid", "no environment is given", fields=["environments"])
    return list(found.values())


def check_attempts(
    environments: Sequence[EnvironmentSpec],
    attempts: Sequence[Attempt],
    k_values: Sequence[int],
    name: str = "attempts",
) -> None:
    """`attempts_invalid` unless every attempt is finite, unique and of a known environment, and each has max(k) of them."""
    check_k(k_values)
    known = {spec.id for spec in environments}
    for i, attempt in enumerate(attempts):
        _check_attempt(attempt, known, f"{name}[{i}]")
    key, times = Counter(attempt.key for attempt in attempts).most_common(1)[0] if attempts else (("", 0), 0)
    if times > 1:
        raise _invalid(f"{name} hold {key[0]} attempt {key[1]} {times} times", name)
    counts = Counter(attempt.environment_id for attempt in attempts)
    for spec in environments:
        if counts[spec.id] < max(k_values):
            message = f"{spec.id} has {counts[spec.id]} attempts; pass@{max(k_values)} needs {max(k_values)} of each"
            raise _invalid(message, name, "Give more attempts, or smaller k_values.")


def check_k(k_values: Sequence[int]) -> None:
    """`invalid_field` unless k_values are one or more different positive numbers."""
    if not k_values or any(k < 1 for k in k_values) or len(set(k_values)) != len(k_values):
        raise fail("invalid_field", f"k_values must be different numbers from 1: {list(k_values)}", fields=["k_values"])


def _check_attempt(attempt: Attempt, known: set[str], at: str) -> None:
    if attempt.environment_id not in known:
        raise _invalid(f"{at}: no environment is called {attempt.environment_id[:160]!r}", f"{at}.environment_id")
    if not all(map(math.isfinite, (attempt.reward, *attempt.reward_components.values()))):
        raise _invalid(f"{at}: a reward is not finite; the attempts cannot be judged", f"{at}.reward")
    if attempt.passed and attempt.verifier_status == "tampered":
        raise _invalid(f"{at}: passed, and yet tampered with what judges it; no attempts can be both", f"{at}.passed")
    counts = ("attempt_index", "tool_calls", "tokens", "action_tokens", "observation_tokens")
    for name in counts:
        if getattr(attempt, name) < 0:
            raise _invalid(f"{at}.{name} is negative; the attempts cannot be judged", f"{at}.{name}")


def _invalid(message: str, field: str, hint: str = "") -> BashGymError:
    return fail("attempts_invalid", message, hint, [field])
