"""Which API a client may talk to, and how a request may look before it leaves.

Covers: credentials in URLs, plain http beyond loopback, path tricks, credential-like query keys.
Does not cover: what the server does with the request; that is the server's guard.
"""

from __future__ import annotations

import ipaddress
import re
from itertools import pairwise
from urllib.parse import unquote, urlsplit

from bashgym.core.errors import fail

_CONTROL = re.compile(r"[\x00-\x20\x7f\\]")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset({
    "apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "passphrase", "passwd",
    "password", "pwd", "secret", "secrets",
})  # fmt: skip
_KEY_OF = frozenset({"api", "access", "private", "secret", "signing"})
_COUNTING = frozenset({
    "max", "min", "num", "n", "total", "count", "new", "limit", "budget", "per", "avg", "mean", "completion", "prompt",
    "input", "output",
})  # fmt: skip


def check_base(base: str) -> str:
    """The base as `scheme://host[:port]/api`; `api_base_refused` with the rule that it breaks."""
    if _CONTROL.search(base):
        raise _refuse("it has white space, a backslash or a control character")
    try:
        parts = urlsplit(base)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _refuse(f"its address is malformed ({error})") from error
    if parts.scheme not in ("http", "https"):
        raise _refuse("its scheme is not http or https")
    if parts.username is not None or parts.password is not None:
        raise _refuse("it carries a user name or password", "Give the token in BASHGYM_API_TOKEN.")
    if not host:
        raise _refuse("it names no host")
    if "?" in base or "#" in base:
        raise _refuse("it has a query or a fragment")
    if parts.path.rstrip("/") not in ("", "/api"):
        raise _refuse(f"its path is {parts.path}; only /api is allowed")
    if parts.scheme == "http" and not is_loopback(host):
        raise _refuse(f"plain http to {host}, which is not this machine", "Use https for a remote server.")
    return f"{parts.scheme}://{parts.netloc}/api"


def is_loopback(host: str) -> bool:
    """True for `localhost` and loopback addresses; names are never looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_path(path: str) -> str:
    """The logical path if it is below `/api/` and has no tricks; `api_path_refused` otherwise."""
    plain = unquote(path)
    if not path.startswith("/api/"):
        raise fail("api_path_refused", f"{path[:200]!r} does not begin with /api/", "Example: /api/health")
    if "?" in path or "#" in path:
        raise fail("api_path_refused", "the path has a query or fragment", "Use --query KEY=VALUE.")
    if _CONTROL.search(plain) or "%" in plain:
        raise fail("api_path_refused", "the path has white space, a backslash or a doubly encoded character")
    segments = plain.split("/")[2:]
    if any(segment in (".", "..") for segment in segments) or "" in segments[:-1]:
        raise fail("api_path_refused", f"{path[:200]!r} has an empty or dot segment")
    return path


def looks_like_credential(key: str) -> bool:
    """True for keys that name a secret (`api_key`, `authToken`); counts such as `max_tokens` are none."""
    words = [word.lower() for word in _WORDS.findall(key)]
    if any(word in _SECRET_WORDS for word in words):
        return True
    if any(a in _KEY_OF and b in ("key", "keys") for a, b in pairwise(words)):
        return True
    return any(word in ("token", "tokens") for word in words) and not _COUNTING.intersection(words)


def check_query(pairs: list[str]) -> dict[str, list[str]]:
    """`KEY=VALUE` strings as a query; `query_credential` for a secret, `usage` for another form."""
    query: dict[str, list[str]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise fail("usage", f"--query needs KEY=VALUE, not {pair[:80]!r}")
        if looks_like_credential(key):
            raise fail(
                "query_credential",
                f"the query key {key[:80]!r} looks like a credential, and URLs end in logs",
                "Give the token in BASHGYM_API_TOKEN.",
                [key[:80]],
            )
        query.setdefault(key, []).append(value)
    return query


def _refuse(why: str, hint: str = "") -> Exception:
    # The base itself is not repeated: it may hold the very credential that is refused.
    return fail("api_base_refused", f"the API base is refused: {why}", hint, ["api_base"])
