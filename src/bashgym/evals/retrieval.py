"""How well a retriever finds: nDCG, MRR and recall on a frozen split, paired with the incumbent's, query by query.

Owns the files (queries, judgements, corpus, ranked results, training pairs), the metrics and the report
`bashgym.retrieval_report.v1`. What the report must hold to count as evidence is `evidence.retrieval`'s; it is asked here.

A run is JSONL: {query_id, ranking: [doc_id, best first], latency_ms?} for every query, once, and at most one line
{index_bytes, memory_bytes}. Judgements are JSONL {query_id, doc_id, relevance} or BEIR's TSV (query, document, relevance).
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError, fail
from bashgym.core.ids import check_identifier
from bashgym.data.readers import iter_rows
from bashgym.data.types import Finding, Severity
from bashgym.evals import stats
from bashgym.evals.wire import decode

SCHEMA = "bashgym.retrieval_report.v1"
NDCG_AT = 10
METRICS = ("ndcg_at_10", "mrr", "recall_at_k")
HARD = "hard"
LATENCY_QUANTILE = 0.95
_DOCUMENT_ID = re.compile(r"(doc|document|corpus|passage|positive|negative|pos|neg)[_-]?ids?|pid", re.IGNORECASE)
"""Keys of training pairs that name documents. Others may count rows."""
T = TypeVar("T", bound=msgspec.Struct)


class Query(msgspec.Struct, kw_only=True):
    """A line of the query file; other fields are left alone. BEIR's `_id` is read as query_id."""

    query_id: str
    text: str = ""
    slice: str = "all"
    hard: bool = False
    """Whether its slice is a hard one; a slice called hard is."""
    topic: str | None = None
    """Queries of one topic are alike: the interval is over topics then."""


class Judgement(msgspec.Struct, kw_only=True):
    """A line of the judgements. Relevance 0 is judged and not relevant."""

    query_id: str
    doc_id: str
    relevance: float


class Document(msgspec.Struct, kw_only=True):
    """A line of the corpus; BEIR's `_id` is read as doc_id."""

    doc_id: str
    title: str = ""
    text: str = ""


class Ranked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was found for one query, best first."""

    query_id: str
    ranking: list[str]
    latency_ms: float | None = None


class Footprint(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the index costs."""

    index_bytes: int
    memory_bytes: int


class Run(msgspec.Struct):
    """A run file, read and checked."""

    ranked: dict[str, Ranked]
    footprint: Footprint | None


def ndcg(gains: Sequence[float], ideal: Sequence[float], k: int) -> float:
    """Normalised discounted cumulative gain of the first k: sum of gain / log2(rank + 1), over that of the best order.

    Järvelin & Kekäläinen 2002, ACM TOIS 20:422, with the discount that trec_eval's `ndcg_cut` takes. `gains` are those of
    the ranking, `ideal` those of every judged document. 0 where nothing is relevant.
    """
    best = _dcg(sorted(ideal, reverse=True)[:k])
    return _dcg(gains[:k]) / best if best > 0 else 0.0


def reciprocal_rank(gains: Sequence[float]) -> float:
    """1 / rank of the first relevant document, 0 without one (Voorhees 1999, TREC-8)."""
    return next((1 / rank for rank, gain in enumerate(gains, 1) if gain > 0), 0.0)


def recall(gains: Sequence[float], n_relevant: int, k: int) -> float:
    """Share of the relevant documents among the first k."""
    return sum(gain > 0 for gain in gains[:k]) / n_relevant if n_relevant else 0.0


def evaluate(
    queries: Path,
    judgements: Path,
    candidate: Path,
    incumbent: Path,
    *,
    corpus: Path | None = None,
    training_pairs: Path | None = None,
    k: int = 10,
    budget_ms: float | None = None,
    run_id: str = "",
) -> dict[str, Any]:
    """The report. `benchmark_invalid` for queries or documents that are unknown, doubled or missing, and for NaN."""
    if k < 1 or (budget_ms is not None and not 0 < budget_ms < math.inf):
        raise fail("invalid_field", "k counts from 1, and a budget is above 0", fields=["k", "budget_ms"])
    if training_pairs is not None and corpus is None:
        text = "training pairs are looked through for the texts of judged documents, which the corpus has"
        raise fail("usage", text, "Give --corpus.", ["corpus"])
    asked = _queries(queries)
    documents = _documents(corpus) if corpus else None
    judged = _judgements(judgements, asked, documents)
    sides = {"candidate": candidate, "incumbent": incumbent}
    runs = {side: _run(path, asked, documents) for side, path in sides.items()}
    rows = [_row(query, judged[query.query_id], runs, k) for query in asked.values()]
    doc = {
        "schema_version": SCHEMA,
        "run_id": check_identifier(run_id, "run_id") if run_id else "",
        "k": k,
        "frozen_split": {
            "queries_sha256": digest_file(queries),
            "judgements_sha256": digest_file(judgements),
            "corpus_sha256": digest_file(corpus) if corpus else None,
            "n_queries": len(asked),
            "n_judgements": sum(map(len, judged.values())),
        },
        "runs": {side: {"path": str(path), "sha256": digest_file(path)} for side, path in sides.items()},
        "queries": rows,
        "metrics": _means(rows),
        "comparison": _comparison(rows, asked),
        "hard_slices": sorted({query.slice for query in asked.values() if query.hard or query.slice == HARD}),
        "slices": {
            name: {"n": len(part), **_means(part)}
            for name in sorted({query.slice for query in asked.values()})
            if (part := [row for row in rows if row["slice"] == name])
        },
        "latency": _latency(runs, budget_ms),
        "contamination": _contamination(judged, asked, documents, training_pairs),
    }
    return doc | verdict(doc)


def verdict(doc: Mapping[str, Any]) -> dict[str, Any]:
    """{ok, sections: {name: {ok, reason}}, reasons}: what each section says, by the rules of the evidence."""
    from bashgym.evidence.retrieval import RULES

    reasons = {name: rule(dict(doc)) for name, rule in RULES.items()}
    interval = doc["comparison"]
    if not reasons["retrieval_metrics"] and not (interval["ci_low"] or 0.0) > 0:
        reasons["retrieval_metrics"] = f"the interval of the gain over {interval['cluster']} does not exclude zero"
    sections = {name: {"ok": not reason, "reason": reason} for name, reason in reasons.items()}
    return {
        "ok": not any(reasons.values()),
        "sections": sections,
        "reasons": [f"{name}: {reason}" for name, reason in reasons.items() if reason],
    }


def _dcg(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _row(query: Query, relevance: Mapping[str, float], runs: Mapping[str, Run], k: int) -> dict[str, Any]:
    n_relevant = sum(gain > 0 for gain in relevance.values())
    row: dict[str, Any] = {"query_id": query.query_id, "slice": query.slice}
    for side, run in runs.items():
        gains = [relevance.get(name, 0.0) for name in run.ranked[query.query_id].ranking]
        values = (ndcg(gains, list(relevance.values()), NDCG_AT), reciprocal_rank(gains), recall(gains, n_relevant, k))
        row[side] = dict(zip(METRICS, values, strict=True))
    return row


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        side: {name: fmean(row[side][name] for row in rows) for name in METRICS} for side in ("candidate", "incumbent")
    }


def _comparison(rows: Sequence[Mapping[str, Any]], asked: Mapping[str, Query]) -> dict[str, Any]:
    """The gain in nDCG with its interval over topics where every query has one, else over queries."""
    gains = [row["candidate"]["ndcg_at_10"] - row["incumbent"]["ndcg_at_10"] for row in rows]
    topics = [query.topic for query in asked.values()]
    by_topic = all(topic is not None for topic in topics)
    clusters: list[Hashable] = list(topics if by_topic else asked)
    found = {
        "metric": "ndcg_at_10",
        "effect": fmean(gains),
        "n": len(gains),
        "cluster": "topic" if by_topic else "query",
        "n_clusters": len(set(clusters)),
    }
    try:
        low, high = stats.cluster_bootstrap(gains, clusters)
    except BashGymError as error:
        return {**found, "ci_low": None, "ci_high": None, "warning": error.message}
    return {**found, "ci_low": low, "ci_high": high, "method": "cluster bootstrap"}


def _latency(runs: Mapping[str, Run], budget_ms: float | None) -> dict[str, Any]:
    """query_latency_ms is the 95th percentile of the candidate's queries, by nearest rank."""
    found: dict[str, Any] = {"budget_ms": budget_ms, "quantile": LATENCY_QUANTILE}
    footprint = runs["candidate"].footprint
    for side, prefix in (("incumbent", "incumbent_"), ("candidate", "")):
        times = sorted(r.latency_ms for r in runs[side].ranked.values() if r.latency_ms is not None)
        whole = len(times) == len(runs[side].ranked)
        found[f"{prefix}query_latency_ms"] = times[math.ceil(LATENCY_QUANTILE * len(times)) - 1] if whole else None
    for name in ("index_bytes", "memory_bytes"):
        found[name] = getattr(footprint, name) if footprint else None
    return found


def _contamination(
    judged: Mapping[str, Mapping[str, float]],
    asked: Mapping[str, Query],
    documents: Mapping[str, Document] | None,
    path: Path | None,
) -> dict[str, Any]:
    """Judged documents and asked queries among the strings of the training pairs: by id, or by their words."""
    wanted = sorted({name for relevance in judged.values() for name in relevance})
    if path is None or documents is None:
        return {"n_checked": 0, "n": None, "found": []}
    texts: dict[str, str] = {}
    for name in wanted:
        document = documents[name]
        texts |= {_words(text): name for text in (document.text, f"{document.title} {document.text}") if _words(text)}
    texts |= {_words(query.text): f"query {query.query_id}" for query in asked.values() if _words(query.text)}
    ids, found = set(wanted), set[str]()
    for _, row in _lines(path):
        for text, is_id in _strings(row):
            hit = text if is_id and text in ids else texts.get(_words(text))
            found |= {hit} if hit else set()
    return {
        "n_checked": len(wanted),
        "n_queries_checked": sum(bool(_words(query.text)) for query in asked.values()),
        "n": len(found),
        "found": sorted(found)[:20],
        "training_pairs_sha256": digest_file(path),
    }


def _strings(value: object, is_id: bool = False) -> Iterator[tuple[str, bool]]:
    """Every string of a row, and whether its key says that it names a document."""
    if isinstance(value, str):
        yield value, is_id
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, _DOCUMENT_ID.fullmatch(str(key)) is not None)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, is_id)


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _queries(path: Path) -> dict[str, Query]:
    found: dict[str, Query] = {}
    for at, row in _lines(path):
        query = _decoded(row, Query, at, {"_id": "query_id"})
        _once(query.query_id, found, at, "query")
        found[query.query_id] = query
    return found


def _documents(path: Path) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for at, row in _lines(path):
        document = _decoded(row, Document, at, {"_id": "doc_id"})
        _once(document.doc_id, found, at, "document")
        found[document.doc_id] = document
    return found


def _judgements(
    path: Path, asked: Mapping[str, Query], documents: Mapping[str, Document] | None
) -> dict[str, dict[str, float]]:
    """query -> document -> relevance, with something relevant for every query."""
    found: dict[str, dict[str, float]] = {name: {} for name in asked}
    for at, row in _tsv(path) if path.suffix == ".tsv" else _lines(path):
        judgement = _decoded(row, Judgement, at)
        _known(judgement.query_id, asked, at, "query")
        _known(judgement.doc_id, documents, at, "document")
        if not 0 <= judgement.relevance < math.inf:
            raise _invalid(f"{at}: relevance is {judgement.relevance}, not a number from 0 on", "relevance")
        _once(judgement.doc_id, found[judgement.query_id], at, f"judgement of {judgement.query_id} on")
        found[judgement.query_id][judgement.doc_id] = judgement.relevance
    if without := [name for name, relevance in found.items() if not any(relevance.values())]:
        raise _invalid(f"{path.name}: nothing is relevant to query {_short(without[0])}", "judgements")
    return found


def _run(path: Path, asked: Mapping[str, Query], documents: Mapping[str, Document] | None) -> Run:
    ranked: dict[str, Ranked] = {}
    footprint: Footprint | None = None
    for at, row in _lines(path):
        if "query_id" not in row:
            if footprint is not None:
                raise _invalid(f"{at}: a second line without query_id", "query_id")
            footprint = _decoded(row, Footprint, at)
            continue
        line = _decoded(row, Ranked, at)
        _known(line.query_id, asked, at, "query")
        _once(line.query_id, ranked, at, "query")
        for name in line.ranking:
            _known(name, documents, at, "document")
        if len(set(line.ranking)) != len(line.ranking):
            raise _invalid(f"{at}: a document is ranked twice for query {_short(line.query_id)}", "ranking")
        if line.latency_ms is not None and not 0 < line.latency_ms < math.inf:
            raise _invalid(f"{at}: latency_ms is {line.latency_ms}", "latency_ms")
        ranked[line.query_id] = line
    if missing := [name for name in asked if name not in ranked]:
        text = f"{path.name}: {len(missing)} queries are missing, the first is {_short(missing[0])}"
        raise _invalid(text, "query_id", "A query for which nothing was found has an empty ranking.")
    return Run(ranked, footprint)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of a JSONL file; `benchmark_invalid` if a row cannot be read."""
    findings: list[Finding] = []
    for row in iter_rows(path, findings):
        yield f"{path.name} row {row.number}", row.value
    for finding in findings:
        if finding.severity == Severity.ERROR:
            raise _invalid(f"{path.name}: {finding.message}", "file")


def _tsv(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, judgement) of BEIR's three columns; a first line whose third column is no number is the header."""
    if not path.is_file():
        raise fail("file_missing", f"the judgements {path} do not exist")
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            cells = line.rstrip("\r\n").split("\t")
            try:
                query_id, doc_id, relevance = cells[0], cells[1], float(cells[2])
            except (IndexError, ValueError) as error:
                if number == 1 and len(cells) == 3:
                    continue
                raise _invalid(f"{path.name} row {number}: not query, document and relevance", "judgements") from error
            yield f"{path.name} row {number}", {"query_id": query_id, "doc_id": doc_id, "relevance": relevance}


def _decoded(row: Mapping[str, Any], kind: type[T], at: str, aliases: Mapping[str, str] | None = None) -> T:
    try:
        return decode({(aliases or {}).get(name, name): value for name, value in row.items()}, kind)
    except BashGymError as error:
        raise fail("benchmark_invalid", f"{at}: {error.message}", error.hint, error.fields) from error


def _known(name: str, known: Iterable[str] | None, at: str, what: str) -> None:
    if known is not None and name not in known:
        raise _invalid(f"{at}: no {what} is called {_short(name)}", what)


def _once(name: str, known: Iterable[str], at: str, what: str) -> None:
    if name in known:
        raise _invalid(f"{at}: a second {what} {_short(name)}", what)


def _short(name: str) -> str:
    return repr(name[:80])


def _invalid(message: str, field: str, hint: str = "") -> BashGymError:
    return fail("benchmark_invalid", message, hint, [field])
