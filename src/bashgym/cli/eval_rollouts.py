"""`bashgym eval rollouts|local-rollouts`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe
from bashgym.cli.progress import shown

Data = Annotated[Path | None, typer.Option("--data-file", help="JSON body, as the API takes it.")]


def rollouts(
    *,
    data_file: Data = None,
    environments: Annotated[Path | None, typer.Option(help="File of environments, one a line.")] = None,
    model: Annotated[
        str, typer.Option(help="Local model to serve meanwhile: built-in, folder, Hub id or run id.")
    ] = "",
    endpoint: Annotated[str, typer.Option(help="OpenAI-compatible endpoint, instead of --model.")] = "",
    endpoint_model: Annotated[str, typer.Option(help="Model name on the endpoint.")] = "",
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the endpoint's key.")] = None,
    model_id: Annotated[str, typer.Option(help="Name under which the result is recorded.")] = "",
    attempts: Annotated[int | None, typer.Option(help="Attempts at each environment.", min=1, max=32)] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", min=0, max=2)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the attempts.", min=0)] = None,
    plain: Annotated[bool, typer.Option("--plain-json", help="Ask for JSON objects instead of tool calls.")] = False,
    rollouts_path: Annotated[
        Path | None, typer.Option(help="Keep finished episodes here, and go on from them.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Write a DPPO replay with log probabilities here.")] = None,
    output: Annotated[Path | None, typer.Option(help="File for the whole document, transcripts included.")] = None,
) -> Reply:
    """Let a model play environments in the sandbox, and report pass@k with intervals. Interrupted, --rollouts-path goes on."""
    from bashgym.cli.inputs import regular_file
    from bashgym.core.errors import fail
    from bashgym.core.files import atomic_write_json, read_object
    from bashgym.envs.adapters.files import read_environments

    body: dict[str, Any] = read_object(regular_file(data_file, "data file")) if data_file else {}
    if environments:
        body["environments"] = [spec.to_dict() for spec in read_environments(environments)]
    named = {
        "attempts_per_environment": attempts,
        "temperature": temperature,
        "seed": seed,
        "model_id": model_id or None,
    }
    body |= {name: value for name, value in named.items() if value is not None}
    body |= {"use_tool_calling": False} if plain else {}
    if rollouts_path:
        body["rollouts_path"] = str(rollouts_path)
    if replay:
        body |= {"dppo_replay_output_path": str(replay), "capture_logprobs": True}
    if endpoint:
        key = os.environ.get(api_key_env) if api_key_env else None
        body["endpoint"] = {"base_url": endpoint, "model": endpoint_model, **({"api_key": key} if key else {})}
    if bool(model) == ("endpoint" in body):
        raise fail("usage", "give either --model or an endpoint", fields=["--model", "--endpoint"])
    doc = _play(body, model)
    if output:
        atomic_write_json(output, doc)
    return Reply(doc, lambda: _show(doc))


def _play(body: dict[str, Any], model: str) -> dict[str, Any]:
    import msgspec

    from bashgym.evals.model_rollouts import model_rollouts
    from bashgym.evals.served import served
    from bashgym.workspace import Workspace

    workspace = Workspace.open()

    def run(whole: dict[str, Any]) -> dict[str, Any]:
        with shown() as progress:
            return model_rollouts(
                workspace.settings, whole, lambda done, total: progress("episodes", done / total, f"{done}/{total}")
            )

    if not model:
        return run(body)
    with served(workspace.model(model), workspace.settings) as endpoint:
        return run({"model_id": model, **body, "endpoint": msgspec.to_builtins(endpoint)})


def local_rollouts(
    data_file: Annotated[Path, typer.Option("--data-file", help="JSON body, as the API takes it.")],
) -> Reply:
    """Run given commands in the sandbox and judge them: pass@k of somebody else's attempts."""
    from bashgym.cli.inputs import regular_file
    from bashgym.core.files import read_object
    from bashgym.core.settings import Settings
    from bashgym.evals.model_rollouts import local_rollouts as run

    doc = run(Settings.from_env(), read_object(regular_file(data_file, "data file")))
    return Reply(doc, lambda: _show(doc))


def _show(doc: dict[str, Any]) -> None:
    from bashgym.cli.eval_gates import show_passk

    show_passk(doc["report"])
    status = doc["report"]["attempt_summary"]["verifier_status_distribution"]
    print("  ".join(f"{name} {n}" for name, n in status.items()))
    for line in doc["warnings"]:
        print(f"warning: {safe(line)}")
