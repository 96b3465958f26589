"""Secrets out of session text before anything is written.

Covers: values of assignments and JSON keys that are named like a secret, Authorization headers, whole private-key
blocks, credentials in URLs, and the token shapes of `ledger.safe`. Does not cover: secrets that look like words, that
are split over several lines, or personal data.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from bashgym.data.sessions.steps import Session
from bashgym.ledger.safe import REDACTED
from bashgym.ledger.safe import scrub as scrub_shapes

_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "private key",
        re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    ),
    (
        "authorization",
        re.compile(r"(?i)(?<=authorization)(\\?[\"']?\s*[:=]\s*)(?:(?:bearer|basic|token)\s+)?[^\s\"'\\,;]+"),
    ),
    ("bearer", re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}")),
    (
        "password",
        re.compile(r"(?i)((?:\b|_)(?:password|passwd|passphrase)\\?[\"']?\s*[:=]\s*\\?[\"']?)[^\s\"'\\&;,]+"),
    ),
    ("password", re.compile(r"(?i)(\s--?(?:password|passwd|token|api-?key|secret)[ =])[^\s\"'-][^\s\"']*")),
    (
        "key",
        re.compile(
            r"(?i)((?:api[_-]?key|secret(?:[_-]?(?:access)?[_-]?key)?|access[_-]?key(?:[_-]?id)?|client[_-]?secret"
            r"|(?:access|refresh|auth|api|id|session|hf|github|gitlab|npm|bot)[_-]?token|\btoken)"
            r"\\?[\"']?\s*[:=]\s*\\?[\"']?)[^\s\"'\\&;,(){}\[\]]{6,}"
        ),
    ),
    ("url password", re.compile(r"(?<=://)()[^\s/:@]+:[^\s/@]+(?=@)")),
)


def scrub(text: str, found: Counter[str]) -> str:
    """`text` with its secrets replaced by `[redacted]`; `found` counts them by kind."""
    for kind, pattern in _RULES:
        text, count = pattern.subn(_keep_name, text)
        found[kind] += count
    clean = scrub_shapes(text)
    found["token shape"] += clean.count(REDACTED) - text.count(REDACTED)
    return clean


def _keep_name(match: re.Match[str]) -> str:
    return (match[1] if match.re.groups else "") + REDACTED


def scrub_session(session: Session, found: Counter[str]) -> Session:
    """The session with every text in it scrubbed, names and ids included."""
    steps = [
        msgspec.structs.replace(
            step,
            action=scrub(step.action, found),
            output=scrub(step.output, found),
            intent=scrub(step.intent, found),
        )
        for step in session.steps
    ]
    task, repo, session_id = (scrub(text, found) for text in (session.task, session.repo, session.session_id))
    return msgspec.structs.replace(session, steps=steps, task=task, repo=repo, session_id=session_id)
