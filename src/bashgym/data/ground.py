"""What a row of grpo or rlvr is judged by: tests, an answer or an environment, under any known column name.

Owns the columns and what is wrong with their content. Which of them a reward mode needs is `methods.grpo.NEEDS`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError
from bashgym.data import python_source
from bashgym.data.findings import Collector
from bashgym.data.jsonfaults import json_type
from bashgym.methods.grpo import ENVIRONMENT_CHECK

COLUMNS: dict[str, tuple[str, ...]] = {
    "tests": ("tests", "test", "test_code"),
    "answer": (
        "answer",
        "ground_truth",
        "reward_target",
        "final_answer",
        "expected_answer",
        "target",
        "label",
        "expected",
        "solution",
        "reward_model",
    ),
    "environment": ("environment", "env", "environment_spec"),
}
"""Canonical name -> the columns that may hold it, the likeliest first."""


def ground(row: Mapping[str, Any], name: str, mapping: Mapping[str, str] | None = None) -> Any:
    """The row's value of `name`: the column that the mapping gives, else the first known one with content; None if none has."""
    given = (mapping or {}).get(name)
    columns = (given,) if given else COLUMNS[name]
    return next((row[column] for column in columns if row.get(column) is not None), None)


def ground_text(value: object) -> str | None:
    """An answer as text, as it stands in the file: a string, a number, or the `ground_truth` of an object. None for others."""
    if isinstance(value, Mapping):
        value = value.get("ground_truth")
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    return value if isinstance(value, str) and value.strip() else None


def check(name: str, value: Any, column: str, number: int, collector: Collector) -> None:
    """Errors of a row that cannot be judged by `value`, warnings where judging says nothing."""
    label = name if name == column else f"{name} (column {column})"
    if value is None:
        collector.error("missing_column", f"{label} is missing: nothing would judge the answer", number, name)
    elif name == "tests":
        _check_tests(value, label, number, collector)
    elif name == "answer":
        if ground_text(value) is None:
            collector.error("empty_side", f"{label} holds no text or number", number, name, sample=value)
    else:
        _check_environment(value, label, number, collector)


def _check_tests(value: Any, label: str, number: int, collector: Collector) -> None:
    if not isinstance(value, str):
        collector.error("mixed_types", f"{label} is a {json_type(value)}, not a string", number, "tests", sample=value)
    elif not value.strip():
        collector.error("empty_side", f"{label} is empty: nothing would judge the answer", number, "tests")
    else:
        severity, reason = python_source.fault_of_tests(value)
        if severity == "error":
            collector.error("tests_broken", reason, number, "tests")
        elif severity:
            collector.warn("tests_judge_nothing", reason, number, "tests")


def _check_environment(value: Any, label: str, number: int, collector: Collector) -> None:
    module, _, function = ENVIRONMENT_CHECK.partition(":")
    try:
        getattr(import_module(module), function)(value)
    except BashGymError as error:
        collector.error("environment_invalid", f"{label}: {error}", number, "environment")
