"""The RunCard as a document: its fields, reading and writing. Rules are elsewhere."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object
from bashgym.evidence.bundle import EvidenceEntry
from bashgym.evidence.findings import Book, Gate

SCHEMA = "bashgym.run_card.v1"
DECISIONS = ("pending", "hold", "promote", "reject", "route_narrowly")
PROMOTING = ("promote", "route_narrowly")
"""Decisions that put the model in front of users: the promotion rules apply to them without being asked."""
CLAIMS = {
    "local_smoke": "the path works on this machine; nothing is said about quality",
    "narrow_routing": "the model is better on the task family that was measured",
    "broad_public_claim": "the model is better in general, public benchmarks included",
}
"""Claim tier -> what it claims, in rising order."""
TIERS = tuple(CLAIMS)


class RunCard(msgspec.Struct, kw_only=True):
    """`bashgym.run_card.v1`. An empty string is a field that was not given."""

    schema_version: str = SCHEMA
    run_id: str = ""
    training_method: str = ""
    base_model: str = ""
    compute_target_id: str = ""
    training_plan_path: str = ""
    source_manifest_path: str = ""
    preference_pairs_path: str = ""
    reward_examples_path: str = ""
    reward_eval_path: str = ""
    session_distillation_records_path: str = ""
    session_distillation_metrics_path: str = ""
    session_distillation_reader_model: str = ""
    session_distillation_confidence_threshold: float | None = None
    session_distillation_hint_policy: str = ""
    session_distillation_mask_policy: str = ""
    session_distillation_target_token_count: int | None = None
    dataset_card_path: str = ""
    backend: str = ""
    git_commit: str = ""
    """Of the code that trained, from the run's manifest."""
    branch: str = ""
    metrics_path: str = ""
    release_evidence_path: str = ""
    smoke_bundle_path: str = ""
    claim_tier: str = TIERS[0]
    thresholds: dict[str, float] = {}
    outputs: list[str] = []
    known_limitations: list[str] = []
    decision: str = DECISIONS[0]
    created_at: str = ""
    evidence: list[EvidenceEntry] = []
    run: dict[str, Any] = {}
    """Measured identity of the run, see `binding.bind`."""
    code: dict[str, Any] = {}
    """What trained, from the run's manifest."""
    card_digest: str = ""
    """sha256 of the canonical JSON of all other fields."""


PATH_FIELDS: dict[str, str] = {
    "training_plan": "training_plan_path",
    "source_manifest": "source_manifest_path",
    "metrics": "metrics_path",
    "release_evidence": "release_evidence_path",
    "smoke_bundle": "smoke_bundle_path",
    "preference_pairs": "preference_pairs_path",
    "reward_examples": "reward_examples_path",
    "reward_eval": "reward_eval_path",
    "dataset_card": "dataset_card_path",
    "session_records": "session_distillation_records_path",
    "masked_token_metrics": "session_distillation_metrics_path",
}
"""Evidence kind -> the card field that holds its path. Other kinds have an entry only."""


def card_digest(card: RunCard) -> str:
    """The digest that `card_digest` must hold."""
    body = msgspec.to_builtins(card)
    body.pop("card_digest")
    return digest_json(body)


def write_card(path: Path, card: RunCard) -> None:
    """Seals the card and writes it whole."""
    card.card_digest = card_digest(card)
    atomic_write_json(path, msgspec.to_builtins(card))


def read_card(path: Path, book: Book) -> RunCard:
    """The card at `path`. Unknown and ill-typed fields become findings; another kind of file is `run_card_invalid`."""
    try:
        raw = read_object(path)
    except BashGymError as error:
        if error.code == "file_missing":
            raise fail("file_missing", error.message, "`bashgym training runcard create` writes a card.") from error
        raise fail("run_card_invalid", error.message) from error
    if raw.get("schema_version") != SCHEMA:
        raise fail(
            "run_card_invalid",
            f"{path} has schema_version {str(raw.get('schema_version'))[:60]!r}, not {SCHEMA!r}",
            hint="`bashgym training runcard create` writes a card.",
            fields=["schema_version"],
        )
    known = {field.name: field.type for field in msgspec.structs.fields(RunCard)}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            book.fail(Gate.CARD, "run_card_unknown_field", f"a RunCard has no field {name[:80]!r}{hint}", name[:80])
            continue
        try:
            values[name] = msgspec.convert(value, known[name])
        except msgspec.ValidationError as error:
            book.fail(Gate.CARD, "run_card_invalid_field", f"{name}: {error}", name)
    card = RunCard(**values)
    if not book.blocked() and card.card_digest != card_digest(card):
        book.fail(
            Gate.CARD,
            "run_card_digest_mismatch",
            "the card was edited after it was written, or was not written by this program; create it again",
            "card_digest",
        )
    return card
