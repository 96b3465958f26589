"""Ed25519 signatures (RFC 8032) over a bundle's manifest: whose word it is. Optional: needs the extra `sign`."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.canonical import canonical_json
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SCHEMA = "bashgym.signature.v1"
_MAX_KEY_BYTES = 4096


def keygen(path: Path) -> dict[str, str]:
    """Writes a new private key (PEM, mode 0600) to `path` and its public half to `path`.pub. `file_exists`."""
    from_crypto = _crypto()
    public = path.with_name(f"{path.name}.pub")
    key = from_crypto.Ed25519PrivateKey.generate()
    for place, content, mode in ((path, _private_pem(key), 0o600), (public, _public_pem(key.public_key()), 0o644)):
        try:
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError as error:
            raise fail("file_exists", f"{place} exists", "Name another file.", ["output"]) from error
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return {"private_key": str(path), "public_key": str(public), "key_id": key_id(key.public_key())}


def sign(content: bytes, key_path: Path) -> dict[str, Any]:
    """The signature document of `content`."""
    _crypto()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key: Any = load_pem_private_key(_read(key_path), None)
        signature = key.sign(content)
    except (ValueError, TypeError, AttributeError) as error:
        raise fail("signature_invalid", f"{key_path} is no Ed25519 private key", fields=["key"]) from error
    return _document(key.public_key(), signature)


def check(manifest: Path, signature: Path, public_key: Path | None = None) -> str:
    """The id of the key that signed; `signature_invalid` if it is not `public_key`'s, or the content differs.

    Without a `public_key` the one in the signature is used: that shows damage, and says nothing about who signed.
    """
    _crypto()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if not signature.is_file() or not manifest.is_file():
        raise fail("signature_invalid", f"{manifest.parent} is not signed", "`bashgym evidence sign` signs a bundle.")
    try:
        document = read_object(signature)
        signed = base64.b64decode(str(document.get("signature")), validate=True)
        public: Any = load_pem_public_key(_read(public_key) if public_key else str(document.get("public_key")).encode())
        public.verify(signed, canonical_json(read_object(manifest)))
        whole = signature.read_bytes() == canonical_json(_document(public, signed))
    except InvalidSignature as error:
        raise fail("signature_invalid", "the signature is of another key, or of other content") from error
    except (ValueError, TypeError, AttributeError, binascii.Error, BashGymError) as error:
        raise fail("signature_invalid", f"the signature or the key cannot be read: {error}") from error
    if not whole:
        raise fail("signature_invalid", "the signature file is not as it was written")
    return key_id(public)


def _document(public: Ed25519PublicKey, signed: bytes) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA,
        "algorithm": "ed25519",
        "key_id": key_id(public),
        "public_key": _public_pem(public).decode(),
        "signature": base64.b64encode(signed).decode(),
    }


def key_id(public: Ed25519PublicKey) -> str:
    """16 hex digits of the public key's digest."""
    import hashlib

    return hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise fail("file_missing", f"{path} does not exist", fields=["key"])
    with path.open("rb") as handle:
        return handle.read(_MAX_KEY_BYTES)


def _crypto() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise fail("missing_extra", f"signing needs cryptography: {error}", "pip install 'bashgym[sign]'") from error
    return ed25519


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


def _public_pem(key: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem
