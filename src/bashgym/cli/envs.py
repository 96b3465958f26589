"""`bashgym env ...`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, note, safe, table

Output = Annotated[Path | None, typer.Option(help="File for the environments, one JSON object a line.")]
Environments = Annotated[Path, typer.Argument(help="File of environments, one JSON object a line.")]
Arguments = Annotated[str, typer.Option("--config", help="JSON object with the generator's own arguments.")]


def from_harbor(
    source: Annotated[Path, typer.Argument(help="A Harbor task folder, or a folder of them.")],
    output: Output = None,
    without_image: Annotated[
        bool, typer.Option(help="Drop the task's container image, on record: for tasks that need no more than a shell.")
    ] = False,
) -> Reply:
    """Turn Harbor tasks into environments. Their tests stay hidden from the model; solutions are not read."""
    from bashgym.envs.adapters.harbor import load

    return _write(load(source, without_image=without_image), output)


def from_reasoning_gym(
    name: Annotated[str, typer.Argument(help="Data set of reasoning-gym, such as chain_sum.")],
    n: Annotated[int, typer.Option("-n", help="Tasks.", min=1)] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the tasks.", min=0)] = 0,
    config: Arguments = "{}",
    output: Output = None,
) -> Reply:
    """Turn tasks of reasoning-gym into environments; its own scorer judges the answer, in the sandbox."""
    from bashgym.envs.adapters.scored import reasoning_gym

    return _write(reasoning_gym(name, n, seed, _object(config)), output)


def from_verifiers(
    source: Annotated[Path, typer.Argument(help="Python file that defines load_environment. It is run.")],
    n: Annotated[int | None, typer.Option("-n", help="At most this many rows.", min=1)] = None,
    config: Arguments = "{}",
    output: Output = None,
) -> Reply:
    """Turn a single-turn `verifiers` environment into environments; its rubric judges the answer, in the sandbox."""
    from bashgym.envs.adapters.scored import verifiers

    return _write(verifiers(source, n, _object(config)), output)


def check(environments: Environments) -> Reply:
    """Check a file of environments, and run each once untouched: a verifier that passes an empty workspace is no verifier."""
    from bashgym.envs.adapters.files import read_environments
    from bashgym.envs.rollout import run_episode

    rows: list[dict[str, Any]] = []
    for spec in read_environments(environments):
        result = run_episode(spec, [])
        judges = not result.passed and str(result.verifier_status) in ("failed", "timeout")
        status, detail = str(result.verifier_status), safe(result.detail[:300])
        rows.append({"id": spec.id, "ok": judges, "untouched": status, "detail": detail})
    doc = {"schema_version": "bashgym.environment_check.v1", "ok": all(row["ok"] for row in rows), "environments": rows}
    return Reply(doc, lambda: table(rows, ["id", "ok", "untouched", "detail"]), exit_code=0 if doc["ok"] else 2)


def serve(
    environments: Environments,
    host: Annotated[str, typer.Option(help="Address to bind: loopback only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 lets the system choose.", min=0, max=65535)] = 8010,
) -> Reply:
    """Serve environments over the OpenEnv protocol until interrupted."""
    from bashgym.api.server import serve_environments
    from bashgym.envs.adapters.files import read_environments

    serve_environments(read_environments(environments), host, port, announce=lambda url: note(f"serving {url}"))
    return Reply({"ok": True}, lambda: None)


def _write(specs: list[Any], output: Path | None) -> Reply:
    lines = [json.dumps(spec.to_dict(), ensure_ascii=False) for spec in specs]
    doc: dict[str, Any] = {
        "n": len(specs),
        "ids": [spec.id for spec in specs],
        "output": str(output) if output else None,
    }
    if output is None:
        return Reply({**doc, "environments": [spec.to_dict() for spec in specs]}, lambda: print("\n".join(lines)))
    from bashgym.core.files import atomic_write_bytes

    atomic_write_bytes(output, "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass"))
    return Reply(doc, lambda: print(f"{len(specs)} environments in {safe(str(output))}"))


def _object(text: str) -> dict[str, Any]:
    from bashgym.core.errors import fail

    try:
        value = json.loads(text)
    except ValueError as error:
        raise fail("invalid_field", f"--config is not JSON: {error}", fields=["config"]) from error
    if not isinstance(value, dict):
        raise fail("invalid_field", "--config is not a JSON object", fields=["config"])
    return value
