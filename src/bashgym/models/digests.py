"""Digests of model folders. Hashing gigabytes is done once: results are cached by path, size, mtime and inode."""

from __future__ import annotations

import json
from pathlib import Path

from bashgym.core.canonical import digest_file, digest_json
from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_json, read_object

_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt")
_SKIP = ("checkpoint_manifest.json",)
_BIG = 64 << 20


def folder_digest(folder: Path, cache_home: Path | None = None) -> str:
    """sha256 over (name, sha256) of the weights, config and tokenizer files directly in `folder`.

    With `cache_home`, digests of big files are kept there.
    """
    entries = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _SUFFIXES and path.name not in _SKIP:
            entries.append([path.name, _file_digest(path, cache_home)])
    return digest_json(entries)


def _file_digest(path: Path, cache_home: Path | None) -> str:
    facts = path.stat()
    if cache_home is None or facts.st_size < _BIG:
        return digest_file(path)
    cache_path = cache_home / "cache" / "digests.json"
    key = json.dumps([str(path.resolve()), facts.st_size, facts.st_mtime_ns, facts.st_ino])
    try:
        cache = read_object(cache_path)
    except BashGymError:
        cache = {}
    if key not in cache:
        cache[key] = digest_file(path)
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(cache_path, cache)
    return str(cache[key])
