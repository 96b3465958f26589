"""A replay without secrets and with shortened output, to hand on.

Covers: what `data.sessions.redact` covers, in every text of a record. Does not cover: secrets that look like words. Sampled
tokens go where their text, or the text before them, had to change: they would spell the secret, or follow another prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.data.replay_records import BehaviorPolicy, ReplayRecord, parse_record
from bashgym.data.sessions.redact import scrub

_OUTPUTS = frozenset({"observations", "verifier_observation", "next_state", "state"})
"""Fields that hold what commands showed; they are shortened, as are tool messages and observation segments."""
_KEPT = frozenset({"schema_version", "batch_id", "environment_id", "role", "verifier_status", "response_logprobs"})
"""Identity and structure stay; sampled tokens are handled by `scrub_records`."""


def scrub_records(records: Sequence[ReplayRecord], max_output_chars: int) -> tuple[list[ReplayRecord], dict[str, Any]]:
    """(scrubbed copies, report). `invalid_field` for a limit below 1."""
    if max_output_chars < 1:
        raise fail("invalid_field", "max_output_chars must be at least 1", fields=["max_output_chars"])
    found: Counter[str] = Counter()
    made, changed, dropped = [], 0, 0
    for record in records:
        before = msgspec.to_builtins(record)
        after = _Scrubber(found, max_output_chars).value(before)
        spoiled = after["trajectory"]["messages"] != before["trajectory"]["messages"] or _spells_secret(record)
        changed += after != before or spoiled
        if spoiled and record.behavior_policy.response_logprobs:
            dropped += 1
            kept = {name: after["behavior_policy"][name] for name in ("model", "base_url", "temperature")}
            after["behavior_policy"] = msgspec.to_builtins(BehaviorPolicy(**kept))
            after["train_policy"] = None
            after["optimizer"] |= {
                "behavior_logprobs_ready": False,
                "train_logprobs_ready": False,
                "train_logprob_replay_required": True,
                "train_logprob_tokens": 0,
            }
        made.append(parse_record(after))
    secrets = {kind: count for kind, count in found.items() if count}
    return made, {"records": len(made), "records_changed": changed, "logprobs_dropped": dropped, "secrets": secrets}


def _spells_secret(record: ReplayRecord) -> bool:
    return any(
        scrub(text, Counter()) != text
        for text in ("".join(turn.tokens) for turn in record.behavior_policy.response_logprobs)
    )


class _Scrubber:
    """Walks one record. Depth is bounded by the JSON decoder that read it."""

    def __init__(self, found: Counter[str], limit: int) -> None:
        self._found, self._limit = found, limit

    def value(self, value: Any, *, output: bool = False) -> Any:
        """A copy with every text scrubbed, outputs shortened."""
        if isinstance(value, str):
            text = scrub(value, self._found)
            if output and len(text) > self._limit:
                return f"{text[: self._limit]}\n[{len(text) - self._limit} characters left out]"
            return text
        if isinstance(value, list):
            return [self.value(item, output=output) for item in value]
        if isinstance(value, dict):
            shown = value.get("role") in ("tool", "observation")
            return {
                name: item
                if name in _KEPT
                else self.value(item, output=output or name in _OUTPUTS or (shown and name in ("content", "text")))
                for name, item in value.items()
            }
        return value
