"""`bashgym eval retrieval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bashgym.cli.output import Reply, safe, table


def retrieval(
    *,
    queries: Annotated[Path, typer.Option(help="JSONL of query_id, text, slice, hard, topic.")],
    qrels: Annotated[Path, typer.Option(help="Judgements: JSONL of query_id, doc_id, relevance, or BEIR's TSV.")],
    run: Annotated[Path, typer.Option(help="Ranked results of the candidate, JSONL.")],
    baseline: Annotated[Path, typer.Option(help="Ranked results of the incumbent, JSONL.")],
    corpus: Annotated[Path | None, typer.Option(help="JSONL of doc_id, title, text: no other document counts.")] = None,
    training_pairs: Annotated[
        Path | None, typer.Option(help="What the candidate was trained on; judged documents must not be in it.")
    ] = None,
    k: Annotated[int, typer.Option(help="Recall is at k; nDCG is at 10.")] = 10,
    budget_ms: Annotated[float | None, typer.Option(help="Most milliseconds of the 95th percentile.")] = None,
    run_id: Annotated[str, typer.Option(help="Run whose evidence this is.")] = "",
    output: Annotated[Path | None, typer.Option(help="File for the report.")] = None,
) -> Reply:
    """Candidate against incumbent on a frozen split, from ranked results. The exit status is 1 if a section does not hold."""
    from bashgym.core.files import atomic_write_json
    from bashgym.evals.retrieval import METRICS, evaluate

    doc = evaluate(
        queries,
        qrels,
        run,
        baseline,
        corpus=corpus,
        training_pairs=training_pairs,
        k=k,
        budget_ms=budget_ms,
        run_id=run_id,
    )
    if output:
        atomic_write_json(output, doc)
    found, interval = doc["metrics"], doc["comparison"]
    rows = [{"metric": name, **{side: f"{found[side][name]:.4f}" for side in found}} for name in METRICS]

    def show() -> None:
        table(rows, ["metric", "incumbent", "candidate"])
        if interval["ci_low"] is not None:
            between = f"{interval['ci_low']:+.4f} to {interval['ci_high']:+.4f}"
            print(
                f"gain in nDCG {interval['effect']:+.4f}, 95 % interval {between}, over {interval['n_clusters']} clusters"
            )
        for line in doc["reasons"] or ["every section holds"]:
            print(f"  {safe(line)}")

    return Reply(doc, show, exit_code=0 if doc["ok"] else 1)
