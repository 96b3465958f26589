"""The strict training request: every field checked against the registry, every fault reported at once.

Owns parsing, defaults, profiles and the rules between fields. Does not touch files, models, machines or the network:
whether a dataset exists or a target can be reached is the preflight's question. Aliases are refused, never translated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from bashgym.core.errors import fail
from bashgym.methods import distillation, grpo_rules, registry
from bashgym.methods.common import RETENTION
from bashgym.methods.spec import Field, Kind, Method

CONTROLLED: dict[str, str] = {
    "strategy": "--strategy",
    "base_model": "--model",
    "dataset_path": "--dataset-path",
    "compute_target": "--compute-target",
    "correlation_id": "--correlation-id",
    "origin": "the command line itself",
    "tracking": "--tracking-context",
}
"""Fields that a `--config` file may not set -> what sets them."""

MAX_DEPTH = 32
"""Deepest nesting of an object field."""

_TYPES: dict[Kind, type] = {Kind.STR: str, Kind.INT: int, Kind.BOOL: bool, Kind.LIST: list, Kind.OBJECT: dict}


@dataclass(frozen=True)
class TrainingRequest:
    """A checked request. `request["num_epochs"]` reads a value."""

    strategy: str
    """Name of a direct strategy; never an alias."""
    values: dict[str, Any]
    """Every field of the registry: given, filled by the profile, or default. Integers of float fields are floats."""
    given: frozenset[str]
    """Names that the body had."""
    warnings: list[dict[str, str]]
    """{code, field, message}: accepted, but without effect."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def as_dict(self) -> dict[str, Any]:
        """The fields that the strategy uses, and whatever else was given. Parsing it again gives the same values."""
        used = registry.fields_of(registry.get(self.strategy))
        return {name: value for name, value in self.values.items() if name in used or name in self.given}


@dataclass(frozen=True)
class _Problem:
    code: str
    field: str
    message: str
    hint: str = ""


def parse_request(body: Mapping[str, object]) -> TrainingRequest:
    """The request in `body`.

    Raises `unknown_strategy` and `not_direct_strategy`, else one of `unknown_field`, `invalid_field`, `missing_field`
    (the first of these that occurs) with all faults in its message and all offending names in `fields`.
    """
    method = _strategy(body)
    fields = {**registry.FIELDS, **registry.fields_of(method)}
    problems = [_unknown(str(name), method) for name in body if name not in fields]
    checked: dict[str, Any] = {}
    for name, value in body.items():
        if name in fields and name != "strategy":
            problem, checked[name] = _check(fields[name], value)
            problems += [problem] if problem else []
    values = _fill(method, fields, checked)
    if not any(p.code == "invalid_field" for p in problems):
        problems += _between_fields(method, values, checked)
    problems += [p for p in _missing(values) if p.field not in {known.field for known in problems}]
    if problems:
        raise _report(problems)
    given = frozenset(str(name) for name in body)
    return TrainingRequest(method.name, values, given, _warnings(method, values, body))


def check_config_keys(config: Mapping[str, object]) -> None:
    """`field_has_flag` if a `--config` file sets a field that has its own flag (`CONTROLLED`)."""
    wrong = [name for name in CONTROLLED if name in config]
    if wrong:
        said = "; ".join(f"{name} is set by {CONTROLLED[name]}" for name in wrong)
        raise fail("field_has_flag", f"not in the config file: {said}", "Remove it from the file.", wrong)


def _strategy(body: Mapping[str, object]) -> Method:
    name = body.get("strategy", "sft")
    direct = registry.direct_names()
    if not isinstance(name, str):
        raise fail(
            "invalid_field", f"strategy is {_shown(name)}; allowed: one of {', '.join(direct)}", "", ["strategy"]
        )
    method = registry.get(name)
    if not method.direct:
        raise fail(
            "not_direct_strategy",
            f"{method.name} is not started directly; direct strategies are {', '.join(direct)}",
            f"Its own way: {method.workflow}.",
            ["strategy"],
        )
    return method


def _unknown(name: str, method: Method) -> _Problem:
    near = nearest_field(name, method)
    hint = f"Use {near} instead of {name[:80]}." if near else "`bashgym training capabilities --json` lists the fields."
    suffix = f"; did you mean {near}?" if near else ""
    return _Problem("unknown_field", name[:160], f"{name[:80]!r} is not a field of a training request{suffix}", hint)


def nearest_field(name: str, method: Method) -> str:
    """The field that `name` most likely means: a known alias, else the most similar name; empty if there is none."""
    from difflib import get_close_matches

    from bashgym.methods.aliases import FIELD_ALIASES

    name = name[:160]
    plain = "".join(f"_{c.lower()}" if c.isupper() else c for c in name.replace("-", "_").strip()).strip("_")
    for form in (name, plain):
        if form in FIELD_ALIASES:
            return FIELD_ALIASES[form]
    for names in (registry.fields_of(method), registry.FIELDS):
        if plain in names:
            return plain
        if near := get_close_matches(plain, names, n=1, cutoff=0.7):
            return near[0]
    return ""


def _check(field: Field, value: object) -> tuple[_Problem | None, Any]:
    """The problem of a value, if any, and the value in canonical form."""
    if value is None and field.nullable:
        return None, None
    wrong = _wrong_type(field, value) or _out_of_bounds(field, value)
    if wrong:
        message = f"{field.name} is {_shown(value)}{wrong}; allowed: {field.allowed()}"
        return _Problem("invalid_field", field.name, message, f"{field.name}: {field.help}."), field.default
    if field.kind is Kind.FLOAT and isinstance(value, int | float):
        return None, float(value)
    if isinstance(value, str):
        return None, field.value_aliases.get(value, value)
    return None, value


def _wrong_type(field: Field, value: object) -> str:
    if field.kind is Kind.FLOAT:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return " (not a number)"
        try:
            return "" if math.isfinite(value) else " (not finite)"
        except OverflowError:
            return " (too large)"
    if not isinstance(value, _TYPES[field.kind]) or (field.kind is Kind.INT and isinstance(value, bool)):
        return f" (not {'an' if field.kind in (Kind.INT, Kind.OBJECT) else 'a'} {field.kind})"
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        return " (an item is not a str)"
    return _not_json(value)


def _out_of_bounds(field: Field, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = field.minimum, field.maximum
        below = low is not None and (value < low or (field.open_minimum and value == low))
        above = high is not None and (value > high or (field.open_maximum and value == high))
        return " (too small)" if below else " (too large)" if above else ""
    if isinstance(value, str | list | dict) and len(value) > field.max_length:
        return f" (more than {field.max_length})"
    if isinstance(value, str):
        return _bad_string(field, value)
    if isinstance(value, list) and field.choices and not set(value) <= set(field.choices):
        return " (not among the choices)"
    if isinstance(value, dict) and field.keys:
        extra = [str(key)[:80] for key in value if key not in field.keys]
        texts = all(item is None or isinstance(item, str) for item in value.values())
        return f" (unknown key {extra[0]!r})" if extra else "" if texts else " (its values must be str or null)"
    return ""


def _bad_string(field: Field, value: str) -> str:
    if any(value.startswith(prefix) and value != prefix for prefix in field.prefixes):
        return ""
    if field.choices and value not in field.choices and value not in field.value_aliases:
        from difflib import get_close_matches

        near = get_close_matches(value[:160], field.choices, n=1)
        return f" (did you mean {near[0]}?)" if near else " (not among the choices)"
    if field.identifier:
        from bashgym.core.ids import IDENTIFIER

        return "" if IDENTIFIER.fullmatch(value) and ".." not in value else " (not an identifier)"
    return ""


def _not_json(value: object, depth: int = 0) -> str:
    """Why a value cannot stand in a record: NaN, a lone surrogate, a NUL, a key that is no string, too deep."""
    if depth > MAX_DEPTH:
        return " (nested too deeply)"
    if isinstance(value, str):
        bad = "\0" in value or value.encode(errors="replace").decode() != value
        return " (it holds a NUL or a lone surrogate)" if bad else ""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return " (a key is not a str)"
        return _first(_not_json(part, depth + 1) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return _first(_not_json(item, depth + 1) for item in value)
    plain = value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return "" if plain else " (it holds NaN, infinity or something that is not JSON)"


def _first(findings: Iterable[str]) -> str:
    return next((finding for finding in findings if finding), "")


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge integer"
    text = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fill(method: Method, fields: Mapping[str, Field], checked: Mapping[str, Any]) -> dict[str, Any]:
    """All values: what was given, then the profile, then the defaults, then what follows from other values."""
    values: dict[str, Any] = {name: copy(field.default) for name, field in fields.items()}
    values |= {name: value for name, value in checked.items() if value is not None}
    values["strategy"] = method.name
    profile = method.profiles.get(values[method.profile_field], {}) if method.profile_field else {}
    values |= {name: value for name, value in profile.items() if checked.get(name) is None}
    if "grpo_group_size" in registry.fields_of(method):
        grpo_rules.fill(values, checked)
    return values


_RULES: tuple[tuple[str, Callable[[Mapping[str, Any]], bool], str, str], ...] = (
    (
        "data_source",
        lambda v: v["data_source"] != "dataset_path",
        "data_source {data_source} is not in this version",
        "Convert the rows to JSONL first and give dataset_path.",
    ),
    (
        "hf_repo_name",
        lambda v: v["auto_push_hf"] and not v["hf_repo_name"].strip(),
        "auto_push_hf is true without hf_repo_name",
        "Name the approved Hub repository in hf_repo_name.",
    ),
    (
        "hf_upload_artifact",
        lambda v: v["hf_upload_artifact"] == "merged" and not RETENTION[v["artifact_retention"]]["merged"],
        "hf_upload_artifact is merged, and artifact_retention {artifact_retention} keeps no merged weights",
        "Use artifact_retention deployable or full_run, or hf_upload_artifact adapter.",
    ),
    (
        "load_in_4bit",
        lambda v: v["load_in_4bit"] is True and not v["use_lora"],
        "load_in_4bit is true with use_lora false: 4-bit weights cannot be trained in full",
        "Set load_in_4bit to false, or use_lora to true.",
    ),
    (
        "eval_split",
        lambda v: v["eval_split"] > 0 and bool(v["eval_dataset_path"]),
        "eval_split and eval_dataset_path both name the evaluation rows",
        "Give one of them.",
    ),
    (
        "max_cost",
        lambda v: v["max_cost"] is not None and not v["cost_per_hour"],
        "max_cost without cost_per_hour: money cannot be counted",
        "Give cost_per_hour, the price of this machine in the currency of max_cost.",
    ),
    (
        "report_to",
        lambda v: "none" in v["report_to"] and len(v["report_to"]) > 1,
        "report_to has none beside other trackers",
        "Leave none out, or the others.",
    ),
    (
        "distributed_config",
        lambda v: bool(v["distributed_config"]) and (v["distributed"] == "ddp" or v["num_processes"] == 1),
        "distributed_config is read with several processes and distributed fsdp or deepspeed only",
        "Leave it out, or set num_processes and distributed.",
    ),
)
"""What single fields cannot see: (field to blame, is it wrong, message, hint)."""


def _between_fields(method: Method, values: Mapping[str, Any], checked: Mapping[str, Any]) -> list[_Problem]:
    problems = [
        _Problem("invalid_field", field, message.format_map(values), hint)
        for field, wrong, message, hint in _RULES
        if wrong(values)
    ]
    if "grpo_group_size" in registry.fields_of(method):
        problems += [_Problem("invalid_field", *refusal) for refusal in grpo_rules.refusals(values, checked)]
    if method is distillation.METHOD:
        problems += [_Problem("invalid_field", *refusal) for refusal in distillation.refusals(values)]
    return problems


def _missing(values: Mapping[str, Any]) -> list[_Problem]:
    needed = {
        "base_model": "Name the model: a built-in name, a Hub id, a path or a run id.",
        "dataset_path": "Name a JSONL file; nothing is trained on traces by default.",
    }
    return [
        _Problem("missing_field", name, f"{name} is required", hint)
        for name, hint in needed.items()
        if not (values[name] or "").strip()
    ]


def _warnings(method: Method, values: Mapping[str, Any], body: Mapping[str, object]) -> list[dict[str, str]]:
    used = registry.fields_of(method)
    unused = distillation.without_effect(values) if method is distillation.METHOD else {}
    out = []
    for name in body:
        if name not in used:
            users = ", ".join(registry.methods_with(name)) or "no strategy of this version"
            out.append((name, f"{method.name} does not use {name}; it belongs to {users}"))
        elif name.startswith("lora_") and not values["use_lora"]:
            out.append((name, f"{name} has no effect with use_lora false"))
        elif name == "num_epochs" and values["max_steps"] is not None:
            out.append((name, "num_epochs has no effect beside max_steps"))
        elif name == "overlong_penalty" and values["overlong_buffer"] is None:
            out.append((name, "overlong_penalty has no effect without overlong_buffer"))
        elif name in unused:
            out.append((name, f"{name} has no effect {unused[name]}"))
    warnings = [{"code": "field_not_used", "field": name, "message": message} for name, message in out]
    if distillation.objective(values) == distillation.TEXT_ONLY:
        message = f"without teacher_model this is SFT on teacher_response, recorded as {distillation.TEXT_ONLY}"
        warnings.append({"code": distillation.TEXT_ONLY, "field": "teacher_model", "message": message})
    return warnings


def _report(problems: list[_Problem]) -> Exception:
    order = ("unknown_field", "invalid_field", "missing_field")
    code = min((p.code for p in problems), key=order.index)
    message = "; ".join(p.message for p in problems[:10]) + ("; ..." if len(problems) > 10 else "")
    hint = " ".join(p.hint for p in problems[:10] if p.hint)
    return fail(code, message, hint, [p.field for p in problems])
