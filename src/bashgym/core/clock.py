"""Wall time for people. Order in records comes from sequence numbers, never from these strings."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def utc_now() -> str:
    """RFC 3339, UTC, milliseconds: `2026-12-01T02:10:59.123Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_s() -> float:
    """Seconds since 1970 as a float."""
    return time.time()
