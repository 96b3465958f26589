"""What may enter a JSON column: no secrets by key or by value, at most 128 KiB, at most 64 levels deep.

Covers: the listed key names and endings, common token shapes, private keys, credentials in URLs, and long random
strings. Does not cover: secrets that look like words, or that are split over several values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from bashgym.core.canonical import canonical_json
from bashgym.core.errors import fail

MAX_BYTES = 131_072
MAX_DEPTH = 64
REDACTED = "[redacted]"

_KEYS = frozenset(
    {
        *("access_token", "api_key", "authorization", "client_secret", "credential", "credentials", "dataset_rows"),
        *("examples", "password", "private_key", "raw_data", "raw_dataset", "refresh_token", "secret", "token"),
    }
)
_ENDINGS = ("_password", "_api_key", "_secret", "_private_key", "_access_key", "_credentials", "_token")
_MODEL_TOKENS = re.compile(
    r"(eos|bos|pad|unk|sep|cls|mask|stop|end|start|image|audio|video|special|tool|think|system|user|assistant|added"
    r"|per|last|first|next|max|min|num|new|reward|value|response|prompt|completion)_token"
)
"""`<word>_token` keys of tokenizers, which hold no secret."""

_VALUES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b(?:sk|pk|rk)-(?:[A-Za-z]+-)*[A-Za-z0-9_-]{20,}"
    r"|\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|\bhf_[A-Za-z0-9]{30,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{35}|\bxox[abeprs]-[A-Za-z0-9-]{10,}"
    r"|\bnpm_[A-Za-z0-9]{36}|\bpypi-[A-Za-z0-9_-]{40,}|\bwandb_v1_[A-Za-z0-9_]{20,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"
)
_RANDOM = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+]{40,}={0,2}(?![A-Za-z0-9+/])")


def is_secret_key(key: str) -> bool:
    """True for a name that announces a secret or raw data."""
    name = key.lower().replace("-", "_")
    return name in _KEYS or (name.endswith(_ENDINGS) and not _MODEL_TOKENS.fullmatch(name))


def encode(value: object, where: str) -> str:
    """Canonical JSON text of a payload from outside; `ledger_payload_unsafe` names the offending place."""
    for path, key, leaf in _walk(value, where):
        if is_secret_key(key):
            raise _unsafe(f"{path} has the name of a secret or of raw data", path)
        if isinstance(leaf, str) and scrub(leaf) != leaf:
            raise _unsafe(f"{path} holds what looks like a secret", path)
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise _unsafe(f"{path} is {leaf}; JSON numbers are finite", path)
    return _sized(value, where)


def encode_redacted(value: object, where: str) -> str:
    """Canonical JSON text of our own records: secrets are replaced, what is not finite becomes a string."""
    for _ in _walk(value, where):
        pass
    return _sized(redact(value), where)


def redact(value: object) -> object:
    """A copy with secret values replaced by `[redacted]`. Numbers and booleans are never secret."""
    if isinstance(value, dict):
        return {
            str(k): REDACTED if is_secret_key(str(k)) and isinstance(v, str | list | dict) else redact(v)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return scrub(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def scrub(text: str) -> str:
    """`text` with every secret-looking piece replaced by `[redacted]`."""
    text = _VALUES.sub(REDACTED, text)
    return _RANDOM.sub(lambda match: REDACTED if _looks_random(match[0]) else match[0], text)


def _looks_random(text: str) -> bool:
    # Hex digests have one case and 4 bits a character at most; keys in base64 have both cases and digits.
    mixed = any(c.islower() for c in text) and any(c.isupper() for c in text) and any(c.isdigit() for c in text)
    if not mixed:
        return False
    counts, n = Counter(text).values(), len(text)
    return -sum(c / n * math.log2(c / n) for c in counts) > 4.2


def _walk(value: object, where: str) -> Iterator[tuple[str, str, object]]:
    """(path, key, value) of everything inside, without recursion; refuses depth over MAX_DEPTH."""
    stack: list[tuple[str, str, object, int]] = [(where, "", value, 0)]
    while stack:
        path, key, item, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise _unsafe(f"{where} is nested more than {MAX_DEPTH} levels deep", where)
        yield path, key, item
        if isinstance(item, dict):
            stack.extend((f"{path}.{k}", str(k), v, depth + 1) for k, v in item.items())
        elif isinstance(item, list | tuple):
            stack.extend((f"{path}[{i}]", "", v, depth + 1) for i, v in enumerate(item))


def _sized(value: object, where: str) -> str:
    try:
        data = canonical_json(value)
    except (TypeError, ValueError) as error:
        raise _unsafe(f"{where} is not JSON: {error}", where) from error
    if len(data) > MAX_BYTES:
        raise _unsafe(f"{where} has {len(data)} bytes; the limit is {MAX_BYTES}", where)
    return data.decode()


def _unsafe(message: str, path: str) -> Exception:
    return fail(
        "ledger_payload_unsafe",
        message[:500],
        hint="Put secrets in the environment and data in files; the ledger keeps names and digests.",
        fields=[path[:200]],
    )
