"""`bashgym serve-model`: finds the model, then becomes the process that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bashgym.cli.output import Reply, note

if TYPE_CHECKING:
    from bashgym.inference.served import ServeConfig
    from bashgym.models.catalog import ModelRef


def serve_model(
    model: Annotated[str, typer.Argument(help="Built-in name, Hub id, local folder or run id.", metavar="MODEL")],
    *,
    adapter: Annotated[Path | None, typer.Option(help="Folder of a LoRA adapter to put on top.")] = None,
    host: Annotated[str, typer.Option(help="Address to bind. Anything but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 lets the system choose.", min=0, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name on the wire; by default as given.")] = None,
    token: Annotated[
        str | None, typer.Option(envvar="BASHGYM_MODEL_TOKEN", help="Clients must send it; better in the environment.")
    ] = None,
    engine: Annotated[str, typer.Option(help="transformers, or vllm where it is installed.")] = "transformers",
    threads: Annotated[int | None, typer.Option(help="CPU threads; by default torch chooses.", min=1)] = None,
    max_batch: Annotated[int, typer.Option(help="Most answers made at once.", min=1, max=1024)] = 64,
) -> Reply:
    """Serve a local model over the OpenAI-compatible API, with log probabilities and tools, until interrupted."""
    import os
    import sys

    from bashgym.core.apibase import is_loopback
    from bashgym.core.errors import fail
    from bashgym.core.runtime import child_env
    from bashgym.inference.served import ServeConfig
    from bashgym.workspace import Workspace

    if engine not in _ENGINES:
        raise fail("usage", f"there is no engine {engine[:40]!r}", f"One of: {', '.join(_ENGINES)}.", ["--engine"])
    if not token and not is_loopback(host):
        raise fail("bind_refused", f"binding to {host} lets other machines in", "Give --token.", ["--host"])
    workspace = Workspace.open()
    found = workspace.model(model)
    folder = _adapter(found, adapter)
    config = ServeConfig(
        path=str(found.path),
        adapter_path=str(folder) if folder else None,
        name=name or (Path(model).resolve().name if Path(model).is_dir() else model),
        host=host,
        port=port,
        threads=threads,
        max_batch=max_batch,
        announce="--json" in sys.argv,
    )
    python = workspace.settings.training_python
    make_argv, variable = _ENGINES[engine]
    argv = [python, *make_argv(config, python)]
    secret = {variable: token} if token else {}
    note(f"loading {config.name}")
    env = child_env(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error", **secret)
    try:
        # The server takes this process's place: signals, exit status and supervision are its own.
        os.execve(python, argv, env)  # noqa: S606
    except OSError as error:
        text = f"the training interpreter {python} does not start: {error.strerror}"
        raise fail("missing_extra", text, "Set BASHGYM_TRAINING_PYTHON.") from error


def _adapter(found: ModelRef, adapter: Path | None) -> Path | None:
    """The adapter's folder, checked against the base."""
    from bashgym.core.errors import fail
    from bashgym.models import adapter_checks

    if adapter is None:
        return found.adapter_path
    if found.adapter_path is not None:
        raise fail("usage", f"{found.name} already is an adapter on {found.path.name}", fields=["--adapter"])
    folder = adapter.expanduser().resolve()
    if not (folder / "adapter_config.json").is_file():
        raise fail("model_incomplete", f"{folder} has no adapter_config.json", fields=["--adapter"])
    adapter_checks.check_shapes(adapter_checks.adapter_shapes(folder), found.config, found.name)
    return folder


def _transformers(config: ServeConfig, _: str) -> list[str]:
    import msgspec

    return ["-u", "-m", "bashgym.inference.server", msgspec.json.encode(config).decode()]


def _vllm(config: ServeConfig, python: str) -> list[str]:
    from bashgym.core.errors import fail
    from bashgym.core.runtime import runtime_facts

    if "vllm" not in runtime_facts(python)["packages"]:
        text = f"vllm is not installed in {python}"
        raise fail("missing_extra", text, "pip install 'bashgym[gpu]', or leave --engine out.")
    argv = ["-m", "vllm.entrypoints.cli.main", "serve", config.path, "--host", config.host, "--port", str(config.port)]
    argv += ["--max-num-seqs", str(config.max_batch), "--served-model-name"]
    if config.adapter_path is None:
        return [*argv, config.name]
    return [*argv, f"{config.name}-base", "--enable-lora", "--lora-modules", f"{config.name}={config.adapter_path}"]


_ENGINES = {"transformers": (_transformers, "BASHGYM_MODEL_TOKEN"), "vllm": (_vllm, "VLLM_API_KEY")}
"""What to run, and the variable in which its server takes the token."""
