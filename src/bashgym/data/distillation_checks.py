"""What tokens show of teacher answers, before compute is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bashgym.data.types import Finding, Severity

if TYPE_CHECKING:
    from bashgym.data.preflight import DatasetQuery, TokenStats

CODES: dict[str, tuple[Severity, str]] = {}
"""Finding code -> (severity, mend)."""


def token_pass(query: DatasetQuery, model_dir: Path) -> tuple[TokenStats | None, int, list[Finding]]:
    """Figures, rows that training sees, and findings."""
    raise NotImplementedError
