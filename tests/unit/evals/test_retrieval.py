"""Retrieval metrics against values worked out by hand, and every way in which the files can be wrong."""

import json
import math
from pathlib import Path

import pytest

from bashgym.cli.main import main
from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.evals.retrieval import evaluate, ndcg, recall, reciprocal_rank

N = 24


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path):
    """24 queries with one very (2) and one slightly (1) relevant document; the incumbent swaps them behind a stranger."""
    queries = [
        {"query_id": f"q{i}", "text": f"where is thing {i}", "slice": ("easy", "rare")[i % 2], "hard": i % 2 == 1}
        for i in range(N)
    ]
    corpus = [{"_id": f"{kind}{i}", "text": f"{kind} words {i}"} for i in range(N) for kind in ("best", "good", "none")]
    qrels = [
        {"query_id": f"q{i}", "doc_id": f"{kind}{i}", "relevance": relevance}
        for i in range(N)
        for kind, relevance in (("best", 2), ("good", 1), ("none", 0))
    ]
    runs = {
        "run": [
            {"query_id": f"q{i}", "ranking": [f"best{i}", f"good{i}", f"none{i}"], "latency_ms": 1.0 + i}
            for i in range(N)
        ],
        "baseline": [{"query_id": f"q{i}", "ranking": [f"none{i}", f"good{i}", f"best{i}"]} for i in range(N)],
    }
    runs["run"].append({"index_bytes": 1000, "memory_bytes": 5000})
    pairs = [{"id": "best1", "query": "anything else", "positive": "other words", "doc_id": "d9"}]
    return {
        "queries": write(tmp_path / "queries.jsonl", queries),
        "corpus": write(tmp_path / "corpus.jsonl", corpus),
        "judgements": write(tmp_path / "qrels.jsonl", qrels),
        "candidate": write(tmp_path / "run.jsonl", runs["run"]),
        "incumbent": write(tmp_path / "baseline.jsonl", runs["baseline"]),
        "training_pairs": write(tmp_path / "pairs.jsonl", pairs),
    }


def edit(path, change):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return write(path, change(rows))


def test_metrics_are_those_worked_out_by_hand():
    # Gains 3, 2, 3, 0, 1, 2 of judged 3, 3, 3, 2, 2, 2, 1, 0: DCG 3 + 2/log2(3) + 3/2 + 1/log2(6) + 2/log2(7).
    gains, ideal = [3, 2, 3, 0, 1, 2], [3, 3, 3, 2, 2, 2, 1, 0]
    dcg = 3 + 1.2618595071 + 1.5 + 0.3868528072 + 0.7124143742
    best = 3 + 1.8927892607 + 1.5 + 0.8613531161 + 0.7737056144 + 0.7124143742
    assert ndcg(gains, ideal, 6) == pytest.approx(dcg / best, abs=1e-9)
    assert ndcg(gains, ideal, 1) == 1.0 and ndcg(ideal, ideal, 8) == 1.0
    assert ndcg([0, 1], [1], 10) == pytest.approx(1 / math.log2(3)) and ndcg([0, 1], [1], 1) == 0
    assert ndcg([], [1], 10) == 0 and ndcg([0], [0], 10) == 0, "nothing found, nothing to find"
    assert [reciprocal_rank(g) for g in ([0, 0, 2], [1, 1], [0], [])] == [1 / 3, 1, 0, 0]
    assert [recall([1, 0, 2, 1], 4, k) for k in (1, 2, 3, 10)] == [0.25, 0.25, 0.5, 0.75] and recall([0], 0, 3) == 0


def test_a_report_holds_both_sides_by_query_and_satisfies_the_evidence(files):
    doc = evaluate(**files, k=2, budget_ms=30, run_id="run_1")
    low = (1 / math.log2(3) + 2 / 2) / (2 + 1 / math.log2(3))
    assert doc["metrics"]["candidate"] == {"ndcg_at_10": 1.0, "mrr": 1.0, "recall_at_k": 1.0}
    assert doc["metrics"]["incumbent"] == pytest.approx({"ndcg_at_10": low, "mrr": 0.5, "recall_at_k": 0.5})
    assert doc["queries"][3]["query_id"] == "q3" and doc["queries"][3]["slice"] == "rare"
    assert doc["comparison"]["effect"] == pytest.approx(1 - low) and doc["comparison"]["cluster"] == "query"
    assert doc["hard_slices"] == ["rare"] and doc["slices"]["rare"]["n"] == N / 2
    for name, key in (("queries", "queries_sha256"), ("judgements", "judgements_sha256"), ("corpus", "corpus_sha256")):
        assert doc["frozen_split"][key] == digest_file(files[name])
    latency = doc["latency"]
    assert latency["query_latency_ms"] == 23.0, "rank 23 of 24 is the 95th percentile"
    assert (latency["index_bytes"], latency["memory_bytes"], latency["incumbent_query_latency_ms"]) == (
        1000,
        5000,
        None,
    )
    assert (doc["contamination"]["n_checked"], doc["contamination"]["n"]) == (3 * N, 0), "row ids are no document ids"
    assert doc["ok"] and doc["reasons"] == [] and doc["run_id"] == "run_1" and doc["k"] == 2
    assert evaluate(**files, k=2, budget_ms=30, run_id="run_1") == doc, "the same files, the same report"


@pytest.mark.parametrize(
    ("change", "section"),
    [
        ({"budget_ms": 22.9}, "latency_footprint"),
        ({"budget_ms": None}, "latency_footprint"),
        ({"training_pairs": None}, "contamination_control"),
        ({"swap": True}, "retrieval_metrics"),
        ({"swap": True}, "hard_slices"),
        ({"candidate": "incumbent"}, "retrieval_metrics"),
    ],
)
def test_a_section_that_does_not_hold_is_named(files, change, section):
    given = {**files, "budget_ms": 30, **{k: v for k, v in change.items() if k not in ("swap", "candidate")}}
    if "swap" in change:
        given |= {"candidate": files["incumbent"], "incumbent": files["candidate"]}
    if "candidate" in change:
        given["candidate"] = files["incumbent"]
    doc = evaluate(**given)
    assert not doc["ok"] and not doc["sections"][section]["ok"] and any(section in line for line in doc["reasons"])


def test_a_gain_in_two_topics_of_many_queries_is_not_a_gain_over_topics(files):
    edit(files["queries"], lambda rows: [{**row, "topic": f"t{i % 4}"} for i, row in enumerate(rows)])
    keep = {f"q{i}" for i in range(N) if i % 4 == 0}
    worse = {row["query_id"]: row for row in map(json.loads, files["incumbent"].read_text().splitlines())}
    edit(
        files["candidate"],
        lambda rows: [row if row.get("query_id") in keep else worse.get(row.get("query_id"), row) for row in rows],
    )
    found = evaluate(**files)
    assert found["comparison"]["cluster"] == "topic" and found["comparison"]["n_clusters"] == 4
    assert found["comparison"]["ci_low"] <= 0 and "topic" in found["sections"]["retrieval_metrics"]["reason"]


@pytest.mark.parametrize(
    ("pair", "what"),
    [
        ({"query": "x", "positive": "Best  WORDS, 3!"}, "best3"),
        ({"negatives": ["a", "none words 4"]}, "none4"),
        ({"doc_id": "good5"}, "good5"),
        ({"positive_ids": ["zzz", "good6"]}, "good6"),
        ({"query": "Where is thing 7"}, "query q7"),
    ],
)
def test_what_is_judged_may_not_be_trained_on(files, pair, what):
    edit(files["training_pairs"], lambda rows: [*rows, pair])
    doc = evaluate(**files, budget_ms=30)
    assert doc["contamination"]["found"] == [what] and not doc["sections"]["contamination_control"]["ok"]


def changed(**values):
    return lambda rows: [{**rows[0], **values}, *rows[1:]]


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("queries", lambda rows: [*rows, rows[0]], "second query 'q0'"),
        ("corpus", lambda rows: [*rows, rows[0]], "second document 'best0'"),
        ("judgements", lambda rows: [*rows, rows[0]], "second judgement of q0 on 'best0'"),
        ("judgements", changed(doc_id="d7"), "no document is called 'd7'"),
        ("judgements", changed(query_id="q99"), "no query is called 'q99'"),
        ("judgements", changed(relevance=-1), "relevance is -1"),
        ("judgements", lambda rows: rows[2:], "nothing is relevant to query 'q0'"),
        ("candidate", lambda rows: [*rows, rows[0]], "second query 'q0'"),
        ("candidate", lambda rows: rows[1:], "1 queries are missing, the first is 'q0'"),
        ("incumbent", lambda rows: rows[:2], "22 queries are missing"),
        ("candidate", changed(ranking=["best0", "d7"]), "no document is called 'd7'"),
        ("candidate", changed(ranking=["best0", "good0", "best0"]), "ranked twice for query 'q0'"),
        ("candidate", changed(latency_ms=0), "latency_ms is 0"),
        ("candidate", changed(query_id="q99"), "no query is called 'q99'"),
        ("candidate", changed(rankings=[]), "rankings"),
        ("candidate", lambda rows: [*rows, rows[-1]], "a second line without query_id"),
        ("candidate", changed(ranking="best0"), "ranking"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(files, file, change, says):
    edit(files[file], change)
    with pytest.raises(BashGymError) as refused:
        evaluate(**files)
    assert refused.value.code == "benchmark_invalid" and says in refused.value.message, refused.value.message


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
@pytest.mark.parametrize("file", ["judgements", "candidate"])
def test_what_is_no_number_is_refused(files, file, value):
    text = files[file].read_text()
    files[file].write_text(
        text.replace(*{"judgements": (": 2}", f": {value}}}"), "candidate": (": 1.0}", f": {value}}}")}[file])
    )
    with pytest.raises(BashGymError) as refused:
        evaluate(**files)
    assert refused.value.code == "benchmark_invalid"


def test_judgements_are_read_as_tsv_too(files, tmp_path):
    rows = [json.loads(line) for line in files["judgements"].read_text().splitlines()]
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row.values())) for row in rows)]
    table = tmp_path / "qrels.tsv"
    table.write_text("\n".join(lines) + "\n")
    assert evaluate(**{**files, "judgements": table})["queries"] == evaluate(**files)["queries"]
    table.write_text("\n".join([*lines, "q1\tbest1\tmuch"]))
    with pytest.raises(BashGymError, match="row 74"):
        evaluate(**{**files, "judgements": table})
    table.write_text("\n".join([*lines[:-1], lines[-1].replace("\t0", "\tnan")]))
    with pytest.raises(BashGymError, match="relevance is nan"):
        evaluate(**{**files, "judgements": table})


def test_bad_options_are_refused(files):
    for change, code in (
        ({"k": 0}, "invalid_field"),
        ({"budget_ms": math.nan}, "invalid_field"),
        ({"corpus": None}, "usage"),
        ({"run_id": "../x"}, "invalid_field"),
        ({"queries": Path("none")}, "dataset_missing"),
    ):
        with pytest.raises(BashGymError) as refused:
            evaluate(**{**files, **change})
        assert refused.value.code == code


def test_the_command_writes_the_report_and_exits_by_it(files, tmp_path, capsys):
    names = {"judgements": "qrels", "candidate": "run", "incumbent": "baseline", "training_pairs": "training-pairs"}
    argv = [part for name, path in files.items() for part in (f"--{names.get(name, name)}", str(path))]
    out = tmp_path / "report.json"
    assert main(["eval", "retrieval", *argv, "--budget-ms", "30", "--output", str(out)]) == 0
    assert "gain in nDCG +0.3801" in capsys.readouterr().out and json.loads(out.read_text())["ok"] is True
    assert main(["eval", "retrieval", *argv]) == 1
    assert "latency_footprint" in capsys.readouterr().out
