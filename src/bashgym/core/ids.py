"""Identifiers: how they are made and what one may look like."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail

IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,159}")
"""Ids that users give: at most 160 characters, alphanumeric first."""

SHA256 = re.compile(r"[0-9a-f]{64}")


def new_run_id() -> str:
    """`run_YYYYMMDD_HHMMSS_<8 hex>` in UTC."""
    return f"run_{datetime.now(UTC):%Y%m%d_%H%M%S}_{secrets.token_hex(4)}"


def stable_id(prefix: str, *parts: object) -> str:
    """`<prefix>_<24 hex>`, the same for the same parts."""
    return f"{prefix}_{digest_json([prefix, *parts])[:24]}"


def check_identifier(value: object, field: str) -> str:
    """`value` if it is an identifier; otherwise `invalid_field` naming `field`."""
    if isinstance(value, str) and IDENTIFIER.fullmatch(value) and ".." not in value:
        return value
    raise fail(
        "invalid_field",
        f"{field} is not an identifier: {str(value)[:80]!r}",
        hint="Use at most 160 of A-Z a-z 0-9 _ . : - and begin with a letter or digit.",
        fields=[field],
    )
