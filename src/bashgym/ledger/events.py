"""The event log: one integer cursor without gaps, and a sha256 chain over everything that was appended.

`hash = sha256([prev_hash, cursor, event])`. A changed, removed or reordered event breaks the chain; a removed tail
shows against the counters. It does not stop someone who rewrites the whole database.
"""

from __future__ import annotations

import json
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.ids import stable_id
from bashgym.ledger.db import Database, Row, Tx
from bashgym.ledger.entities import count

FIRST = "0" * 64
_IDENTITY = [
    "event_type",
    "source_system",
    "source_event_id",
    "correlation_id",
    "experiment_id",
    "run_id",
    "attempt_id",
    "payload",
]
_HASHED = ("event_id", "workspace_id", "project_id", *_IDENTITY, "created_at")
CURATION_POLICY = {
    "store_in_sink": ["project, experiment and run ids", "decisions and their evidence ids", "evaluation summaries"],
    "keep_in_bashgym": ["metric points", "artifacts", "logs", "dataset rows"],
}


def append(tx: Tx, event: Row, *, once: bool = False) -> tuple[Row, bool]:
    """Appends an event whose payload is canonical JSON text; returns (row, replayed).

    The same source event again is a replay if its identity is the same, or, with `once`, whatever it says.
    """
    event = {"experiment_id": None, "run_id": None, "attempt_id": None, **event}
    source = {name: event[name] for name in ("workspace_id", "source_system", "source_event_id")}
    event["event_id"] = stable_id("event", *source.values())
    event["identity_digest"] = digest_json([event["project_id"], *(event[name] for name in _IDENTITY)])
    old = tx.one("SELECT * FROM events WHERE event_id = :event_id", event_id=event["event_id"])
    if old is not None:
        if old["identity_digest"] != event["identity_digest"] and not once:
            raise fail(
                "ledger_identity_conflict",
                f"event {event['source_event_id']} of {event['source_system']} exists with other content",
                fields=[name for name in ("project_id", *_IDENTITY) if old[name] != event[name]],
            )
        return old, True
    last = tx.one("SELECT cursor, hash FROM events ORDER BY cursor DESC LIMIT 1") or {"cursor": 0, "hash": FIRST}
    event |= {"created_at": event.get("created_at") or utc_now()}
    event |= {"cursor": int(last["cursor"]) + 1, "prev_hash": last["hash"]}
    event["hash"] = _hash(event)
    count(tx, event, "event")
    tx.insert("events", event)
    return event, False


def _hash(event: Row) -> str:
    return digest_json([event["prev_hash"], event["cursor"], {name: event[name] for name in _HASHED}])


def record(row: Row) -> dict[str, Any]:
    """An event as users see it."""
    return {**row, "payload": json.loads(row["payload"])}


def page(tx: Tx, after_cursor: int, limit: int, scope: Row) -> dict[str, Any]:
    """experiment_ledger_sync.v1: events with a cursor over `after_cursor`, in order, at least once.

    `scope` has workspace_id and project_id, or nothing for the whole log. Store `next_cursor` after your own write.
    """
    where = "".join(f"{name} = :{name} AND " for name in scope)
    rows = tx.all(
        f"SELECT * FROM events WHERE {where}cursor > :after_cursor ORDER BY cursor LIMIT :n",  # noqa: S608
        **scope,
        after_cursor=after_cursor,
        n=limit + 1,
    )
    shown = rows[:limit]
    return {
        "schema_version": "experiment_ledger_sync.v1",
        "after_cursor": after_cursor,
        "next_cursor": shown[-1]["cursor"] if shown else after_cursor,
        "has_more": len(rows) > limit,
        "events": [record(row) for row in shown],
        "curation_policy": CURATION_POLICY,
    }


def verify_chain(database: Database) -> dict[str, Any]:
    """Recomputes every hash: {ok, events, head, first_bad_cursor, problem}. Reads in pages; memory is bounded."""
    cursor, head = 0, FIRST
    with database.read() as tx:
        while rows := tx.all("SELECT * FROM events WHERE cursor > :c ORDER BY cursor LIMIT 1000", c=cursor):
            for row in rows:
                if row["cursor"] != cursor + 1:
                    return _verdict(cursor, head, f"event {cursor + 1} is missing", cursor + 1)
                if row["prev_hash"] != head:
                    return _verdict(cursor, head, "the event does not follow the one before it", row["cursor"])
                if _hash(row) != row["hash"]:
                    return _verdict(cursor, head, "the event was changed after it was written", row["cursor"])
                cursor, head = row["cursor"], row["hash"]
        counted = tx.one("SELECT COALESCE(SUM(n), 0) AS n FROM counters WHERE name = 'event'")
    appended = int(counted["n"]) if counted else 0
    if appended != cursor:
        return _verdict(cursor, head, f"{appended} events were appended, {cursor} are there", cursor + 1)
    return _verdict(cursor, head, "", None)


def _verdict(events: int, head: str, problem: str, cursor: int | None) -> dict[str, Any]:
    return {"ok": not problem, "events": events, "head": head, "first_bad_cursor": cursor, "problem": problem}
