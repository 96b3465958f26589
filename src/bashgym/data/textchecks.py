"""What the text of a row may hold that spoils training or must not leave the machine.

Owns: special tokens in content, unreplaced placeholders, things that look like secrets.
Covers: common key formats, PEM blocks, Authorization headers. Does not cover: passwords in prose, keys of unknown
shape; redaction is not done here. A value found is never shown, nor a part of it.
Only `odd` rows (see `readers`) come here; their signs let through what has any of these forms, save for keys without
16 letters and digits in a row.
"""

from __future__ import annotations

import re
from typing import Any

from bashgym.data.findings import Collector, shown
from bashgym.data.jsonfaults import strings

_SPECIAL = re.compile(r"<\|[A-Za-z0-9_ \-]{1,40}\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>")
_PLACEHOLDER = re.compile(r"\{\{\s*[A-Za-z_][\w.]{0,60}\s*\}\}")
_SECRETS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a private key (PEM)", re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----")),
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")),
    ("an AWS secret key", re.compile(r"(?i)aws.{0,20}secret.{0,20}[=:\"'\s][A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22,})")),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")),
    ("an API key", re.compile(r"\bsk-[A-Za-z0-9_\-]{20,}|\bAIza[A-Za-z0-9_\-]{35}|\bxox[abprs]-[A-Za-z0-9\-]{20,}")),
    (
        "an Authorization header",
        re.compile(r"(?i)authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+[\w.+/=\-]{8,}"),
    ),
    ("a JSON web token", re.compile(r"\beyJ[\w\-]{10,}\.eyJ[\w\-]{10,}\.[\w\-]{10,}")),
    (
        "an assigned key or password",
        re.compile(r"(?i)(?:api_?key|secret|password|token)[\"']?\s*[:=]\s*[\"']?[A-Za-z0-9]{16,}"),
    ),
)
_REDACT = "Remove the value, revoke it if it was real, and export again."


def check(number: int, value: dict[str, Any], collector: Collector, *, templated: bool = False) -> None:
    """Warnings about one row. `templated`: the rows are plain text, where special tokens belong."""
    text = "\n".join(strings(value))
    if not templated:
        for token in sorted(set(_SPECIAL.findall(text))):
            collector.warn(
                "special_token_in_content",
                f"the text holds the special token {shown(token)}, which a tokenizer may take for a real one",
                number,
                mend="Remove it from the content; the chat template writes the real ones.",
            )
    placeholder = _PLACEHOLDER.search(text)
    if placeholder:
        collector.warn(
            "unreplaced_placeholder",
            "unreplaced placeholders in double braces; the model would learn to write them",
            number,
            sample=placeholder[0],
            mend="Fill them in, or leave the rows out.",
        )
    for name, pattern in _SECRETS:
        if pattern.search(text):
            collector.warn("possible_secret", f"a text looks like it holds {name}", number, mend=_REDACT)
