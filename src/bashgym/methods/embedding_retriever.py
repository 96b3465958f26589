"""Embedding retrievers: described for their evidence only; nothing here trains one."""

from __future__ import annotations

from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Method, Metric, Recipe, Role, Stage

METRICS = (
    Metric(
        "ndcg_at_10",
        Role.EVALUATION,
        "gain of relevant results, discounted by rank",
        "a mean that hides hard slices",
        "report slices",
        aliases=("ndcg@10", "ndcg"),
    ),
    Metric(
        "mrr",
        Role.EVALUATION,
        "mean reciprocal rank of the first relevant result",
        "improvement by duplicates",
        "deduplicate the index",
    ),
    Metric(
        "recall_at_k",
        Role.EVALUATION,
        "share of relevant results among the first k",
        "k larger than what is used",
        "report the k in use",
        aliases=("recall@k", "recall"),
    ),
    Metric(
        "query_latency_ms",
        Role.SYSTEM,
        "time per query",
        "growth with the index",
        "smaller vectors or an approximate index",
    ),
)

METHOD = Method(
    name="embedding_retriever",
    title="Embedding retriever",
    summary="A model that finds; promoted on retrieval evidence.",
    objective="contrastive loss over queries and documents, trained elsewhere",
    direct=False,
    dataset=DatasetContract("none", "queries with judged documents", rules=("the split is frozen before training",)),
    metrics=METRICS,
    evidence=(
        EvidenceRule(EvidenceKind.FROZEN_SPLIT, "queries and judgements frozen by digest"),
        EvidenceRule(EvidenceKind.RETRIEVAL_METRICS, "nDCG, MRR and recall against the incumbent"),
        EvidenceRule(EvidenceKind.HARD_SLICES, "the same on hard slices"),
        EvidenceRule(EvidenceKind.LATENCY_FOOTPRINT, "query latency, index size and memory"),
        EvidenceRule(EvidenceKind.CONTAMINATION_CONTROL, "no judged document among the training pairs"),
    ),
    recipe=Recipe(
        when_to_use="An agent fails because it does not find the right document or example.",
        settings={},
        watch=("hard slices", "latency", "contamination"),
        steps=("Freeze the split.", "Measure the incumbent.", "Compare on the same queries."),
        ladder=(
            Stage("frozen_split", "digests of queries and judgements", "nothing changes after the first look"),
            Stage(
                "retrieval_gate",
                "paired metrics with intervals",
                "better overall, no hard slice worse, latency within budget",
            ),
        ),
        rules=(("recall up, agent success flat", "the model does not use what it finds: look at prompts"),),
        next=(
            (
                "compare with the incumbent on the frozen split",
                "bashgym eval retrieval --queries <queries.jsonl> --qrels <qrels.jsonl> --corpus <corpus.jsonl> "
                "--run <run.jsonl> --baseline <incumbent.jsonl> --training-pairs <pairs.jsonl> --budget-ms 50 "
                "--output retrieval.json",
            ),
            (
                "record the claim and what is known",
                "bashgym training runcard create --run-id <run_id> --training-method embedding_retriever "
                "--base-model <model-id> --compute-target local --output run_card.json",
            ),
        ),
    ),
    aliases=("embedding-retriever", "retriever"),
    workflow="train it with the tool of your choice and bring its evidence to a RunCard",
)
