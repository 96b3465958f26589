"""A Docker Space that runs the sweep: one folder with the sources, a Dockerfile and the commands, and its upload.

The bundle is built offline and says by digest what is in it. A token is read from HF_TOKEN alone and goes to huggingface_hub
and to the Space's secrets, never into a file or a command line.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_bytes, atomic_write_json, writable_dir
from polyguard import DISCLAIMER

BUNDLE = Path("outputs/space_bundle")
SCHEMA = "polyguard.space_bundle.v1"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "wheels")
_SENT = ("pyproject.toml", "constraints.txt", "src", "scripts")


class Deployment(msgspec.Struct, kw_only=True):
    """What is to run, and where."""

    repo_id: str
    artifact_repo_id: str
    hardware: str = "cpu-basic"
    models: tuple[str, ...]
    mode: str = "full"
    """full, or sft-baseline: without GRPO."""
    sft_epochs: int = 1
    grpo_epochs: int = 1
    sft_max_steps: int = 0
    grpo_max_steps: int = 0
    grpo_max_prompts: int = 0
    sleep_time: int = 3600
    public: bool = False
    bundle_dir: Path = BUNDLE


def run_id_of(model_id: str) -> str:
    """`Qwen/Qwen2.5-0.5B-Instruct` -> `qwen-qwen2-5-0-5b-instruct`."""
    return re.sub(r"[^a-z0-9]+", "-", model_id.lower()).strip("-")


def bundle(asked: Deployment) -> dict[str, Any]:
    """Writes the folder whole, or not at all, and gives its manifest. `invalid_field`, `file_missing`."""
    for name in (asked.repo_id, asked.artifact_repo_id):
        if not _REPO.fullmatch(name):
            raise fail("invalid_field", f"{name[:120]!r} is no owner/name", fields=["repo_id"])
    if not asked.models or len(set(map(run_id_of, asked.models))) != len(asked.models):
        raise fail("invalid_field", "--model-sweep names models, each once", fields=["model_sweep"])
    root, made = _project(), asked.bundle_dir.with_name(f".{asked.bundle_dir.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    writable_dir(made)
    for name in _SENT:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, made / name, ignore=_LEFT_OUT)
        elif source.is_file():
            shutil.copy2(source, made / name)
        else:
            raise fail("file_missing", f"{source.name} is not in the project", "Run this from a checkout.")
    for name, text in (("README.md", _readme(asked)), ("Dockerfile", DOCKERFILE), ("run_training.sh", script(asked))):
        atomic_write_bytes(made / name, text.encode())
    (made / "run_training.sh").chmod(0o755)
    manifest = _manifest(asked, made)
    atomic_write_json(made / "bundle.json", manifest)
    shutil.rmtree(asked.bundle_dir, ignore_errors=True)
    made.rename(asked.bundle_dir)
    return manifest


def _project() -> Path:
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file():
        raise fail(
            "file_missing", "the sources are not here: this is an installed package", "Use a checkout with scripts/."
        )
    return root


def _manifest(asked: Deployment, folder: Path) -> dict[str, Any]:
    files = {p.relative_to(folder).as_posix(): digest_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    facts = {k: v for k, v in msgspec.to_builtins(asked, enc_hook=str).items() if k != "bundle_dir"}
    return {
        "schema_version": SCHEMA,
        "disclaimer": DISCLAIMER,
        **facts,
        "run_ids": [run_id_of(m) for m in asked.models],
        "files": files,
    }


def script(asked: Deployment) -> str:
    """The commands of every model, in order. A model that fails does not hold up the next."""
    lines = ["#!/bin/sh", "# Written by deploy_training_space.py.", "set -u", "failed=0"]
    lines.append(
        "python scripts/build_training_corpus.py --profile massive --with-local --with-synthetic --with-hf || exit 1"
    )
    for model in asked.models:
        lines.append(f"( {' && '.join(_stages(asked, model))} ) || failed=1")
    upload = (
        "from huggingface_hub import HfApi; import os; HfApi().upload_folder(repo_id=os.environ['ARTIFACT_REPO_ID'], "
    )
    upload += "folder_path='.', allow_patterns=['outputs/reports/**', 'checkpoints/sweeps/**'])"
    lines += [
        f"export ARTIFACT_REPO_ID={shlex.quote(asked.artifact_repo_id)}",
        f"python -c {shlex.quote(upload)} || failed=1",
    ]
    return "\n".join([*lines, 'exit "$failed"', ""])


def _stages(asked: Deployment, model: str) -> list[str]:
    name = run_id_of(model)
    saved, reports = f"checkpoints/sweeps/{name}", f"outputs/reports/sweeps/{name}"
    both = f"--model-id {shlex.quote(model)} --use-unsloth"
    found = [
        f"python scripts/train_sft_trl.py {both} --epochs {asked.sft_epochs} --max-steps {asked.sft_max_steps} "
        f"--output-dir {saved}/sft_adapter --report-path {reports}/sft_trl_run.json",
        f"python scripts/merge_adapters_safe.py --adapter-dir {saved}/sft_adapter --output-dir {saved}/merged --force",
    ]
    if asked.mode == "full":
        found.append(
            f"python scripts/train_grpo_trl.py {both} --epochs {asked.grpo_epochs} --max-steps {asked.grpo_max_steps} "
            f"--max-prompts {asked.grpo_max_prompts} --sft-adapter {saved}/sft_adapter --output-dir {saved}/grpo_adapter "
            f"--report-path {reports}/grpo_trl_run.json"
        )
    return found


def upload(asked: Deployment) -> str:
    """Creates or updates the Space and sends the bundle; its address. `hub_unavailable` without HF_TOKEN."""
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        raise fail(
            "hub_unavailable", "HF_TOKEN is not set", "Give a write token in the environment, or use --bundle-only."
        )
    from huggingface_hub import HfApi

    hub = HfApi(token=token)
    private = not asked.public
    hub.create_repo(asked.repo_id, repo_type="space", space_sdk="docker", private=private, exist_ok=True)
    hub.create_repo(asked.artifact_repo_id, repo_type="model", private=private, exist_ok=True)
    hub.add_space_secret(asked.repo_id, "HF_TOKEN", token)
    hub.upload_folder(repo_id=asked.repo_id, repo_type="space", folder_path=str(asked.bundle_dir))
    hub.request_space_hardware(asked.repo_id, asked.hardware, sleep_time=asked.sleep_time)
    return f"https://huggingface.co/spaces/{asked.repo_id}"


def _readme(asked: Deployment) -> str:
    return f"""---
title: PolyGuard training
sdk: docker
app_port: 7860
---

{DISCLAIMER}

Trains {", ".join(asked.models)} and sends reports and adapters to {asked.artifact_repo_id}. Log: `outputs/logs/hf_training.log`.
"""


DOCKERFILE = """FROM python:3.11-slim
WORKDIR /app
COPY . /app
RUN pip install --no-cache-dir -c constraints.txt '.[polyguard]' && mkdir -p outputs/logs && chmod -R a+rwX /app
ENV HF_HOME=/tmp/hf BASHGYM_DIR=/tmp/bashgym
CMD ["sh", "-c", "./run_training.sh > outputs/logs/hf_training.log 2>&1 & exec python -m http.server 7860 -d outputs"]
"""
