"""Evidence bundles: a folder with a run's card and all that stands behind it, sealed by MANIFEST.json, re-checked by anybody.

Covers: a byte changed, a file added or removed, a card that no longer follows from its files. Does not cover: an author who
makes run, scores and card up together; a signature says whose word it is.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bashgym.core.canonical import canonical_json, digest_file, digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_bytes, read_object
from bashgym.core.ids import check_identifier
from bashgym.evidence import runcard, signing

SCHEMA = "bashgym.evidence_bundle.v1"
VERIFICATION = "bashgym.evidence_verification.v1"
MANIFEST, SIGNATURE = "MANIFEST.json", "MANIFEST.sig.json"
CARD = "run_card.json"
MAX_BYTES = 64 << 30
_LEFT_OUT = ("checkpoint-", "merged", "gguf", "training.log", "supervisor.log", "control.json", ".lock")
"""Of a run directory: what no check of a card reads."""
_UNCHECKED = ("not_recomputed", "heldout_overlap_unchecked", "run_unbound")
"""Findings that say what a verification had to take as stated."""


def bundle(run_dir: Path, output: Path) -> dict[str, Any]:
    """Copies the run's card, its evidence and its saved model into a new folder (or a new .tar) and seals it.

    {path, n_files, size_bytes, manifest_digest}. `file_missing` without a card, `file_exists` if the output exists,
    `run_card_invalid` for a card that binds files outside of the run directory: such a bundle could not be re-checked.
    """
    check_identifier(run_dir.name, "run_id")
    card: dict[str, Any] = read_object(run_dir / CARD)
    outside = [e["path"] for e in card.get("evidence", []) if not _inside(run_dir, str(e.get("path", "")))]
    if outside:
        hint = "Copy it into the run directory and attach it from there."
        raise fail("run_card_invalid", f"the card binds {outside[0]}, outside of the run directory", hint, ["evidence"])
    if output.exists():
        raise fail("file_exists", f"{output} exists", "Name another output.", ["output"])
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".bundle-") as made:
        # The run id is the folder's name, because a card finds its run by it.
        folder = Path(made) / run_dir.name
        shutil.copytree(run_dir, folder, ignore=_ignored, symlinks=False)
        files = _digests(folder)
        manifest = {
            "schema_version": SCHEMA,
            "run_id": card.get("run_id"),
            "created_at": utc_now(),
            "card_digest": card.get("card_digest"),
            "files": files,
        }
        manifest["manifest_digest"] = digest_json(manifest)
        atomic_write_bytes(folder / MANIFEST, canonical_json(manifest))
        size = sum(entry["size_bytes"] for entry in files.values())
        if output.suffix == ".tar":
            with tarfile.open(Path(made) / "bundle.tar", "w") as tar:
                tar.add(folder, folder.name)
            os.replace(Path(made) / "bundle.tar", output)
        else:
            os.replace(folder, output)
    return {
        "path": str(output),
        "n_files": len(files),
        "size_bytes": size,
        "manifest_digest": manifest["manifest_digest"],
    }


def _inside(run_dir: Path, path: str) -> bool:
    return (run_dir / path).resolve().is_relative_to(run_dir.resolve())


def _ignored(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(_LEFT_OUT)]


def _digests(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise fail("path_outside", f"{name} is a link", fields=["bundle"])
        if path.is_file() and name not in (MANIFEST, SIGNATURE):
            found[name] = {"sha256": digest_file(path), "size_bytes": path.stat().st_size}
    return found


def verify(path: Path, *, public_key: Path | None = None, promotion: bool | None = None) -> dict[str, Any]:
    """`bashgym.evidence_verification.v1` of a bundle (folder or .tar), a run directory, or a card.

    Hashes every file again and judges the card anew, which recomputes comparisons, gates and promotion rules from the scores.
    `promotion` None judges as the card's own decision does. With a `public_key` the signature must hold: `signature_invalid`.
    """
    with _opened(path) as folder:
        sealed = (folder / MANIFEST).is_file()
        if not sealed and path.is_file() and path.suffix != ".json":
            raise fail("file_unreadable", f"{path} has no {MANIFEST}: it is no bundle", fields=["path"])
        problems = _seal(folder) if sealed else []
        signed_by, unchecked = _signature(folder, public_key, problems)
        card = path if path.is_file() and path.suffix == ".json" else folder / CARD
        judged = runcard.validate(card, promotion=bool(promotion), models_dir=folder.parent)
    failures = [f for f in judged["findings"] if f["level"] == "fail"]
    again = [f["message"] for f in judged["findings"] if f["code"] in _UNCHECKED]
    return {
        "schema_version": VERIFICATION,
        "ok": not problems and not failures,
        "path": str(path),
        "run_id": judged["run_id"],
        "sealed": sealed,
        "signed_by": signed_by,
        "problems": problems,
        "findings": judged["findings"],
        "artifact_status": judged["artifact_status"],
        "base_model": judged["base_model"],
        "decision": judged["decision"],
        "claim_tier": judged["claim_tier"],
        "not_recomputed": [*unchecked, *again],
        "promotion_explanation": judged["promotion_explanation"],
    }


def _seal(folder: Path) -> list[dict[str, str]]:
    """What differs from MANIFEST.json, by file; the manifest itself is sealed by its own digest, to the byte."""
    manifest: dict[str, Any] = read_object(folder / MANIFEST)
    listed = manifest.get("files")
    if manifest.get("schema_version") != SCHEMA or not isinstance(listed, dict):
        raise fail("file_unreadable", f"{folder / MANIFEST} is no manifest of a bundle", fields=["path"])
    there = _digests(folder)
    problems = [{"file": name, "problem": "not in the manifest"} for name in sorted(there.keys() - listed.keys())]
    problems += [{"file": name, "problem": "missing"} for name in sorted(listed.keys() - there.keys())]
    changed = (name for name in sorted(there.keys() & listed.keys()) if there[name] != listed[name])
    problems += [{"file": name, "problem": "changed"} for name in changed]
    body = {name: value for name, value in manifest.items() if name != "manifest_digest"}
    whole = (folder / MANIFEST).read_bytes() == canonical_json(manifest)
    if not whole or manifest.get("manifest_digest") != digest_json(body):
        problems.append({"file": MANIFEST, "problem": "changed"})
    card = read_object(folder / CARD) if CARD in there else {}
    if card and (manifest.get("run_id"), manifest.get("card_digest")) != (card.get("run_id"), card.get("card_digest")):
        problems.append({"file": MANIFEST, "problem": "names another card"})
    return problems


def _signature(folder: Path, public_key: Path | None, problems: list[dict[str, str]]) -> tuple[str | None, list[str]]:
    """(id of the vouched key that signed, what could not be checked). Without a key a signature must still fit its content."""
    if public_key:
        return signing.check(folder / MANIFEST, folder / SIGNATURE, public_key), []
    if not (folder / SIGNATURE).is_file():
        return None, []
    try:
        stated = signing.check(folder / MANIFEST, folder / SIGNATURE)
    except BashGymError as error:
        if error.code == "missing_extra":
            return None, [f"the signature: {error.message}"]
        problems.append({"file": SIGNATURE, "problem": error.message})
        return None, []
    return None, [f"whose key {stated} is that signed it: give --public-key"]


@contextmanager
def _opened(path: Path) -> Iterator[Path]:
    """The folder to look at; a .tar is unpacked, with no links, no paths outside, and a bound on its size."""
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise fail("file_missing", f"{path} does not exist", fields=["path"])
    if path.suffix == ".json":
        yield path.parent
        return
    with tempfile.TemporaryDirectory(prefix="bashgym-bundle-") as made:
        try:
            with tarfile.open(path) as tar:
                _check_members(tar)
                tar.extractall(made, filter="data")
        except BashGymError:
            raise
        except (tarfile.TarError, OSError, EOFError) as error:
            raise fail("file_unreadable", f"{path} is no bundle: {error}", fields=["path"]) from error
        folders = [entry for entry in Path(made).iterdir() if entry.is_dir()]
        if len(folders) != 1:
            raise fail("file_unreadable", f"{path} holds {len(folders)} folders, not one bundle", fields=["path"])
        yield folders[0]


def _check_members(tar: tarfile.TarFile) -> None:
    size = 0
    for member in tar:
        size += member.size
        if not (member.isfile() or member.isdir()):
            raise fail(
                "path_outside", f"the archive holds {member.name[:200]!r}, which is no plain file", fields=["path"]
            )
        if size > MAX_BYTES:
            raise fail("file_too_large", f"the archive unpacks to over {MAX_BYTES >> 30} GiB", fields=["path"])


def sign(path: Path, key: Path) -> dict[str, Any]:
    """Signs the manifest of a bundle folder; {path, public_key, key_id}. A bundle that does not verify is refused."""
    if not (path / MANIFEST).is_file():
        raise fail("file_missing", f"{path} has no {MANIFEST}", "`bashgym evidence bundle` makes one.", ["path"])
    problems = _seal(path)
    if problems:
        raise fail("signature_invalid", f"{problems[0]['file']} is {problems[0]['problem']}: it is not what was sealed")
    made = signing.sign(canonical_json(read_object(path / MANIFEST)), key)
    atomic_write_bytes(path / SIGNATURE, canonical_json(made))
    return {"path": str(path / SIGNATURE), "public_key": made["public_key"], "key_id": made["key_id"]}
