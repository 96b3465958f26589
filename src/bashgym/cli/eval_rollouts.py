"""`bashgym eval rollouts|local-rollouts`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe

Data = Annotated[Path | None, typer.Option("--data-file", help="JSON body, as the API takes it.")]


def rollouts(
    *,
    data_file: Data = None,
    environments: Annotated[Path | None, typer.Option(help="File of environments, one a line.")] = None,
    suite: Annotated[str, typer.Option(help="Instead of a file: terminal, the built-in held-out tasks.")] = "",
    limit: Annotated[int | None, typer.Option(help="Only the first so many environments.", min=1)] = None,
    model: Annotated[
        str, typer.Option(help="Local model to serve meanwhile: built-in, folder, Hub id or run id.")
    ] = "",
    endpoint: Annotated[str, typer.Option(help="OpenAI-compatible endpoint, instead of --model.")] = "",
    endpoint_model: Annotated[str, typer.Option(help="Model name on the endpoint.")] = "",
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the endpoint's key.")] = None,
    model_id: Annotated[str, typer.Option(help="Name under which the result is recorded.")] = "",
    attempts: Annotated[int | None, typer.Option(help="Attempts at each environment.", min=1, max=32)] = None,
    k: Annotated[list[int] | None, typer.Option(help="Report pass@k; may be repeated.", min=1)] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", min=0, max=2)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the attempts.", min=0)] = None,
    plain: Annotated[bool, typer.Option("--plain-json", help="Ask for JSON objects instead of tool calls.")] = False,
    rollouts_path: Annotated[
        Path | None, typer.Option(help="Keep finished episodes here, and go on from them.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Write a DPPO replay with log probabilities here.")] = None,
    output: Annotated[Path | None, typer.Option(help="File for the whole document, transcripts included.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; `eval job ID` shows how it goes.")] = False,
) -> Reply:
    """Let a model play environments in the sandbox, and report pass@k with intervals.

    A process of its own does the work: it goes on when this command is interrupted. Stopped, it goes on with `eval resume`.
    """
    from bashgym.cli.eval_jobs import followed
    from bashgym.cli.inputs import merge, regular_file
    from bashgym.core.errors import fail
    from bashgym.core.files import atomic_write_json, read_object
    from bashgym.core.settings import Settings
    from bashgym.evals import jobs, rollout_job

    body: dict[str, Any] = read_object(regular_file(data_file, "data file")) if data_file else {}
    named: dict[str, Any] = {
        "environments": _environments(environments, suite, limit),
        "attempts_per_environment": attempts,
        "k_values": k or None,
        "temperature": temperature,
        "seed": seed,
        "model_id": model_id or None,
        "use_tool_calling": False if plain else None,
        "rollouts_path": str(rollouts_path) if rollouts_path else None,
        "dppo_replay_output_path": str(replay) if replay else None,
        "capture_logprobs": True if replay else None,
    }
    body = merge(body, named)
    if endpoint:
        body["endpoint"] = {"base_url": endpoint, "model": endpoint_model}
    if bool(model) == ("endpoint" in body):
        raise fail("usage", "give either --model or an endpoint", fields=["--model", "--endpoint"])
    if api_key_env and not model:
        body["endpoint"] = {**body["endpoint"], "api_key": _key(api_key_env)}
    settings = Settings.from_env()
    job = rollout_job.submit(settings, body, model)
    if detach:
        return Reply(jobs.brief(job))
    doc = followed(settings, job["job_id"])["report"]
    if output:
        atomic_write_json(output, doc)
    return Reply(doc, lambda: _show(doc))


def _environments(path: Path | None, suite: str, limit: int | None) -> list[dict[str, Any]] | None:
    """Those of a file or of a suite; None if neither is asked for. `usage` for both."""
    from bashgym.core.errors import fail

    if path and suite:
        raise fail("usage", "give either --environments or --suite", fields=["--environments", "--suite"])
    if path:
        from bashgym.envs.adapters.files import read_environments

        return [spec.to_dict() for spec in read_environments(path)][:limit]
    if suite:
        from bashgym.evals import suites

        return [item.payload.spec.to_dict() for item in suites.load(suite, limit=limit).items]
    return None


def _key(name: str) -> str:
    from bashgym.core.errors import fail

    if not (key := os.environ.get(name)):
        raise fail("usage", f"the variable {name} is not set", fields=["--api-key-env"])
    return key


def local_rollouts(
    data_file: Annotated[Path, typer.Option("--data-file", help="JSON body, as the API takes it.")],
) -> Reply:
    """Run given commands in the sandbox and judge them: pass@k of somebody else's attempts."""
    from bashgym.cli.inputs import regular_file
    from bashgym.core.files import read_object
    from bashgym.core.settings import Settings
    from bashgym.evals.local_rollouts import local_rollouts as run

    doc = run(Settings.from_env(), read_object(regular_file(data_file, "data file")))
    return Reply(doc, lambda: _show(doc))


def _show(doc: dict[str, Any]) -> None:
    from bashgym.cli.eval_gates import show_passk

    show_passk(doc["report"])
    status = doc["report"]["attempt_summary"]["verifier_status_distribution"]
    print("  ".join(f"{name} {n}" for name, n in status.items()))
    for line in doc["warnings"]:
        print(f"warning: {safe(line)}")
