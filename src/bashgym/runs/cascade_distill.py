"""MOPD: one student from the models of a completed cascade's stages.

A distillation run has one teacher. So the student is taught domain by domain, each run by that domain's stage on its own
rows, each from the student of the run before; the record says so. Steps are shared out by rows. Owns the request, the rows
as prompts with answers, and the record `bashgym.cascade_distill.v1` beside the cascade's.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_bytes, atomic_write_json, read_object, writable_dir
from bashgym.data.formats import iter_examples
from bashgym.data.prompts import iter_prompt_rows
from bashgym.evals import jobs
from bashgym.evals.folder import EvalStatus
from bashgym.evals.wire import decode
from bashgym.runs import cascade
from bashgym.runs.cascade_stages import Driver, Stage, new_stage, trained_model
from bashgym.runs.service import RunService

SCHEMA = "bashgym.cascade_distill.v1"
SCHEDULE = (
    "sequential: one teacher a run, on the rows of its domain; each run goes on with the student of the one before"
)
Meta = msgspec.Meta
Row = dict[str, Any]


class DistillRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/cascade/distill."""

    student_model: str
    cascade_id: str | None = None
    """The newest where none is named."""
    distillation_alpha: Annotated[float, Meta(ge=0, le=1)] = 0.5
    temperature: Annotated[float, Meta(ge=0.1, le=10)] = 2.0
    train_steps: Annotated[int, Meta(ge=1, le=100_000)] = 500
    """Of all runs together."""
    use_remote_ssh: bool = False
    settings: dict[str, Any] = {}
    """Further fields of every run's training request."""


def submit(service: RunService, body: Mapping[str, Any]) -> dict[str, Any]:
    """Starts the distillation and gives its record. `invalid_transition` unless the cascade is completed."""
    request, settings = decode(body, DistillRequest), service.settings
    cascade.refuse_owned(request.settings)
    with cascade.exclusive(settings):
        job = cascade.newest(settings, cascade.KIND, request.cascade_id)
        if job["status"] != EvalStatus.COMPLETED:
            text = f"{job['job_id']} is {job['status']}; only a completed cascade has teachers"
            raise fail("invalid_transition", text, "Let it end, or resume it.", ["cascade_id"])
        distill_id = jobs.new_id("distill")
        path = writable_dir(cascade.home(settings) / job["job_id"] / distill_id) / "distill.json"
        try:
            doc = _plan(service, request, cascade.read(settings, job["job_id"]), path.parent)
            atomic_write_json(path, doc)
            jobs.submit(settings, cascade.DISTILL, {"path": str(path)}, job_id=distill_id)
        except BaseException:
            shutil.rmtree(path.parent)
            raise
    return status(service, distill_id)


def status(service: RunService, distill_id: str | None = None) -> dict[str, Any]:
    """The record and how its job stands; by default the newest. `eval_not_found`."""
    job = cascade.newest(service.settings, cascade.DISTILL, distill_id)
    found = {name: job[name] for name in ("status", "share", "text", "error")}
    return {**read_object(Path(job["body"]["path"])), **found}


def stop(service: RunService, distill_id: str | None = None) -> dict[str, Any]:
    """Ends the driver and its run; `run_finished` if it has ended."""
    job = cascade.newest(service.settings, cascade.DISTILL, distill_id)
    jobs.stop(service.settings, job["job_id"])
    doc: dict[str, Any] = read_object(path := Path(job["body"]["path"]))
    cascade.end_stages(service, doc["stages"])
    atomic_write_json(path, doc)
    return status(service, job["job_id"])


def run(_: Path, body: dict[str, Any], __: dict[str, str], progress: jobs.Progress) -> dict[str, Any]:
    """The job. Called in the worker."""
    path = Path(body["path"])
    doc: dict[str, Any] = read_object(path)
    driver = Driver(cascade.own_service(), doc["stages"], lambda: atomic_write_json(path, doc), progress)
    doc["run_id"] = driver.drive(doc["student_model"])
    atomic_write_json(path, doc)
    return doc


def _plan(service: RunService, request: DistillRequest, parent: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    taught = [stage for stage in parent["stages"] if stage["status"] == "completed"]
    rows = {stage["domain"]: list(_rows(stage)) for stage in taught}
    total = sum(map(len, rows.values()))
    whole = folder / "rows.jsonl"
    _write(whole, [row for part in rows.values() for row in part])
    stages = [_stage(service, request, stage, rows, folder) for stage in taught]
    for stage in stages:
        if stage["status"] != "skipped":
            cascade.check_stage(service, stage, request.student_model)
    if not total:
        text = "no row of the cascade has an answer in words for the student to be shown"
        raise fail("invalid_field", text, "Distil from a cascade with text answers.", ["cascade_id"])
    return {
        "schema_version": SCHEMA,
        "distill_id": folder.name,
        "cascade_id": parent["cascade_id"],
        "created_at": utc_now(),
        "student_model": request.student_model,
        "schedule": SCHEDULE,
        "dataset": {"path": str(whole), "sha256": digest_file(whole), "rows": total},
        "stages": stages,
        "run_id": None,
    }


def _stage(
    service: RunService, request: DistillRequest, taught: Stage, rows_of: Mapping[str, list[Row]], folder: Path
) -> Stage:
    rows, total = rows_of[taught["domain"]], sum(map(len, rows_of.values()))
    path = folder / f"{taught['domain']}.jsonl"
    _write(path, rows)
    teacher = trained_model(service.locate(taught["run_id"]))
    body = {
        "strategy": "distillation",
        "dataset_path": str(path),
        "teacher_model": teacher,
        "distillation_alpha": request.distillation_alpha,
        "teacher_temperature": request.temperature,
        "max_steps": max(1, round(request.train_steps * len(rows) / max(1, total))),
        "artifact_retention": "deployable",
        "auto_export_gguf": False,
        "wrap_prompts": True,
        "correlation_id": f"cascade:{folder.name}",
        **({"use_remote_ssh": True} if request.use_remote_ssh else {}),
        **request.settings,
    }
    stage = new_stage(taught["domain"], "distillation", len(rows), body)
    stage |= {"teacher": teacher, "teacher_run": taught["run_id"], "left_out": taught["rows"] - len(rows)}
    if not rows:
        text = (
            f"no row of {taught['domain']} has an answer in words: {taught['strategy']} rows hold prompts or tool calls"
        )
        stage |= {"status": "skipped", "error": fail("invalid_field", text, fields=["cascade_id"]).detail()}
    return stage


def _rows(stage: Stage) -> Iterator[Row]:
    """A stage's rows as prompt and answer in words; those without one (tool calls only, prompts only) are left out."""
    path, strategy = Path(stage["request"]["dataset_path"]), stage["strategy"]
    mapping = stage["request"].get("column_mapping")
    if strategy == "dpo":
        for pair in iter_prompt_rows(path, "dpo", column_mapping=mapping):
            yield from _row(pair.prompt, pair.sides["chosen"])
    elif strategy == "sft":
        for example in iter_examples(path, [], column_mapping=mapping):
            if example.messages is not None:
                yield from _row([], example.messages)
            elif example.prompt is not None and example.completion is not None:
                yield from _row(example.prompt, example.completion)


def _row(prompt: list[Row] | str, answer: list[Row] | str) -> Iterator[Row]:
    """Up to the last assistant turn that says something."""
    if isinstance(answer, str):
        yield {"prompt": prompt, "teacher_response": answer}
        return
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    turns = [*asked, *answer]
    spoken = [at for at, turn in enumerate(turns) if turn["role"] == "assistant" and str(turn["content"] or "").strip()]
    if spoken and spoken[-1] >= max(1, len(asked)):
        at = spoken[-1]
        yield {"prompt": turns[:at], "teacher_response": turns[at]["content"]}


def _write(path: Path, rows: list[Row]) -> None:
    atomic_write_bytes(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
