"""`bashgym eval parity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe


def parity(
    *,
    endpoint: Annotated[str, typer.Option(help="Base URL of the OpenAI-compatible endpoint, with its /v1.")],
    run: Annotated[str | None, typer.Option(help="Run whose tokenizer and dataset are compared.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, instead of a run: built-in name, folder or Hub id.")] = None,
    dataset: Annotated[Path | None, typer.Option(help="Training file; by default that of the run.")] = None,
    rows: Annotated[int, typer.Option(help="Rows to compare, evenly from the file.", min=1, max=1000)] = 32,
    model_name: Annotated[str, typer.Option(help="The model's name on the endpoint; by default its only one.")] = "",
    provider: Annotated[
        str, typer.Option(help="openai, vllm, ollama, openai-compatible or local.")
    ] = "openai-compatible",
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the endpoint's key.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the report here.")] = None,
) -> Reply:
    """Do rows become the same token ids in training and at the endpoint? Exit status 2 if not."""
    import os

    from bashgym.core.errors import fail
    from bashgym.evals.parity import check_parity
    from bashgym.inference.endpoint import EndpointSpec

    if (run is None) == (model is None):
        raise fail("usage", "either --run or --model", fields=["--run", "--model"])
    folder, options = _of_run(run) if run is not None else (_of_model(str(model)), {})
    path = dataset or options.pop("dataset", None)
    if path is None:
        raise fail("missing_field", "no dataset to compare", "Give --dataset.", ["--dataset"])
    key = os.environ.get(api_key_env) if api_key_env else None
    where = EndpointSpec(base_url=endpoint, provider=provider, model=model_name, api_key=key or None)
    found = check_parity(folder, Path(path), where, rows=rows, **({} if dataset else options))
    doc = {**found, "run_id": run, "model": model}
    if output is not None:
        from bashgym.core.files import atomic_write_json

        atomic_write_json(output, doc)
    return Reply(doc, lambda: _show(doc), 0 if doc["ok"] else 2)


def _of_model(name: str) -> Path:
    from bashgym.workspace import Workspace

    found = Workspace.open().model(name)
    adapter = found.adapter_path
    return adapter if adapter and (adapter / "tokenizer.json").is_file() else found.path


def _of_run(run_id: str) -> tuple[Path, dict[str, Any]]:
    """The folder whose tokenizer the run was trained with, and its dataset as it was read."""
    from bashgym.workspace import Workspace

    run = Workspace.open().runs.locate(run_id)
    manifest, request = run.manifest(), run.request()
    options = {
        "dataset": request["dataset_path"],
        "dataset_format": request["dataset_format"],
        "column_mapping": request["column_mapping"] or None,
    }
    return Path(str(manifest["model"]["path"])), options


def _show(doc: dict[str, Any]) -> None:
    what = "token ids" if doc["mode"] == "ids" else "prompt token counts only: the endpoint has no /tokenize"
    print(f"{'same' if doc['ok'] else 'DIFFERENT'}: {doc['n']} rows, {doc['n_comparisons']} comparisons of {what}")
    for found in doc["mismatches"]:
        if "refused" in found:
            print(f"  row {found['row']}, {found['part']}: {safe(found['refused'])}")
            continue
        place = f" from token {found['first_difference']}" if "first_difference" in found else ""
        print(f"  row {found['row']}, {found['part']}{place}: {found['n_train']} trained, {found['n_served']} served")
        for side in ("train", "served"):
            if tokens := found.get(f"{side}_tokens"):
                print(f"    {side:<7}" + " ".join(_quoted(token["text"]) for token in tokens))


def _quoted(text: str | None) -> str:
    """A token's text in quotes, with nothing in it that a terminal obeys."""
    import json

    return safe(json.dumps(text, ensure_ascii=False))
