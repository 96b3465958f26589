"""The shape of a training method: plain frozen data that every surface reads.

Owns the dataclasses only. `common.py` and `metrics.py` hold shared values, one file per method holds its own,
`registry.py` collects them, `request.py` checks values against `Field`s. Import-light: standard library only, and
no generated `__eq__` or `__repr__`, because writing those costs every command a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """JSON type of a field's value."""

    STR = "str"
    INT = "int"
    FLOAT = "float"
    """An integer is accepted and stored as a float; a bool is neither."""
    BOOL = "bool"
    LIST = "list"
    """A list of strings."""
    OBJECT = "object"
    """A JSON object with string keys."""


@dataclass(frozen=True, eq=False, repr=False)
class Field:
    """One field of a training request."""

    name: str
    kind: Kind
    default: object
    help: str
    nullable: bool = False
    minimum: float | None = None
    maximum: float | None = None
    """Bounds are inclusive, but `minimum` is exclusive where `open_minimum`, `maximum` where `open_maximum`."""
    open_minimum: bool = False
    open_maximum: bool = False
    choices: tuple[str, ...] = ()
    """Allowed values of a string, or of each item of a list."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of further allowed values of a string with choices, e.g. `python:`."""
    value_aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of a choice; the stored value is the choice."""
    max_length: int = 4096
    """Most characters of a string, items of a list or keys of an object."""
    identifier: bool = False
    """A string that must be an identifier (`core.ids.check_identifier`)."""
    keys: tuple[str, ...] = ()
    """The only keys that an object may have; empty for any. Their values are strings or null."""

    def allowed(self) -> str:
        """What a value may be, for messages and tables: `int 1..100`, `one of a, b`, `float in (0, 1] or null`."""
        null = " or null" if self.nullable else ""
        if self.choices:
            free = tuple(f"{prefix}..." for prefix in self.prefixes)
            return ("a list of " if self.kind is Kind.LIST else "one of ") + ", ".join(self.choices + free) + null
        if self.keys:
            return f"an object with {', '.join(self.keys)}{null}"
        if self.identifier:
            return f"an identifier{null}"
        if self.minimum is None and self.maximum is None:
            return {Kind.LIST: "a list of str", Kind.OBJECT: "an object"}.get(self.kind, str(self.kind)) + null
        low = "(" if self.open_minimum or self.minimum is None else "["
        high = ")" if self.open_maximum or self.maximum is None else "]"
        least = "-inf" if self.minimum is None else f"{self.minimum:.10g}"
        most = "inf" if self.maximum is None else f"{self.maximum:.10g}"
        return f"{self.kind} in {low}{least}, {most}{high}{null}"


class Role(StrEnum):
    """What a metric is for."""

    OBJECTIVE = "objective"
    """What training optimises; says that it learns, not that it got better."""
    HEALTH = "health"
    """Says whether the optimisation is stable."""
    DIAGNOSTIC = "diagnostic"
    """Explains behaviour; never a reason to promote by itself."""
    EVALUATION = "evaluation"
    """Measured on data that training did not see."""
    SYSTEM = "system"
    """Speed and memory."""


@dataclass(frozen=True, eq=False, repr=False)
class Metric:
    """One number that a method reports."""

    name: str
    """Canonical name, as analysis and the ledger use it."""
    role: Role
    means: str
    watch_for: str
    action: str
    logged_as: str = ""
    """The name in metrics.jsonl where it is not `name`."""
    aliases: tuple[str, ...] = ()
    """Further spellings seen in logs of other tools; the camelCase form is understood without being listed."""
    warn_above: float | None = None
    warn_below: float | None = None
    block_above: float | None = None
    block_below: float | None = None
    """Starter thresholds on the last value; `block` outranks `warn`."""

    @property
    def key(self) -> str:
        """The name in metrics.jsonl."""
        return self.logged_as or self.name


@dataclass(frozen=True, eq=False, repr=False)
class DatasetContract:
    """What one row of the training file must hold."""

    format: str
    """Name of the contract: sft, dpo, grpo, distillation, session_distillation, reward, replay, none."""
    row: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    example: Mapping[str, object] = field(default_factory=dict)


class EvidenceKind(StrEnum):
    """Machine-readable names of evidence; `evidence/` decides whether a file satisfies one."""

    METRICS = "metrics"
    RELEASE_EVIDENCE = "release_evidence"
    HELDOUT_BEHAVIOUR = "heldout_behaviour"
    ENVIRONMENT_PASSK = "environment_passk"
    HOLDOUT_GATE = "holdout_gate"
    FORMAT_VALIDITY = "format_validity"
    CANARIES = "canaries"
    ZERO_STD_DIAGNOSTICS = "zero_std_diagnostics"
    PREFERENCE_PAIRS = "preference_pairs"
    HELDOUT_PREFERENCE = "heldout_preference"
    NO_REGRESSION = "no_regression"
    BASE_AND_TEACHER_COMPARISON = "base_and_teacher_comparison"
    SESSION_RECORDS = "session_records"
    MASKED_TOKEN_METRICS = "masked_token_metrics"
    HELDOUT_RECOVERY = "heldout_recovery"
    REPLAY = "replay"
    REPLAY_ENRICHMENT = "replay_enrichment"
    SMOKE_BUNDLE = "smoke_bundle"
    PASSK_BEFORE_AFTER = "passk_before_after"
    SAFETY_COMPARISON = "safety_comparison"
    WORLD_MODEL_QUALITY = "world_model_quality"
    CORRELATED_PASSK = "correlated_passk"
    REWARD_EXAMPLES = "reward_examples"
    REWARD_EVAL = "reward_eval"
    SELECTED_VS_RANDOM = "selected_vs_random"
    STAGE_RUN_CARDS = "stage_run_cards"
    STAGE_GATES = "stage_gates"
    FROZEN_SPLIT = "frozen_split"
    RETRIEVAL_METRICS = "retrieval_metrics"
    HARD_SLICES = "hard_slices"
    LATENCY_FOOTPRINT = "latency_footprint"
    CONTAMINATION_CONTROL = "contamination_control"


@dataclass(frozen=True, eq=False, repr=False)
class EvidenceRule:
    """One piece of evidence that a method asks for."""

    kind: EvidenceKind
    means: str
    required_for_promotion: bool = True
    terminal_only: bool = False
    """Required only if the model acts in a terminal or another executed environment."""
    card_fields: tuple[str, ...] = ()
    """The RunCard fields that must be set for it."""


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """One rung of the readiness ladder."""

    stage: str
    evidence: str
    promote_when: str


@dataclass(frozen=True, eq=False, repr=False)
class Recipe:
    """Where to start, and what to change when. Later mappings win: settings, by_hardware, by_data."""

    when_to_use: str
    settings: Mapping[str, object]
    by_hardware: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    by_data: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    adjust_when: Mapping[str, str] = field(default_factory=dict)
    """Setting -> when to move it and which way."""
    watch: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    """Recommended next steps, in order."""
    ladder: tuple[Stage, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    """(signal, action)."""
    docs: tuple[str, ...] = ("strategy", "metrics", "glossary")
    next: tuple[tuple[str, str], ...] = ()
    """(reason, command)."""


@dataclass(frozen=True, eq=False, repr=False)
class Method:
    """Everything about one training method, said once."""

    name: str
    title: str
    summary: str
    objective: str
    """The loss or the rule that is optimised."""
    direct: bool
    """Whether `training start` takes it; the others have a workflow of their own."""
    dataset: DatasetContract
    metrics: tuple[Metric, ...]
    evidence: tuple[EvidenceRule, ...]
    recipe: Recipe
    aliases: tuple[str, ...] = ()
    own_fields: tuple[Field, ...] = ()
    """Fields beyond the common ones; a common field listed here again replaces it (other default or choices)."""
    profile_field: str = ""
    """The own field that selects a profile."""
    profiles: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Profile name -> values of the fields that the request leaves open (absent or null)."""
    builder: str | None = None
    """`module:function` that the training process calls; None where this version has no trainer."""
    must_emit: tuple[str, ...] = ()
    """Names in metrics.jsonl without which a finished run is incomplete."""
    workflow: str = ""
    """For a method that is not direct: what to do instead of `training start`."""
