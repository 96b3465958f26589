"""Cascades: one stage per domain, each an ordinary run from the model of the stage before, each with its own RunCard.

Owns the request, the record `bashgym.cascade.v1` under `<home>/cascades/<id>/`, and what a cascade can be told. The work is
a detached job (`evals.jobs`): it is stopped, resumed and found interrupted as every job is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object, writable_dir
from bashgym.core.ids import check_identifier
from bashgym.core.settings import Settings
from bashgym.evals import jobs
from bashgym.evals.folder import EvalStatus
from bashgym.evals.wire import decode
from bashgym.runs import cascade_domains
from bashgym.runs.cascade_stages import Driver, Stage, judge_card, new_stage, stop_run, write_card
from bashgym.runs.service import RunService

SCHEMA = "bashgym.cascade.v1"
KIND, DISTILL = "cascade", "cascade_distill"
STRATEGIES = ("sft", "dpo", "grpo", "rlvr")
OWNED = ("strategy", "base_model", "dataset_path", "max_steps", "run_id", "idempotency_key", "correlation_id")
"""Fields of a training request that a cascade sets itself."""
Meta = msgspec.Meta


class CascadeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/cascade/start."""

    base_model: str
    dataset_path: str
    domains: list[str] = msgspec.field(default_factory=lambda: list(cascade_domains.DEFAULT))
    """Trained in this order."""
    stage_strategies: dict[str, str] = {}
    """Domain -> strategy; sft where none is given."""
    stage_datasets: dict[str, str] = {}
    """Domain -> file, where its rows are not in dataset_path."""
    train_steps_per_stage: Annotated[int, Meta(ge=10, le=5000)] = 200
    min_domain_examples: Annotated[int, Meta(ge=1)] = 10
    """A domain with fewer rows is skipped, on record."""
    learning_rate: Annotated[float, Meta(gt=0, le=1)] = 2e-5
    lora_r: Annotated[int, Meta(ge=4, le=128)] = 16
    lora_alpha: Annotated[int, Meta(ge=8, le=256)] = 32
    load_in_4bit: bool | None = None
    grpo_num_generations: Annotated[int, Meta(ge=2, le=16)] = 4
    temperature: Annotated[float, Meta(ge=0.1, le=2)] = 0.7
    """Of sampling, in grpo and rlvr stages."""
    grpo_reward_mode: str | None = None
    use_remote_ssh: bool = False
    mode: str = "real"
    settings: dict[str, Any] = {}
    """Further fields of every stage's training request."""


def submit(service: RunService, body: Mapping[str, Any]) -> dict[str, Any]:
    """Parts the data, checks every stage as its start would, then starts the driver; the record, at once.

    `request_in_progress` beside a live cascade; whatever a training start refuses, by stage.
    """
    request, settings = checked(body), service.settings
    with exclusive(settings):
        cascade_id = jobs.new_id(KIND)
        folder = writable_dir(home(settings) / cascade_id)
        try:
            doc = _plan(service, request, cascade_id, folder)
            atomic_write_json(folder / "cascade.json", doc)
            jobs.submit(settings, KIND, msgspec.to_builtins(request), job_id=cascade_id)
        except BaseException:
            shutil.rmtree(folder)
            raise
    return status(service, cascade_id)


def checked(body: Mapping[str, Any]) -> CascadeRequest:
    """The request in `body`, with absolute paths."""
    request = decode(body, CascadeRequest)
    if request.mode != "real":
        text = f"mode {request.mode[:40]!r} is not here: it would train nothing and invent the rewards"
        raise fail("invalid_field", text, "Leave mode out: every cascade is real.", ["mode"])
    cascade_domains.check_domains(request.domains)
    for name, strategy in request.stage_strategies.items():
        if strategy not in STRATEGIES:
            text = f"stage_strategies.{name[:80]} is {strategy[:40]!r}, not one of {', '.join(STRATEGIES)}"
            raise fail("invalid_field", text, fields=["stage_strategies"])
    for field in ("stage_strategies", "stage_datasets"):
        if unknown := getattr(request, field).keys() - set(request.domains):
            text = f"{field} names {min(unknown)[:80]!r}, which is not among the domains"
            raise fail("invalid_field", text, fields=[field])
    refuse_owned(request.settings)
    request.dataset_path = _absolute(request.dataset_path)
    request.stage_datasets = {name: _absolute(path) for name, path in request.stage_datasets.items()}
    return request


def refuse_owned(given: Mapping[str, Any]) -> None:
    """`field_has_flag` for what a cascade sets itself."""
    if wrong := [name for name in OWNED if name in given]:
        raise fail("field_has_flag", f"settings may not hold {', '.join(wrong)}: a stage has its own", fields=wrong)


def status(service: RunService, cascade_id: str | None = None) -> dict[str, Any]:
    """The record, how its job stands, and each card as it is judged now. By default the newest. `eval_not_found`."""
    job = newest(service.settings, KIND, cascade_id)
    doc = read(service.settings, job["job_id"])
    for stage in doc["stages"]:
        _look(service, stage, judging=job["status"] != EvalStatus.RUNNING)
    found = {name: job[name] for name in ("status", "share", "text", "error")}
    return {**doc, **found, "next": _next(doc, found["status"])}


def stop(service: RunService, cascade_id: str | None = None) -> dict[str, Any]:
    """Ends the driver and the run of its stage; `run_finished` if the cascade has ended."""
    cascade_id = newest(service.settings, KIND, cascade_id)["job_id"]
    jobs.stop(service.settings, cascade_id)
    # A driver that was killed has left its run behind.
    doc = read(service.settings, cascade_id)
    end_stages(service, doc["stages"])
    atomic_write_json(home(service.settings) / cascade_id / "cascade.json", doc)
    return status(service, cascade_id)


def end_stages(service: RunService, stages: list[Stage]) -> None:
    """Stops what a driver left behind."""
    for stage in stages:
        if stage["status"] in ("running", "cancelled"):
            stop_run(service, stage)
            stage["status"] = "cancelled"


def run(folder: Path, _: dict[str, Any], __: dict[str, str], progress: jobs.Progress) -> dict[str, Any]:
    """The job: drives the stages and gives the record. Called in the worker."""
    service = own_service()
    doc = read(service.settings, folder.name)
    path = home(service.settings) / folder.name / "cascade.json"
    driver = Driver(
        service,
        doc["stages"],
        lambda: atomic_write_json(path, doc),
        progress,
        lambda stage: write_card(service, stage),
    )
    doc["run_id"] = driver.drive(doc["base_model"])
    atomic_write_json(path, doc)
    return doc


def home(settings: Settings) -> Path:
    """Where the records are."""
    return settings.home / "cascades"


def read(settings: Settings, cascade_id: str) -> dict[str, Any]:
    """A cascade's record; `eval_not_found`."""
    path = home(settings) / check_identifier(cascade_id, "cascade_id") / "cascade.json"
    if not path.is_file():
        raise fail("eval_not_found", f"no cascade {cascade_id}", fields=["cascade_id"])
    return read_object(path)


def newest(settings: Settings, kind: str, job_id: str | None) -> dict[str, Any]:
    """That job, or the newest of its kind; `eval_not_found`."""
    if job_id:
        return jobs.get(settings, job_id, kind)
    if not (found := jobs.list_jobs(settings, kind, 1)):
        raise fail("eval_not_found", f"there is no {kind.replace('_', ' ')} yet", "`bashgym cascade start` begins one.")
    return found[0]


@contextmanager
def exclusive(settings: Settings) -> Iterator[None]:
    """Held while one is begun: `request_in_progress` if a cascade or its distillation is live."""
    handle = os.open(writable_dir(home(settings)) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for kind in (KIND, DISTILL):
            for job in jobs.list_jobs(settings, kind, 1000):
                if job["status"] == EvalStatus.RUNNING:
                    text = f"{job['job_id']} is running; one cascade trains at a time"
                    raise fail("request_in_progress", text, "Wait for it, or stop it.", ["cascade_id"])
        yield
    finally:
        os.close(handle)


def own_service() -> RunService:
    """Of the worker, whose settings are those of its environment."""
    from bashgym.ledger.service import Ledger

    settings = Settings.from_env()
    return RunService(settings, Ledger(settings))


def _plan(service: RunService, request: CascadeRequest, cascade_id: str, folder: Path) -> dict[str, Any]:
    """The record before anything has begun: data parted and frozen, every stage checked."""
    data, sources = _parts(request, folder)
    stages = [_stage(request, name, data[name], cascade_id) for name in request.domains]
    live = [stage for stage in stages if stage["status"] != "skipped"]
    if not live:
        counts = ", ".join(f"{stage['domain']} {stage['rows']}" for stage in stages)
        text = f"no domain has {request.min_domain_examples} rows: {counts}"
        raise fail("invalid_field", text, "Give more rows, or lower min_domain_examples.", ["dataset_path"])
    for stage in live:
        check_stage(service, stage, request.base_model)
    return {
        "schema_version": SCHEMA,
        "cascade_id": cascade_id,
        "created_at": utc_now(),
        "base_model": request.base_model,
        "datasets": sources,
        "stages": stages,
        "run_id": None,
    }


def check_stage(service: RunService, stage: Stage, model: str) -> None:
    """The preflight of a stage; what it refuses names the stage."""
    try:
        service.start({**stage["request"], "base_model": model}, dry_run=True)
    except BashGymError as error:
        raise fail(error.code, f"stage {stage['domain']}: {error.message}", error.hint, error.fields) from error


def _parts(request: CascadeRequest, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Domain -> its rows, and the files that they came from."""
    groups: dict[str, list[str]] = {}
    for name in request.domains:
        groups.setdefault(request.stage_datasets.get(name, request.dataset_path), []).append(name)
    parts: dict[str, Any] = {}
    sources, seen = [], cascade_domains.Seen()
    for path, names in groups.items():
        found = cascade_domains.part(Path(path), names, folder, seen)
        parts |= found.pop("parts")
        sources.append(found)
    return parts, sources


def _stage(request: CascadeRequest, name: str, data: Mapping[str, Any], cascade_id: str) -> Stage:
    strategy = request.stage_strategies.get(name, "sft")
    body: dict[str, Any] = {
        "strategy": strategy,
        "dataset_path": data["path"],
        "max_steps": request.train_steps_per_stage,
        "learning_rate": request.learning_rate,
        "lora_rank": request.lora_r,
        "lora_alpha": request.lora_alpha,
        "artifact_retention": "deployable",
        "auto_export_gguf": False,
        "correlation_id": f"cascade:{cascade_id}",
    }
    if strategy in ("grpo", "rlvr"):
        body |= {"grpo_num_generations": request.grpo_num_generations, "grpo_temperature": request.temperature}
        body |= {"grpo_reward_mode": request.grpo_reward_mode} if request.grpo_reward_mode else {}
    body |= {"load_in_4bit": request.load_in_4bit} if request.load_in_4bit is not None else {}
    body |= {"use_remote_ssh": True} if request.use_remote_ssh else {}
    stage = new_stage(name, strategy, data["rows"], body | request.settings)
    stage |= {"card_path": None, "card_ok": None, "card": None}
    if data["rows"] < request.min_domain_examples:
        stage["status"] = "skipped"
        text = f"{data['rows']} rows; min_domain_examples is {request.min_domain_examples}"
        stage["error"] = fail("invalid_field", text, fields=["min_domain_examples"]).detail()
    return stage


def _look(service: RunService, stage: Stage, judging: bool) -> None:
    if stage["status"] == "running" and stage["run_id"]:
        try:
            stage["run_status"] = service.get(stage["run_id"])["status"]
        except BashGymError as error:
            stage["run_status"] = error.message
    if judging and stage["card_path"]:
        judge_card(stage, service.settings.models_dir)


def _next(doc: Mapping[str, Any], state: str) -> list[str]:
    """What can be done now."""
    name = doc["cascade_id"]
    if state == EvalStatus.RUNNING:
        return [f"bashgym cascade status {name}", f"bashgym cascade stop {name}"]
    if state != EvalStatus.COMPLETED:
        return [f"bashgym eval resume {name}"]
    return [
        f"bashgym cascade distill --cascade-id {name} --student-model <model>",
        f"bashgym cascade status {name} --output cascade.json",
        f"bashgym training runcard create --run-id {doc['run_id']} --training-method cascade --base-model "
        f"{doc['base_model']} --compute-target local --output cascade_card.json --evidence stage_run_cards=cascade.json "
        "--evidence stage_gates=cascade.json",
    ]


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
