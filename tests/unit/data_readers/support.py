"""Writing small datasets and asking for what was found in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from bashgym.core.errors import BashGymError
from bashgym.data.contracts import ContractReport, check_dataset
from bashgym.data.formats import iter_examples
from bashgym.data.readers import iter_rows
from bashgym.data.types import Finding, SftExample


def fuzz(examples: int) -> settings:
    """Files are rewritten for each example, and a busy machine is no failure."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def turn(role: str, content: object = "text", **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CHAT = {"messages": [turn("user", "Capital of Chile?"), turn("assistant", "Santiago.")]}


def call(name: str, arguments: object, identity: str | None = None) -> dict[str, Any]:
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return function if identity is None else {"id": identity, **function}


def jsonl(folder: Path, *rows: object, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def raw(folder: Path, data: bytes, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def read(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], dict[str, Finding]]:
    findings: list[Finding] = []
    rows = [(row.number, row.value) for row in iter_rows(path, findings)]
    return rows, {finding.code: finding for finding in findings}


def examples(path: Path, **options: Any) -> tuple[list[SftExample], dict[str, Finding]]:
    findings: list[Finding] = []
    found = list(iter_examples(path, findings, **options))
    return found, {finding.code: finding for finding in findings}


def one(folder: Path, row: object, **options: Any) -> tuple[SftExample | None, dict[str, Finding]]:
    found, findings = examples(jsonl(folder, row), **options)
    return (found[0] if found else None), findings


def report(
    folder: Path, *rows: object, method: str = "sft", **options: Any
) -> tuple[ContractReport, dict[str, Finding]]:
    result = check_dataset(jsonl(folder, *rows), method, **options)
    return result, {finding.code: finding for finding in result.findings}


def refused(path: Path, **options: Any) -> BashGymError:
    with pytest.raises(BashGymError) as caught:
        list(iter_examples(path, [], **options))
    return caught.value
