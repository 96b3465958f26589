"""`bashgym eval openenv`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply


def openenv(
    *,
    server: Annotated[str, typer.Argument(help="Address of an OpenEnv server.")],
    endpoint: Annotated[
        str, typer.Option(help="OpenAI-compatible endpoint of the model, such as bashgym serve-model.")
    ],
    model: Annotated[str, typer.Option(help="Model name on the endpoint.")] = "",
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the endpoint's key.")] = None,
    tasks: Annotated[int, typer.Option(help="Episodes with different seeds.", min=1)] = 8,
    attempts: Annotated[int, typer.Option(help="Attempts at each; more than one needs a temperature.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first episode.", min=0)] = 0,
    max_steps: Annotated[int, typer.Option(help="Longest episode.", min=1)] = 32,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.", min=1)] = 512,
    output: Annotated[Path | None, typer.Option(help="File for the whole report, transcripts included.")] = None,
) -> Reply:
    """Let a model play the environments of an OpenEnv server, and report pass@k over them."""
    from bashgym.core.files import atomic_write_json
    from bashgym.evals.openenv import OpenEnvConfig, evaluate
    from bashgym.inference.client import ChatClient, EndpointSpec

    key = os.environ.get(api_key_env) if api_key_env else None
    config = OpenEnvConfig(
        tasks=tasks, attempts=attempts, seed=seed, max_steps=max_steps, temperature=temperature, max_tokens=max_tokens
    )

    async def play() -> dict[str, Any]:
        async with ChatClient(EndpointSpec(base_url=endpoint, model=model, api_key=key)) as client:
            return await evaluate(client, server, config)

    doc = asyncio.run(play())
    if output:
        atomic_write_json(output, doc)
    from bashgym.cli.eval_gates import show_passk

    return Reply(doc, lambda: show_passk(doc["report"]))
