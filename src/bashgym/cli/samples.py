"""`training samples`: search what a run generated."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe

RunId = Annotated[str, typer.Argument(help="Id of the run.", metavar="RUN_ID")]


def samples(
    *,
    run_id: RunId,
    grep: Annotated[str | None, typer.Option(help="Only with this text in prompt, completion or answer.")] = None,
    step: Annotated[str | None, typer.Option(help="N, or A:B with both ends; either may be left out.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only rewards from here up.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only rewards up to here.")] = None,
    status: Annotated[str | None, typer.Option(help="Only with this reward status, e.g. passed or timeout.")] = None,
    limit: Annotated[int, typer.Option(help="The last matches, at most so many.", min=1, max=1000)] = 20,
) -> Reply:
    """Search every rollout and answer that a run kept; the newest matches, oldest of them first."""
    from bashgym.workspace import Workspace

    doc = Workspace.open().runs.samples(
        run_id, grep=grep, step=step, min_reward=min_reward, max_reward=max_reward, status=status, limit=limit
    )
    return Reply(doc, lambda: _show(doc))


def _show(doc: dict[str, Any]) -> None:
    from bashgym.runs.samples import text_of

    for sample in doc["samples"]:
        facts = [f"step {sample.get('step')}"]
        facts += [
            f"{name} {sample[name]}" for name in ("reward", "status", "advantage") if sample.get(name) is not None
        ]
        print(safe("  ".join(facts)))
        for name in ("prompt", "completion", "expected"):
            if sample.get(name) not in (None, ""):
                print(f"  {name}: {_indented(text_of(sample[name]))}")
    print(f"{len(doc['samples'])} of {doc['matched']} matches in {doc['scanned']} samples")


def _indented(text: str) -> str:
    """Each line by itself, so that its control characters are escaped and its line breaks stay."""
    return "\n    ".join(safe(line) for line in text.split("\n"))
