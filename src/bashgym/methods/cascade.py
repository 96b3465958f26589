"""Cascade: one stage per domain, then one student (MOPD). Not a direct strategy."""

from __future__ import annotations

from bashgym.methods.metrics import EXECUTED, OPTIMISATION
from bashgym.methods.spec import DatasetContract, EvidenceKind, EvidenceRule, Method, Recipe, Stage

DATASET = DatasetContract(
    "sft",
    "rows of the stage's own method, filtered by domain",
    rules=(
        "a domain with fewer than min_domain_examples rows (ten) is skipped, on record",
        "no row is in two domains",
        "held-out families are in none",
    ),
)

EVIDENCE = (
    EvidenceRule(EvidenceKind.STAGE_RUN_CARDS, "a valid RunCard for every stage"),
    EvidenceRule(EvidenceKind.STAGE_GATES, "every stage passes the gate of its own method"),
    EvidenceRule(EvidenceKind.HELDOUT_BEHAVIOUR, "final model on a broad held-out suite, paired with the base model"),
    EvidenceRule(EvidenceKind.NO_REGRESSION, "earlier domains, routing and safety not worse after later stages"),
    EvidenceRule(
        EvidenceKind.RELEASE_EVIDENCE,
        "a release gate that says ship, bound to the final run",
        card_fields=("release_evidence_path",),
    ),
)

RECIPE = Recipe(
    when_to_use="Several domains interfere when trained together, and each has enough rows and its own gate.",
    settings={},
    watch=("the gate of every stage", "forgetting of earlier domains", "stages skipped for too few rows"),
    steps=(
        "Gate every domain by itself first.",
        "Order stages from general to special.",
        "Re-run all earlier gates after each stage.",
    ),
    ladder=(
        Stage("domain_contract", "rows per domain, disjoint splits", "every domain has rows and a held-out suite"),
        Stage("stage_gates", "RunCard per stage", "each stage passes before the next one starts"),
        Stage("student_gate", "broad held-out report of the final student", "better than the base, no domain worse"),
    ),
    rules=(
        ("an earlier domain gets worse", "mix its rows into later stages"),
        ("a stage fails", "stop the cascade; a failed stage is not a starting point"),
    ),
    next=(
        (
            "train stage after stage",
            "bashgym cascade start --base-model <model-id> --dataset-path <rows.jsonl> --domain file_operations "
            "--domain bash_commands --wait",
        ),
        ("check a stage's card", "bashgym training runcard validate data/models/<run_id>/run_card.json --promotion"),
        ("distil one student from the stages", "bashgym cascade distill --student-model <model-id> --wait"),
        ("write the record as evidence", "bashgym cascade status --output cascade.json"),
    ),
)

METHOD = Method(
    name="cascade",
    title="Cascade and MOPD",
    summary="Domain after domain, each behind its own gate, then distilled into one student.",
    objective="that of each stage; the student minimises the divergence from its domain teachers, one after the other",
    direct=False,
    dataset=DATASET,
    metrics=(*OPTIMISATION, *EXECUTED),
    evidence=EVIDENCE,
    recipe=RECIPE,
    aliases=("mopd", "cascade-mopd"),
    workflow="`bashgym cascade start` runs one stage per domain, each with its own RunCard; `bashgym cascade distill` then "
    "teaches one student, a run per teacher",
)
