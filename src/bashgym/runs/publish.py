"""Pushing a run's model to the Hugging Face Hub with its official client. No torch.

Covers: private unless asked otherwise, an existing repository's visibility is never assumed; only weights, tokenizer and
config files leave this machine, by an allow-list; local paths in adapter_config.json do not; the token comes from the
client's own places (HF_TOKEN, its login file) and is only ever a header. Does not cover: what the weights remember of
the training data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object
from bashgym.data.types import Finding, Severity
from bashgym.evidence.model_card import model_card
from bashgym.store.run_dir import RunDir

ALLOWED = (".safetensors", ".json", ".jinja", ".model", ".txt")
WITHHELD = frozenset({"trainer_state.json", "checkpoint_manifest.json"})
_REPO = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")


def preflight(request: Mapping[str, Any]) -> list[Finding]:
    """Asks the Hub before anything is trained; says which repository, and who will see it.

    `hub_unavailable` without a token or an answer; `hub_refused` for a token that cannot write or another visibility.
    """
    private = bool(request["hf_private"])
    with _hub() as api:
        repo_id, exists = _look(api, str(request["hf_repo_name"]), private)
    state = "exists" if exists else "will be created"
    what = f"after success the model ({request['hf_upload_artifact']}) is pushed to {api.endpoint}/{repo_id}, which {state}"
    if private:
        return [Finding("hub_push", Severity.WARNING, f"{what}: private", "", "hf_repo_name")]
    mend = "Anyone can download it. Leave hf_private at true (--hf-private) to keep it to yourself."
    return [Finding("hub_push_public", Severity.WARNING, f"{what}: PUBLIC", mend, "hf_private")]


def push(run: RunDir, repo: str, *, private: bool, artifact: str) -> dict[str, Any]:
    """One commit with the model and a generated README.md; what was pushed, by sha256.

    `checkpoint_not_found` when that artifact is not there, `hub_unavailable`, `hub_refused`.
    """
    folder = artifact_folder(run, artifact)
    with _hub() as api:
        repo_id, _ = _look(api, repo, private)
        run.append_event("hub-push-begun", repo_id=repo_id, private=private, artifact=folder.name)
        api.create_repo(repo_id, private=private, exist_ok=True)
        _look(api, repo_id, private)  # somebody else may have made it in between, with another visibility
        operations, files = _operations(run, folder)
        message = f"{run.run_id}: {folder.name}"
        commit = api.create_commit(repo_id, operations, commit_message=message)
    return {
        "repo_id": repo_id,
        "url": f"{api.endpoint}/{repo_id}",
        "private": private,
        "artifact": folder.name,
        "commit": str(commit.oid),
        "files": files,
        "pushed_at": utc_now(),
    }


def artifact_folder(run: RunDir, artifact: str) -> Path:
    """The folder that `auto`, `adapter` or `merged` means here. A fully fine-tuned final/ is a merged model."""
    final, merged = run.file("final"), run.file("merged")
    adapter = (final / "adapter_config.json").is_file()
    whole = merged if merged.is_dir() else final if final.is_dir() and not adapter else None
    chosen = {"auto": whole or (final if adapter else None), "merged": whole, "adapter": final if adapter else None}
    found = chosen[artifact]
    if found is None:
        have = ", ".join(path.name + "/" for path in (final, merged) if path.is_dir()) or "neither final/ nor merged/"
        raise fail(
            "checkpoint_not_found",
            f"{run.run_id} has no {'model' if artifact == 'auto' else artifact + ' model'} to push; it has {have}",
            hint="artifact_retention deployable or full_run keeps merged weights; --artifact adapter pushes final/.",
            fields=["hf_upload_artifact"],
        )
    return found


@contextmanager
def _hub() -> Iterator[Any]:
    """An `HfApi` with the user's token. Boundary: whatever the client raises becomes a typed error without the token."""
    try:
        from huggingface_hub import HfApi, get_token
    except ImportError as error:
        raise fail("missing_extra", "a Hub push needs huggingface_hub", hint="pip install 'bashgym[cloud]'") from error
    token = get_token()
    if not token:
        raise fail(
            "hub_unavailable",
            "a Hub push needs a token, and there is none",
            hint="Set HF_TOKEN, or log in with `hf auth login`.",
            fields=["auto_push_hf"],
        )
    try:
        yield HfApi(token=token, library_name="bashgym")
    except BashGymError:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary above
        raise _translated(error, token) from None  # the client's traceback holds the request and its headers


def _translated(error: Exception, token: str) -> BashGymError:
    cause: BaseException | None = error
    while cause is not None and getattr(cause, "response", None) is None:
        cause = cause.__cause__
    status = getattr(getattr(cause, "response", None), "status_code", None)
    text = " ".join(str(error).split()).replace(token, "***")[:300]
    if status in (401, 403, 409, 400, 404):
        why = {401: "the token is not accepted", 403: "the token may not write there", 409: "it conflicts"}.get(
            status, ""
        )
        hint = "Use a token with write access to that repository." if status in (401, 403) else ""
        return fail(
            "hub_refused", f"the Hub answered {status}{f' ({why})' if why else ''}: {text}", hint, ["hf_repo_name"]
        )
    said = f"answered {status}" if status else "could not be reached"
    hint = "`bashgym training push RUN_ID --repo NAME` tries again."
    return fail("hub_unavailable", f"the Hub {said}: {type(error).__name__}: {text}", hint, ["auto_push_hf"])


def _look(api: Any, repo: str, private: bool) -> tuple[str, bool]:
    """(full repository id, is it there). `hub_refused` if it is there with another visibility."""
    from huggingface_hub.errors import RepositoryNotFoundError

    if not _REPO.fullmatch(repo):
        raise fail(
            "invalid_field", f"{repo[:100]!r} is not a Hub repository (name or owner/name)", "", ["hf_repo_name"]
        )
    who = api.whoami()
    if ((who.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
        hint = "Make one with write access."
        raise fail("hub_refused", f"the token of {who['name']} can only read", hint, ["auto_push_hf"])
    repo_id = repo if "/" in repo else f"{who['name']}/{repo}"
    try:
        info = api.repo_info(repo_id)
    except RepositoryNotFoundError:
        return repo_id, False
    if bool(info.private) != private:
        is_, asked = ("private", "public") if info.private else ("public", "private")
        raise fail(
            "hub_refused",
            f"{repo_id} exists and is {is_}; {asked} was asked for: nothing is pushed",
            hint=f"Name another repository, or make {repo_id} {asked} on the Hub, or ask for {is_}.",
            fields=["hf_private"],
        )
    return repo_id, True


def _operations(run: RunDir, folder: Path) -> tuple[list[Any], list[dict[str, Any]]]:
    """(what the commit adds, {path, size_bytes, sha256} of the files that go as they are)."""
    from huggingface_hub import CommitOperationAdd

    card = model_card(run.path, artifact=folder.name)
    operations = [CommitOperationAdd("README.md", card.encode())]
    files = []
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.is_symlink() or path.suffix not in ALLOWED or path.name in WITHHELD:
            continue
        if path.name == "adapter_config.json":
            operations.append(CommitOperationAdd(path.name, _portable(path, run)))
            continue
        operations.append(CommitOperationAdd(path.name, str(path)))
        files.append({"path": path.name, "size_bytes": path.stat().st_size, "sha256": digest_file(path)})
    return operations, files


def _portable(path: Path, run: RunDir) -> bytes:
    """adapter_config.json with the base's name in the place of its folder on this machine."""
    model, config = run.manifest()["model"], read_object(path)
    name, _, revision = str(model["name"]).partition("@")
    config["base_model_name_or_path"] = name if model["source"] in ("hub", "builtin") else Path(str(model["path"])).name
    if model["source"] == "hub":
        config["revision"] = revision or model["revision"] or None
    return json.dumps(config, indent=2).encode() + b"\n"
