"""`bashgym eval ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe, table


def run(
    *,
    model: Annotated[str, typer.Option(help="Model to score: built-in name, Hub id, folder or run id.")],
    suite: Annotated[str, typer.Option(help="terminal or terminal-instruct.")] = "terminal",
    baseline: Annotated[str | None, typer.Option(help="Model to compare with, on the same items.")] = None,
    split: Annotated[str, typer.Option(help="heldout_values, heldout_families or both.")] = "heldout_values",
    seed: Annotated[int, typer.Option(help="Seed of the tasks.", min=0)] = 0,
    per_family: Annotated[int, typer.Option(help="Tasks of each family.", min=1)] = 10,
    limit: Annotated[int | None, typer.Option(help="Only this many items; the report then says smoke.", min=1)] = None,
    attempts: Annotated[int, typer.Option(help="Attempts at each item; more than one needs a temperature.")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.")] = 64,
    eval_id: Annotated[str | None, typer.Option(help="Go on with this unfinished evaluation.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Run that the result is filed under.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; `eval job ID` shows how it goes.")] = False,
) -> Reply:
    """Score a model on executed held-out tasks, and compare it, paired, with a baseline.

    A process of its own does the work: it goes on when this command is interrupted. Stopped, it goes on with --eval-id.
    """
    from bashgym.cli.eval_jobs import followed
    from bashgym.evals import suite_job
    from bashgym.workspace import Workspace

    body: dict[str, Any] = {
        "suite": suite,
        "model": model,
        "baseline": baseline,
        "split": split,
        "seed": seed,
        "per_family": per_family,
        "limit": limit,
        "attempts": attempts,
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": max_new_tokens,
        "eval_id": eval_id,
        "run_id": run_id,
    }
    workspace = Workspace.open()
    job = suite_job.submit(workspace.evals, workspace.settings, body)
    if detach:
        return Reply(job)
    doc = followed(workspace.settings, job["job_id"])["report"]
    return Reply(doc, lambda: _show(doc))


def compare(
    candidate: Annotated[str, typer.Argument(help="Evaluation id or score file.")],
    baseline: Annotated[str, typer.Argument(help="Evaluation id or score file.")],
    n_resamples: Annotated[int, typer.Option(help="Bootstrap samples.", min=1000)] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.", min=0)] = 0,
) -> Reply:
    """Compare what two evaluations scored, paired item by item. Only the same items of the same suite compare."""
    from bashgym.evals.files import compare_files

    ours, theirs = _score_file(candidate), _score_file(baseline)
    found = compare_files(ours, theirs, n_resamples=n_resamples, seed=seed)
    doc = {"candidate": str(ours), "baseline": str(theirs), **found}
    return Reply(doc, lambda: _show_comparison(doc))


def _score_file(name: str) -> Path:
    """A file as it is; an evaluation's candidate scores by its id."""
    if Path(name).is_file():
        return Path(name)
    from bashgym.core.files import read_object
    from bashgym.workspace import Workspace

    report: dict[str, Any] = read_object(Workspace.open().evals.report_path(name))
    return Path(report["scores"]["candidate"]["path"])


def list_evals(limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 50) -> Reply:
    """The evaluations, newest first."""
    from bashgym.workspace import Workspace

    found = Workspace.open().evals.list()[:limit]
    columns = [
        "eval_id",
        "status",
        "suite",
        "split",
        "n_items",
        "candidate",
        "baseline",
        "pass_rate",
        "effect",
        "verdict",
    ]
    return Reply({"evals": found}, lambda: table(found, columns, empty="no evaluations yet: bashgym eval run"))


def show(eval_id: Annotated[str, typer.Argument(help="Evaluation.")]) -> Reply:
    """One evaluation's report, or how far it is."""
    from bashgym.evals import suite_job
    from bashgym.workspace import Workspace

    workspace = Workspace.open()
    doc = suite_job.shown(workspace.evals, workspace.settings, eval_id)
    return Reply(doc, (lambda: _show(doc)) if "pass_rate" in doc else None)


def _show(doc: dict[str, Any]) -> None:
    suite = doc["suite"]
    print(
        f"{doc['eval_id']}  {suite['name']} {suite['split']}, {doc['n_items']} items, {len(suite['clusters'])} families"
    )
    for side, rate in doc["pass_rate"].items():
        interval = f"{_share(rate['ci_low'])} to {_share(rate['ci_high'])}"
        print(f"  {side:<9} {safe(doc[side]['model'])}: {_share(rate['value'])} ({interval})")
    if doc["comparison"]:
        _show_comparison({**doc["comparison"], "flips": doc["flips"]})
    if doc["smoke"]:
        print("  smoke: too few items to judge a model")


def _show_comparison(found: dict[str, Any]) -> None:
    if found.get("summary"):
        print(f"  {safe(found['summary'])}")
    flips = found.get("flips") or {}
    print(f"  items gained {len(flips.get('gained', []))}, lost {len(flips.get('lost', []))}")


def _share(value: object) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, int | float) else "-"
