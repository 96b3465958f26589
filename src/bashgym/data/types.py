"""The values that pass between readers, formats, contracts, tokenisation and preflight."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

MAX_ROWS_LISTED = 50
"""A finding lists at most this many rows; `count` has them all."""


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Blocks a start unless forced by its code."""
    WARNING = "warning"
    """Worth reading before spending compute."""
    INFO = "info"
    """What was done with the data, e.g. a column mapping."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that preflight has to say."""

    code: str
    severity: Severity
    message: str
    mend: str = ""
    """What the user can do about it."""
    field: str = ""
    """The dataset field, column or request field."""
    rows: tuple[int, ...] = ()
    """1-based rows concerned, the first `MAX_ROWS_LISTED`."""
    count: int = 0
    """How many rows in all; 0 where rows are not the unit."""


class Row(msgspec.Struct, frozen=True):
    """One JSON object of a dataset file."""

    number: int
    """1-based: the line in JSONL, the index in an array."""
    value: dict[str, Any]


class SftExample(msgspec.Struct):
    """One row in canonical form. Exactly one of `messages`, `prompt`+`completion`, `text` is set."""

    row: int
    messages: list[dict[str, Any]] | None = None
    """{role: system|user|assistant|tool, content: str|None, tool_calls?, tool_call_id?, name?}; arguments are objects."""
    prompt: list[dict[str, Any]] | str | None = None
    completion: list[dict[str, Any]] | str | None = None
    text: str | None = None
    tools: list[dict[str, Any]] | None = None
    weights: list[float] | None = None
    """Per message of `messages`: 0 keeps it out of the loss. None: the loss policy decides alone."""


class LossPolicy(StrEnum):
    """Which tokens are trained."""

    ASSISTANT = "assistant"
    """Assistant turns of `messages`: what the generation markers enclose, else the prefix difference."""
    COMPLETION = "completion"
    """The completion of prompt+completion rows, or the last assistant turn of `messages`."""
    ALL = "all"
    """Every token."""
    AUTO = "auto"
    """messages: ASSISTANT; prompt+completion: COMPLETION; text: ALL."""


class Encoded(msgspec.Struct):
    """One tokenised example, already truncated."""

    row: int
    input_ids: list[int]
    labels: list[int]
    """Same length; -100 where the token is not trained."""
    full_length: int
    """Tokens before truncation."""
    supervised_full: int
    """Trained tokens before truncation."""

    @property
    def supervised(self) -> int:
        """Trained tokens that are left."""
        return sum(1 for label in self.labels if label != -100)
