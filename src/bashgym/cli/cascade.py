"""`bashgym cascade`: one stage per domain, then one student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe, table

CascadeId = Annotated[str | None, typer.Argument(help="Id of a cascade; the newest by default.", metavar="CASCADE_ID")]
DataFile = Annotated[Path | None, typer.Option(help="JSON body, as the API takes it.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of every run's request; repeatable.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow it to its end; interrupting that leaves it running.")]
_COLUMNS = ["domain", "strategy", "status", "rows", "run_id", "card_ok"]


def start(
    *,
    data_file: DataFile = None,
    base_model: Annotated[str | None, typer.Option(help="What the first stage starts from.")] = None,
    dataset_path: Annotated[Path | None, typer.Option(help="Rows of all domains.")] = None,
    domain: Annotated[list[str] | None, typer.Option(help="Domain to train, in this order; repeatable.")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="DOMAIN=STRATEGY; sft by default. Repeatable.")] = None,
    train_steps_per_stage: Annotated[int | None, typer.Option(help="Optimizer steps of each stage.")] = None,
    min_domain_examples: Annotated[int | None, typer.Option(help="A domain with fewer rows is skipped.")] = None,
    set_: Sets = None,
    wait: Wait = False,
) -> Reply:
    """Train domain after domain, each stage a run of its own with a RunCard. Everything is checked before the first begins."""
    from bashgym.runs import cascade
    from bashgym.workspace import Workspace

    named = {
        "base_model": base_model,
        "dataset_path": str(dataset_path) if dataset_path else None,
        "domains": domain,
        "stage_strategies": _pairs(strategy) or None,
        "train_steps_per_stage": train_steps_per_stage,
        "min_domain_examples": min_domain_examples,
    }
    service = Workspace.open().runs
    doc = cascade.submit(service, _body(data_file, named, set_))
    if wait:
        _followed(service, doc["cascade_id"])
        doc = cascade.status(service, doc["cascade_id"])
    return _reply(doc)


def status(
    cascade_id: CascadeId = None,
    output: Annotated[Path | None, typer.Option(help="File for the record, as evidence of a RunCard.")] = None,
) -> Reply:
    """Where a cascade stands, stage by stage, each card judged as it is now."""
    from bashgym.core.files import atomic_write_json
    from bashgym.runs import cascade
    from bashgym.workspace import Workspace

    doc = cascade.status(Workspace.open().runs, cascade_id)
    if output:
        atomic_write_json(output, doc)
    return _reply(doc)


def stop(cascade_id: CascadeId = None) -> Reply:
    """End a cascade and the run of its stage. `eval resume ID` goes on with it."""
    from bashgym.runs import cascade
    from bashgym.workspace import Workspace

    return _reply(cascade.stop(Workspace.open().runs, cascade_id))


def distill(
    *,
    data_file: DataFile = None,
    cascade_id: Annotated[str | None, typer.Option(help="A completed cascade; the newest by default.")] = None,
    student_model: Annotated[str | None, typer.Option(help="The student.")] = None,
    train_steps: Annotated[int | None, typer.Option(help="Optimizer steps of all runs together.")] = None,
    set_: Sets = None,
    wait: Wait = False,
) -> Reply:
    """Distil one student from the stages: a run per domain, each with that domain's teacher, each going on from the last."""
    from bashgym.runs import cascade_distill
    from bashgym.workspace import Workspace

    named = {"cascade_id": cascade_id, "student_model": student_model, "train_steps": train_steps}
    service = Workspace.open().runs
    doc = cascade_distill.submit(service, _body(data_file, named, set_))
    if wait:
        _followed(service, doc["distill_id"])
        doc = cascade_distill.status(service, doc["distill_id"])
    return _reply(doc)


def distill_status(
    distill_id: Annotated[str | None, typer.Argument(help="Id of a distillation.", metavar="DISTILL_ID")] = None,
) -> Reply:
    """Where a distillation stands, run by run."""
    from bashgym.runs import cascade_distill
    from bashgym.workspace import Workspace

    return _reply(cascade_distill.status(Workspace.open().runs, distill_id))


def distill_stop(
    distill_id: Annotated[str | None, typer.Argument(help="Id of a distillation.", metavar="DISTILL_ID")] = None,
) -> Reply:
    """End a distillation and its run."""
    from bashgym.runs import cascade_distill
    from bashgym.workspace import Workspace

    return _reply(cascade_distill.stop(Workspace.open().runs, distill_id))


def _body(path: Path | None, named: dict[str, Any], sets: list[str] | None) -> dict[str, Any]:
    from bashgym.cli.inputs import merge, parse_sets, regular_file
    from bashgym.core.files import read_object

    body = merge(read_object(regular_file(path, "data file")) if path else {}, named)
    return merge(body, {"settings": {**body.get("settings", {}), **parse_sets(sets)} if sets else None})


def _pairs(items: list[str] | None) -> dict[str, str]:
    from bashgym.core.errors import fail

    for item in items or []:
        if not all(item.partition("=")):
            raise fail("usage", f"--strategy needs DOMAIN=STRATEGY, not {item[:80]!r}", fields=["--strategy"])
    return dict(item.split("=", 1) for item in items or [])


def _followed(service: Any, job_id: str) -> None:
    from bashgym.cli.eval_jobs import followed

    followed(service.settings, job_id)


def _reply(doc: dict[str, Any]) -> Reply:
    def show() -> None:
        print(f"{safe(doc.get('distill_id') or doc['cascade_id'])}: {doc['status']}  {safe(doc['text'])}")
        table(doc["stages"], _COLUMNS)
        for line in doc.get("next", []):
            print(f"  {safe(line)}")

    return Reply(doc, show)
