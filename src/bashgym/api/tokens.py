"""Tokens of the HTTP API: made here, shown once, kept as sha256.

Covers: a stolen token file does not open the server. Does not cover: a process of the same user, which can add one.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import tempfile
from pathlib import Path

from bashgym.core.canonical import digest_bytes
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object, writable_dir

PREFIX = "bgapi."


class TokenStore:
    """`BASHGYM_DIR/tokens.json`, mode 0600."""

    def __init__(self, home: Path) -> None:
        self.path = home / "tokens.json"

    def create(self) -> str:
        """Makes a token of 256 random bits, keeps its digest and returns it."""
        token = PREFIX + secrets.token_urlsafe(32)
        entries = [*self._entries(), {"sha256": digest_bytes(token.encode()), "created_at": utc_now()}]
        self._write({"schema_version": "bashgym.tokens.v1", "tokens": entries})
        return token

    def exists(self) -> bool:
        """True if there is any token."""
        return bool(self._entries())

    def verify(self, token: str) -> bool:
        """True if `token` was made here. Compares digests in constant time."""
        given = digest_bytes(token.encode("utf-8", "replace"))
        found = False
        for entry in self._entries():
            found |= hmac.compare_digest(given, entry["sha256"])
        return found

    def _entries(self) -> list[dict[str, str]]:
        try:
            entries = read_object(self.path).get("tokens")
        except BashGymError as error:
            if error.code == "file_missing":
                return []
            raise
        found = entries if isinstance(entries, list) else []
        return [entry for entry in found if isinstance(entry, dict) and isinstance(entry.get("sha256"), str)]

    def _write(self, value: object) -> None:
        """Whole or not at all, and never readable by others, not even for a moment."""
        writable_dir(self.path.parent)
        handle, name = tempfile.mkstemp(prefix=".tokens.", dir=self.path.parent)
        try:
            with os.fdopen(handle, "w") as out:
                json.dump(value, out, indent=2)
                out.flush()
                os.fsync(out.fileno())
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
