"""What differs between two runs: request, code, data, model, environment, hardware, backend, and how they ended.

Compares manifests and requests of run directories, and rows where both dataset files are still what was trained on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file, digest_json
from bashgym.data.readers import iter_rows
from bashgym.methods import registry
from bashgym.store.run_dir import RunDir

NOT_THE_RECIPE = frozenset({"run_id", "idempotency_key", "correlation_id", "origin", "tracking"})
_EXAMPLES, _EXAMPLE_CHARS = 3, 300
_IDS = ("id", "record_id", "example_id", "pair_id", "prompt", "instruction", "question", "original_context", "text")

Difference = dict[str, Any]
"""{field, a, b}"""


def diff(a: RunDir, b: RunDir) -> dict[str, Any]:
    """bashgym.run_diff.v1: `sections` name -> [{field, a, b}], only what differs; `dataset_rows`; `metrics` of both."""
    first, second = a.manifest(), b.manifest()
    sections = {"request": request_differences(a.request(), b.request()), **manifest_differences(first, second)}
    return {
        "schema_version": "bashgym.run_diff.v1",
        "a": {"run_id": a.run_id, "status": str(a.state().status)},
        "b": {"run_id": b.run_id, "status": str(b.state().status)},
        "same": not any(sections.values()),
        "sections": sections,
        "dataset_rows": row_differences(first["dataset"], second["dataset"]),
        "metrics": metrics_side_by_side(a.state().last_metrics, b.state().last_metrics),
    }


def request_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """Fields of the recipe that differ. A field that a strategy has and an older record lacks counts as its default."""
    return differences(_whole(a), _whole(b))


def manifest_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Difference]]:
    """By section, the measured facts that differ: code, dataset, model, environment, teacher, hardware, backend."""
    return {name: differences(facts, _facts(b)[name]) for name, facts in _facts(a).items()}


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """[{field, a, b}] of two flat objects, an absent key being null."""
    names = sorted({*a, *b})
    return [{"field": n, "a": a.get(n), "b": b.get(n)} for n in names if a.get(n) != b.get(n)]


def metrics_side_by_side(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """[{metric, a, b, change}] of the last values, `change` where both are numbers."""
    rows = []
    for name in sorted({*a, *b}):
        one, other = a.get(name), b.get(name)
        change = other - one if isinstance(one, int | float) and isinstance(other, int | float) else None
        rows.append({"metric": name, "a": one, "b": other, "change": change})
    return rows


def row_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """{compared, reason} or {compared, added, removed, changed, same, examples}; rows as a multiset, by content hash.

    A row is changed if a removed and an added one share their id, or their prompt; else it is removed or added.
    """
    if a["digest"] == b["digest"]:
        return {"compared": True, "added": 0, "removed": 0, "changed": 0, "same": a["rows"], "examples": []}
    for side, facts in (("a", a), ("b", b)):
        if why := _not_as_trained(facts):
            return {"compared": False, "reason": f"run {side}: {why}"}
    counts = Counter(_hash(row) for _, row in _rows(b["path"]))
    same = 0
    removed: dict[str, list[tuple[int, str]]] = {}
    for number, row in _rows(a["path"]):
        key = _hash(row)
        if counts[key] > 0:
            counts[key] -= 1
            same += 1
        else:
            removed.setdefault(_identity(row), []).append((number, key))
    return _judge_rows(b["path"], counts, removed, same)


def _judge_rows(path: str, left: Counter[str], removed: dict[str, list[tuple[int, str]]], same: int) -> dict[str, Any]:
    """`left` counts the rows of the second file (at `path`) that the first one lacks; `removed` the reverse, by identity."""
    found: dict[str, int] = {"added": 0, "changed": 0}
    examples: list[dict[str, Any]] = []
    for number, row in _rows(path):
        key = _hash(row)
        if left[key] <= 0:
            continue
        left[key] -= 1
        partners = removed.get(_identity(row))
        was = partners.pop() if partners else None
        kind = "changed" if was else "added"
        found[kind] += 1
        if found[kind] <= _EXAMPLES:
            example = {"kind": kind, "row": number, "sha256": key, "text": _short(row)}
            examples.append({**example, "was_row": was[0], "was_sha256": was[1]} if was else example)
    gone = sorted(pair for pairs in removed.values() for pair in pairs)
    examples += [{"kind": "removed", "row": number, "sha256": key} for number, key in gone[:_EXAMPLES]]
    return {"compared": True, **found, "removed": len(gone), "same": same, "examples": examples}


def _rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for row in iter_rows(Path(path), []):
        yield row.number, row.value


def _not_as_trained(facts: Mapping[str, Any]) -> str:
    path = Path(str(facts["path"]))
    if not path.is_file():
        return f"{path} is gone"
    return "" if digest_file(path) == facts["digest"] else f"{path} has changed since the run"


def _hash(row: object) -> str:
    """64 bits of the row's digest: enough to tell the rows of a file apart, and small for millions of them."""
    return digest_json(row)[:16]


def _identity(row: Mapping[str, Any]) -> str:
    """What a row keeps when its answer is mended: its id, its prompt, or its messages before the first answer."""
    for name in _IDS:
        if row.get(name):
            return digest_json([name, row[name]])
    messages = row.get("messages") or row.get("conversations")
    if not isinstance(messages, list):
        return digest_json(row)
    roles = [m.get("role") or m.get("from") if isinstance(m, dict) else None for m in messages]
    answer = next((i for i, role in enumerate(roles) if role in ("assistant", "gpt")), len(roles))
    return digest_json(messages[:answer])


def _short(row: object) -> str:
    text = json.dumps(row, ensure_ascii=False)
    return text if len(text) <= _EXAMPLE_CHARS else text[: _EXAMPLE_CHARS - 1] + "…"


def _whole(request: Mapping[str, Any]) -> dict[str, Any]:
    method = registry.get(str(request.get("strategy", "sft")))
    defaults = {name: field.default for name, field in registry.fields_of(method).items()}
    return {name: value for name, value in {**defaults, **request}.items() if name not in NOT_THE_RECIPE}


def _facts(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The facts of a manifest, flat, by section. Paths are no facts: the same bytes may lie elsewhere."""
    environment = manifest["environment"]
    packages = {f"packages.{name}": version for name, version in environment["packages"].items()}
    hardware = manifest["hardware"]
    dataset, model = manifest["dataset"], manifest["model"]
    data_facts = ("digest", "rows", "train_rows", "eval_rows", "format", "eval_digest")
    return {
        "code": dict(manifest["code"]),
        "dataset": {name: dataset.get(name) for name in data_facts},
        "model": {name: model.get(name) for name in ("name", "digest", "config_digest", "n_parameters")},
        "teacher": {"digest": (manifest.get("teacher") or {}).get("digest")},
        "environment": {name: environment.get(name) for name in ("python", "implementation", "system", "machine")}
        | packages,
        "hardware": {"gpus": device_class(hardware), "compute_target": hardware["compute_target"]},
        "backend": dict(manifest["backend"]),
    }


def device_class(hardware: Mapping[str, Any]) -> str:
    """The devices by model, `cpu` without one: how full or warm they are is no difference."""
    return ", ".join(str(card["model"]) for card in hardware["gpus"]) or "cpu"
