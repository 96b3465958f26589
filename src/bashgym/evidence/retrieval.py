"""`bashgym.retrieval_report.v1`: what a retriever's report must hold, computed again from its queries.

{k, frozen_split: {queries_sha256, judgements_sha256}, queries: [{query_id, slice, candidate, incumbent}] with ndcg_at_10, mrr
and recall_at_k on both sides, hard_slices: [slice], latency: {query_latency_ms, budget_ms, index_bytes, memory_bytes},
contamination: {n_checked, n}}.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import fmean
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.evals.stats import cluster_bootstrap
from bashgym.evidence.inspection import number, part

SCHEMA = "bashgym.retrieval_report.v1"
MIN_QUERIES = 20
_METRICS = ("ndcg_at_10", "mrr", "recall_at_k")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNREADABLE = "its queries do not hold both sides' metrics"

Document = dict[str, Any]


def frozen_split(document: Document) -> str:
    """Queries and judgements have a digest, and each query is asked once."""
    split, rows = part(document, "frozen_split"), document.get("queries")
    if not all(_SHA256.fullmatch(str(split.get(name))) for name in ("queries_sha256", "judgements_sha256")):
        return "queries and judgements are not frozen by digest"
    ids = [row.get("query_id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return (
        ""
        if len(set(map(str, ids))) == len(ids) >= MIN_QUERIES
        else f"it does not hold {MIN_QUERIES} queries, once each"
    )


def metrics(document: Document) -> str:
    """nDCG is better than the incumbent's by more than noise; MRR and recall are not worse."""
    try:
        gains = _gains(document)
        low = cluster_bootstrap(gains["ndcg_at_10"], [str(row["query_id"]) for row in document["queries"]]).low
    except (KeyError, TypeError, ValueError, BashGymError):
        return _UNREADABLE
    worse = [name for name in _METRICS if fmean(gains[name]) < 0]
    if worse or not low > 0:
        return f"worse in {', '.join(worse)}" if worse else "the interval of the gain in nDCG does not exclude zero"
    return ""


def hard_slices(document: Document) -> str:
    """Every hard slice that is named has queries, and is not worse."""
    names = document.get("hard_slices")
    if not isinstance(names, list) or not names:
        return "it names no hard slices"
    try:
        gains = _gains(document)["ndcg_at_10"]
        rows = [row["slice"] for row in document["queries"]]
    except (KeyError, TypeError, ValueError):
        return _UNREADABLE
    for name in names:
        own = [gain for gain, of in zip(gains, rows, strict=True) if of == name]
        if not own or fmean(own) < 0:
            return f"hard slice {name} {'is worse' if own else 'has no queries'}"
    return ""


def latency(document: Document) -> str:
    """Latency within its budget; index and memory were measured."""
    found = part(document, "latency")
    spent, budget, index, memory = (
        number(found.get(name)) for name in ("query_latency_ms", "budget_ms", "index_bytes", "memory_bytes")
    )
    if not spent or not budget or not index or not memory:
        return "latency, its budget, index size and memory are not all there"
    return "" if 0 < spent <= budget else f"{spent:g} ms a query; the budget is {budget:g}"


def contamination(document: Document) -> str:
    """Judged documents were looked for among the training pairs, and not found."""
    found = part(document, "contamination")
    if not number(found.get("n_checked")):
        return "no judged document was looked for in the training pairs"
    return "" if found.get("n") == 0 else "judged documents are among the training pairs"


RULES: dict[str, Callable[[Document], str]] = {
    "frozen_split": frozen_split,
    "retrieval_metrics": metrics,
    "hard_slices": hard_slices,
    "latency_footprint": latency,
    "contamination_control": contamination,
}


def _gains(document: Document) -> dict[str, list[float]]:
    """Metric -> candidate minus incumbent, by query. KeyError, TypeError, ValueError where the rows are not as they must be."""
    rows = document["queries"]
    gains = {name: [float(row["candidate"][name]) - float(row["incumbent"][name]) for row in rows] for name in _METRICS}
    if len(rows) < MIN_QUERIES:
        raise ValueError(len(rows))
    return gains
