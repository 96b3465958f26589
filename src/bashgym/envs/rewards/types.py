"""What is judged and what comes back, for every reward mode."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class RewardStatus(StrEnum):
    """How the judging of one completion ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    """A time limit ended the completion's code: reward 0."""
    ERROR = "error"
    """The verifier gave no verdict, which is its own fault: the reward is None."""
    FORMAT_ERROR = "format_error"
    """The completion holds nothing that could be judged: reward 0."""
    TAMPERED = "tampered"
    """It changed what judges it: reward 0."""
    BLOCKED = "blocked"
    """Refused, or ended by a limit other than time: reward 0."""


class RewardItem(msgspec.Struct, frozen=True):
    """One completion of one dataset row."""

    prompt: str | list[dict[str, Any]]
    completion: str
    row: dict[str, Any]
    """The row as it stands in the file."""


class RewardResult(msgspec.Struct, frozen=True):
    """The verdict on one item."""

    reward: float | None
    """Finite; None where there is no verdict, never a zero in its place."""
    parts: dict[str, float]
    """Named parts of the reward, for the log."""
    status: RewardStatus
    detail: str = ""
    """Why, where the status does not say it."""
