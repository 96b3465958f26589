"""The tables as Parquet, YAML and JSON Lines: complete, readable, the same each time, and with the disclaimer."""

import io
import json

import msgspec
import pyarrow.parquet
import yaml

from bashgym.core.canonical import digest_file
from polyguard.knowledge import load
from polyguard.knowledge.evidence import documents
from polyguard.knowledge.export import edges, export

FILES = {
    "normalized_drugs.parquet",
    "drug_classes.parquet",
    "interactions.parquet",
    "graph_edges.parquet",
    "burden_rules.yaml",
    "taper_rules.yaml",
    "substitution_rules.yaml",
    "retrieval_corpus.jsonl",
}


def test_every_file_is_written_whole_and_its_digest_is_told(tmp_path):
    written = export(load(), tmp_path)
    assert set(written) == FILES == {path.name for path in tmp_path.iterdir()}
    for name, row in written.items():
        assert digest_file(tmp_path / name) == row["sha256"]
        assert row["rows"] > 0


def test_writing_twice_gives_the_same_bytes(tmp_path):
    first = export(load(), tmp_path)
    assert export(load(), tmp_path) == first


def test_parquet_holds_what_the_look_ups_say(tmp_path):
    export(load(), tmp_path)

    def rows(name):
        return pyarrow.parquet.read_table(io.BytesIO((tmp_path / f"{name}.parquet").read_bytes())).to_pylist()

    assert [row["id"] for row in rows("normalized_drugs")] == list(load().drugs)
    pairs = rows("interactions")
    assert len(pairs) == len(load().pairs)
    assert all(load().interaction(row["a"], row["b"]).severity == row["severity"] for row in pairs)
    assert {row["drug"] for row in rows("drug_classes")} == {
        name for members in load().groups.values() for name in members
    }


def test_edges_are_not_doubled_and_point_at_what_exists():
    found = [(row["source"], row["relation"], row["target"], row["rule_id"]) for row in edges(load())]
    assert len(found) == len(set(found))
    ends = set(load().drugs) | set(load().groups) | set(load().conditions())
    assert {end for row in found for end in (row[0], row[2])} <= ends
    assert {row[1] for row in found} == {"interacts_with", "member_of", "treats", "replaced_by", "avoid_in"}


def test_rules_carry_the_disclaimer_and_the_version(tmp_path):
    export(load(), tmp_path)
    for path in tmp_path.glob("*.yaml"):
        table = yaml.safe_load(path.read_text())
        assert "Not medical advice" in table["disclaimer"]
        assert table["knowledge_version"] == load().version
        assert table["rules"]


def test_the_corpus_is_the_evidence_index(tmp_path):
    export(load(), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "retrieval_corpus.jsonl").read_text().splitlines()]
    assert rows == json.loads(json.dumps([msgspec.to_builtins(item) for item in documents()]))
