"""A model endpoint: where it is, who may be talked to, and what of it may be written down.

Covers: plain http beyond this machine and private networks, credentials in addresses, link-local addresses (cloud
metadata), keys that would break out of their header. Does not cover: what a name resolves to; names are not looked up.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import BashGymError, fail

PROVIDERS = ("openai", "vllm", "ollama", "openai-compatible", "local")
_CONTROL = re.compile(r"[\x00-\x20\x7f\\]")
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
_NUMERIC = re.compile(r"(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+))*", re.IGNORECASE)
"""Spellings of an IPv4 address that resolvers accept and `ipaddress` does not."""
_PRIVATE_NAMES = (".localhost", ".local", ".lan", ".internal", ".home.arpa")


class EndpointSpec(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An OpenAI-compatible endpoint as a request names it."""

    base_url: str
    """`https://host[:port][/path]`; `/chat/completions` is appended. Without a path, `/v1` is meant."""
    provider: str = "openai"
    """One of PROVIDERS."""
    model: str = ""
    """Model name on the endpoint; empty takes the only one that it lists."""
    api_key: str | None = None
    """Goes into the Authorization header and nowhere else."""

    def __repr__(self) -> str:
        return f"EndpointSpec(base_url={self.base_url!r}, provider={self.provider!r}, model={self.model!r})"


@dataclass(frozen=True)
class Address:
    """A checked base URL."""

    base: str
    """Without a trailing slash, with `/v1` where no path was given."""
    root: str
    """`scheme://host[:port]` and what of the path comes before `/v1`."""
    host: str


def check_endpoint(endpoint: EndpointSpec) -> Address:
    """The checked address; `endpoint_invalid` with the rule that the endpoint breaks. Nothing is sent."""
    if endpoint.provider not in PROVIDERS:
        raise fail(
            "endpoint_invalid",
            f"the provider {endpoint.provider[:60]!r} is not known",
            f"One of: {', '.join(PROVIDERS)}.",
            ["provider"],
        )
    if endpoint.api_key is not None and not _KEY.fullmatch(endpoint.api_key):
        raise fail(
            "endpoint_invalid", "the API key is empty or has characters that no header can carry", "", ["api_key"]
        )
    if _CONTROL.search(endpoint.model):
        raise fail("endpoint_invalid", "the model name has white space or control characters", "", ["model"])
    return check_url(endpoint.base_url)


def check_url(url: str) -> Address:
    """The checked address of a base URL. `endpoint_invalid`."""
    if _CONTROL.search(url) or len(url) > 2048:
        raise _refused("it has white space, a backslash or a control character, or is too long")
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise _refused(f"it is malformed ({error})") from error
    if parts.scheme not in ("http", "https") or not host:
        raise _refused("it is not http://host or https://host")
    if parts.username is not None or parts.password is not None:
        raise _refused("it carries a user name or password", "Give the key in api_key.")
    if "?" in url or "#" in url:
        raise _refused("it has a query or a fragment")
    address = _literal(host)
    if (address is not None and address.is_link_local) or (address is None and _NUMERIC.fullmatch(host)):
        raise _refused(f"{host[:60]} is link-local, or no plain form of an address")
    if parts.scheme == "http" and not _is_near(host):
        raise _refused(f"plain http to {host}, which is a public host", "Use https.")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    base = f"{parts.scheme}://{parts.netloc}{path or '/v1'}"
    return Address(base, base.removesuffix("/v1"), host)


def endpoint_facts(endpoint: EndpointSpec) -> dict[str, str]:
    """What reports and cards say of an endpoint: no key; `digest` is over provider, base_url and model."""
    base = check_url(endpoint.base_url).base
    named = {"provider": endpoint.provider, "base_url": base, "model": endpoint.model}
    return {**named, "digest": digest_json(named)}


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_near(host: str) -> bool:
    """This machine or a private network, by its name or address alone."""
    address = _literal(host)
    if address is not None:
        return address.is_loopback or address.is_private
    return "." not in host or host.endswith(_PRIVATE_NAMES)


def _refused(why: str, hint: str = "") -> BashGymError:
    # The address itself is not repeated: it may hold the very credential that is refused.
    return fail("endpoint_invalid", f"the endpoint's base_url is refused: {why}", hint, ["base_url"])
