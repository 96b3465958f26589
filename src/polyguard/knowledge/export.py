"""The tables as files for other programs: Parquet, YAML and JSON Lines under `data/processed`.

The environment never reads them back: its source is `tables.json`. `pyarrow` and `yaml` are imported where they are used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_bytes
from bashgym.core.files import atomic_write_bytes
from polyguard.knowledge.evidence import documents
from polyguard.knowledge.tables import Knowledge

Row = Mapping[str, Any]
Written = dict[str, dict[str, Any]]
"""File name -> rows and sha256."""


def export(knowledge: Knowledge, folder: Path) -> Written:
    """Writes every file that the tables make, each whole; `folder` must exist."""
    written: Written = {}
    tables = {
        "normalized_drugs": drug_rows(knowledge),
        "drug_classes": class_rows(knowledge),
        "interactions": interaction_rows(knowledge),
        "graph_edges": list(edges(knowledge)),
    }
    for name, rows in tables.items():
        written[f"{name}.parquet"] = _write(folder / f"{name}.parquet", _parquet(rows), len(rows))
    for name, table in rule_files(knowledge).items():
        written[f"{name}.yaml"] = _write(folder / f"{name}.yaml", _yaml(knowledge, table), len(table["rules"]))
    pages = [msgspec.to_builtins(item) for item in documents()]
    written["retrieval_corpus.jsonl"] = write_lines(folder / "retrieval_corpus.jsonl", pages)
    return written


def write_lines(path: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """JSON Lines, whole."""
    data = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    return _write(path, data, len(rows))


def _write(path: Path, data: bytes, rows: int) -> dict[str, Any]:
    atomic_write_bytes(path, data)
    return {"rows": rows, "sha256": digest_bytes(data)}


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    out = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), out)
    return out.getvalue()


def _yaml(knowledge: Knowledge, table: Row) -> bytes:
    import yaml

    head = {"disclaimer": knowledge.tables["disclaimer"], "knowledge_version": knowledge.version}
    return bytes(yaml.safe_dump({**head, **table}, sort_keys=False, allow_unicode=True, width=120).encode())


def drug_rows(knowledge: Knowledge) -> list[dict[str, Any]]:
    """One row a drug, flat."""
    return [
        {
            "id": drug.id,
            "name": drug.name,
            "atc": drug.atc,
            "therapeutic_class": drug.therapeutic_class,
            "groups": sorted(drug.groups),
            "low_daily_mg": drug.doses[0] if drug.doses else None,
            "medium_daily_mg": drug.doses[1] if drug.doses else None,
            "high_daily_mg": drug.doses[2] if drug.doses else None,
            "max_daily_mg": _number(drug.max_daily_mg),
            "older_adult_max_daily_mg": _number(drug.older_adult_max_daily_mg),
            "older_adult_from_age": drug.older_adult_from_age,
            "acb_score": drug.acb_score,
            "qt_category": drug.qt_category,
            "flags": sorted(drug.flags),
            "cyp_substrate": list(drug.substrate),
            "cyp_inhibitor": list(drug.inhibitor),
            "cyp_inducer": list(drug.inducer),
            "taper_rule": drug.taper_rule,
            "monitoring": list(drug.monitoring),
            "indications": list(drug.indications),
        }
        for drug in knowledge.drugs.values()
    ]


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def class_rows(knowledge: Knowledge) -> list[dict[str, Any]]:
    """One row a drug and group."""
    limits = {row["group"]: row["max_count"] for row in knowledge.tables["duplicate_therapy"]}
    return [
        {"group": group, "drug": name, "max_count": limits.get(group)}
        for group, members in sorted(knowledge.groups.items())
        for name in sorted(members)
    ]


def interaction_rows(knowledge: Knowledge) -> list[dict[str, Any]]:
    """One row a pair, in order."""
    rows = [msgspec.to_builtins(item) for item in knowledge.pairs.values()]
    return sorted(rows, key=lambda row: (row["a"], row["b"]))


def edges(knowledge: Knowledge) -> Iterator[dict[str, Any]]:
    """The tables as a graph: drug to drug, group, condition."""
    for row in interaction_rows(knowledge):
        yield _edge(row["a"], "interacts_with", row["b"], row["severity"], row["rule_id"])
    for row in class_rows(knowledge):
        yield _edge(row["drug"], "member_of", row["group"])
    for name, drug in knowledge.drugs.items():
        for indication in drug.indications:
            yield _edge(name, "treats", indication)
        for item in knowledge.substitutes(name):
            yield _edge(name, "replaced_by", item.to)
    for name in knowledge.drugs:
        for condition in knowledge.conditions():
            for hit in knowledge.beers([name], [condition], age=80):
                if hit.condition and hit.kind == "drug_disease":
                    yield _edge(name, "avoid_in", condition, hit.severity, hit.id)


def _edge(source: str, kind: str, target: str, severity: str | None = None, rule: str | None = None) -> dict[str, Any]:
    return {"source": source, "relation": kind, "target": target, "severity": severity, "rule_id": rule}


def rule_files(knowledge: Knowledge) -> dict[str, dict[str, Any]]:
    """Name of the YAML file -> what it says beside disclaimer and version."""
    tables = knowledge.tables
    return {
        "burden_rules": {
            "formula": tables["burden_index"]["formula"],
            "acb_scores": {drug.id: drug.acb_score for drug in knowledge.drugs.values() if drug.acb_score},
            "cns_active": [drug.id for drug in knowledge.drugs.values() if drug.cns_active],
            "duplicate_therapy": tables["duplicate_therapy"],
            "rules": tables["beers"],
        },
        "taper_rules": {"rules": tables["taper_rules"]},
        "substitution_rules": {"rules": tables["substitutions"]},
    }
