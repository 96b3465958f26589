"""`training push` and `training export-gguf`."""

from __future__ import annotations

from typing import Annotated

import typer

from bashgym.cli.output import Reply, note, safe
from bashgym.core.errors import fail

RunId = Annotated[str, typer.Argument(help="Id of a finished run.", metavar="RUN_ID")]


def push(
    run_id: RunId,
    repo: Annotated[str, typer.Option(help="The Hub repository: name, or owner/name.")],
    public: Annotated[bool, typer.Option("--public", help="Anyone may see and download it.")] = False,
    artifact: Annotated[
        str, typer.Option(help="auto (merged if there is one, else the adapter), adapter, merged.")
    ] = "auto",
) -> Reply:
    """Push a finished run's model with a generated model card, in one commit. Private unless --public."""
    if artifact not in ("auto", "adapter", "merged"):
        raise fail("usage", f"--artifact {artifact[:40]!r}", "It is auto, adapter or merged.")
    from bashgym.workspace import Workspace

    note(f"{run_id} goes to {repo}, {'PUBLIC: anyone can download it' if public else 'private'}")
    doc = Workspace.open().runs.push(run_id, repo, private=not public, artifact=artifact)
    return Reply(
        doc, lambda: print(f"{safe(doc['url'])}  {doc['artifact']}  {'private' if doc['private'] else 'PUBLIC'}")
    )


def export_gguf(
    run_id: RunId,
    quantization: Annotated[
        str | None, typer.Option(help="GGUF type, as llama-quantize names it; the run's own.")
    ] = None,
) -> Reply:
    """Convert a finished run's merged model to GGUF with llama.cpp's converter (BASHGYM_LLAMA_CPP or PATH)."""
    from bashgym.workspace import Workspace

    doc = Workspace.open().runs.export_gguf(run_id, quantization)
    for warning in doc["warnings"]:
        note(f"warning: {warning}")
    return Reply(doc, lambda: print(f"{safe(doc['file'])}  {doc['type']}  {doc['size_bytes'] / 2**20:.1f} MiB"))
