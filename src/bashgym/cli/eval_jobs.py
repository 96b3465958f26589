"""`bashgym eval heldout|jobs|job|stop|resume`: evaluations that run in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bashgym.cli.output import Reply, note, safe, table

if TYPE_CHECKING:
    from bashgym.core.settings import Settings

JobId = Annotated[str, typer.Argument(help="Id of an evaluation job.", metavar="JOB_ID")]
KeyEnv = Annotated[
    list[str] | None, typer.Option(help="SIDE=VARIABLE: variable with the key of base, candidate or endpoint.")
]


def heldout(
    *,
    data_file: Annotated[Path | None, typer.Option(help="JSON body, as the API takes it.")] = None,
    model_id: Annotated[str, typer.Option(help="Name under which the verdict is recorded.")] = "",
    dataset: Annotated[Path | None, typer.Option(help="Held-out traces, JSONL with messages.")] = None,
    candidate_url: Annotated[str, typer.Option(help="Endpoint of the candidate.")] = "",
    candidate_model: Annotated[str, typer.Option(help="Its name there.")] = "",
    base_url: Annotated[str, typer.Option(help="Endpoint of the base.")] = "",
    base_model: Annotated[str, typer.Option(help="Its name there.")] = "",
    train_dataset: Annotated[
        Path | None, typer.Option(help="Training rows; the held-out questions must not be among them.")
    ] = None,
    metric: Annotated[str, typer.Option(help="exact_match, name_match, arg_f1 or soft.")] = "exact_match",
    api_key_env: KeyEnv = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; `eval job ID` shows how it goes.")] = False,
) -> Reply:
    """Would the model make the tool calls that held-out traces made? The exit status is 1 if the candidate does not ship."""
    from bashgym.cli.inputs import regular_file
    from bashgym.core.files import read_object
    from bashgym.core.settings import Settings
    from bashgym.evals import heldout as gate

    settings = Settings.from_env()
    body: dict[str, Any] = read_object(regular_file(data_file, "data file")) if data_file else {"metric": metric}
    sides = {"candidate": (candidate_url, candidate_model), "base": (base_url, base_model)}
    for side, (url, name) in sides.items():
        if url:
            body[side] = {"base_url": url, "model": name}
    flags = {"model_id": model_id, "dataset_path": dataset, "train_dataset_path": train_dataset}
    body |= {name: str(value) for name, value in flags.items() if value}
    for side, key in _keys(api_key_env).items():
        body.setdefault(side, {})["api_key"] = key
    job = gate.submit(settings, body)
    if detach:
        return Reply(job)
    doc = gate.shown(followed(settings, job["job_id"]))
    return Reply(doc, lambda: _show(doc["report"]), exit_code=0 if doc["report"]["ship"] else 1)


def list_jobs(
    kind: Annotated[str | None, typer.Option(help="heldout, suite, rollouts, cascade or cascade_distill.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
) -> Reply:
    """Evaluation jobs, the newest first."""
    from bashgym.core.settings import Settings
    from bashgym.evals import jobs

    rows = [jobs.brief(job) for job in jobs.list_jobs(Settings.from_env(), kind, limit)]
    columns = ["job_id", "kind", "status", "share", "text", "created_at"]
    return Reply({"jobs": rows}, lambda: table(rows, columns, empty="no evaluation jobs yet"))


def job(job_id: JobId) -> Reply:
    """How one evaluation job goes, or how it ended."""
    from bashgym.core.settings import Settings
    from bashgym.evals import jobs

    return Reply(jobs.get(Settings.from_env(), job_id))


def stop(job_id: JobId) -> Reply:
    """End a job and everything it started. What it has done so far is kept."""
    from bashgym.core.settings import Settings
    from bashgym.evals import jobs

    return Reply(jobs.brief(jobs.stop(Settings.from_env(), job_id)))


def resume(
    job_id: JobId,
    api_key_env: KeyEnv = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once.")] = False,
) -> Reply:
    """Go on with a job that was stopped or killed. Keys are not kept: name their variables again."""
    from bashgym.core.settings import Settings
    from bashgym.evals import jobs

    settings = Settings.from_env()
    state = jobs.resume(settings, job_id, _keys(api_key_env))
    return Reply(jobs.brief(state) if detach else followed(settings, job_id))


def followed(settings: Settings, job_id: str) -> dict[str, Any]:
    """The job once it has ended. Interrupting this leaves the job running, and says so."""
    from bashgym.cli.progress import shown
    from bashgym.evals import jobs

    try:
        with shown() as progress:
            return jobs.follow(settings, job_id, lambda share, text: progress("evaluation", share, text))
    except KeyboardInterrupt:
        note(f"{job_id} goes on: `bashgym eval job {job_id}` shows it, `bashgym eval stop {job_id}` ends it")
        raise


def _keys(pairs: list[str] | None) -> dict[str, str]:
    from bashgym.core.errors import fail

    found = {}
    for pair in pairs or []:
        side, _, name = pair.partition("=")
        if side not in ("base", "candidate", "endpoint") or not os.environ.get(name):
            text = f"{pair!r} is not SIDE=VARIABLE of a set variable; sides are base, candidate and endpoint"
            raise fail("usage", text, "", ["--api-key-env"])
        found[side] = os.environ[name]
    return found


def _show(report: dict[str, Any]) -> None:
    interval = report["bootstrap"]
    print(
        f"{report['metric']}: {report['base_pass_rate']:.1%} -> {report['candidate_pass_rate']:.1%}, "
        f"95 % interval of the difference {100 * interval['ci_low']:+.1f} to {100 * interval['ci_high']:+.1f}, "
        f"n={report['n']} in {report['n_clusters']} sessions"
    )
    print("ships" if report["ship"] else "does not ship")
    for reason in report["reasons"]:
        print(f"  {safe(reason)}")
