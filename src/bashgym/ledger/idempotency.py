"""Idempotency keys: the same key and request get the first reply, whoever asks and however often."""

from __future__ import annotations

import json
from typing import Any

from bashgym.core.clock import epoch_s
from bashgym.core.errors import fail
from bashgym.ledger.db import Row, Tx

CLAIM_TIMEOUT_S = 60.0
"""After this a claim without a reply is taken to be that of a dead process."""


def stored(tx: Tx, key: str, digest: str) -> dict[str, Any] | None:
    """The reply that is stored for the key, or None; `ledger_identity_conflict` if the request was another."""
    row = _row(tx, key, digest)
    return None if row is None or row["response_json"] is None else json.loads(row["response_json"])


def claim(tx: Tx, key: str, digest: str) -> dict[str, Any] | None:
    """The stored reply, or None: then the caller owns the key and must `store` or `release` it.

    `request_in_progress` if another caller owns it now.
    """
    row, now = _row(tx, key, digest), epoch_s()
    if row is None:
        tx.insert("idempotency_keys", {"key": key, "request_digest": digest, "claimed_at": now})
        return None
    if row["response_json"] is not None:
        found: dict[str, Any] = json.loads(row["response_json"])
        return found
    if 0 <= now - row["claimed_at"] < CLAIM_TIMEOUT_S:
        raise fail("request_in_progress", f"the request with idempotency key {key} is being handled", hint="Ask again.")
    tx.update("idempotency_keys", {"claimed_at": now}, {"key": key})
    return None


def store(tx: Tx, key: str, digest: str, reply: Row) -> None:
    """Binds the reply to the key."""
    tx.run(
        "INSERT INTO idempotency_keys (key, request_digest, response_json, claimed_at) "
        "VALUES (:key, :digest, :reply, :now) ON CONFLICT (key) DO UPDATE SET response_json = excluded.response_json",
        key=key,
        digest=digest,
        reply=json.dumps(reply),
        now=epoch_s(),
    )


def release(tx: Tx, key: str) -> None:
    """Gives a claim without a reply back, after the request was refused."""
    tx.run("DELETE FROM idempotency_keys WHERE key = :key AND response_json IS NULL", key=key)


def _row(tx: Tx, key: str, digest: str) -> Row | None:
    row = tx.one("SELECT * FROM idempotency_keys WHERE key = :key", key=key)
    if row is not None and row["request_digest"] != digest:
        raise fail(
            "ledger_identity_conflict",
            f"idempotency key {key} was used for another request",
            hint="Use a new key for a new request.",
            fields=["idempotency_key"],
        )
    return row
