"""Everything that is known before anything starts: the request made whole, the model, the data, the machine, the findings."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bashgym import __version__
from bashgym.core.canonical import digest_file, digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import fail
from bashgym.core.runtime import runtime_digest, runtime_facts, source_root
from bashgym.core.settings import Settings
from bashgym.data.preflight import DatasetQuery, PreflightReport, blocking, check
from bashgym.data.reward_function import absolute, function_facts
from bashgym.data.types import Finding, Severity
from bashgym.methods.distillation import objective
from bashgym.methods.request import TrainingRequest, parse_request
from bashgym.models import adapter_checks
from bashgym.models.catalog import ModelRef, resolve
from bashgym.runs import backend, delivery, targets, warm_start
from bashgym.runs.estimate import estimate
from bashgym.runs.hardware import gpus
from bashgym.runs.teacher import resolve_teacher

OWN_FINDINGS = frozenset({"memory_short", "disk_short", warm_start.CODE}) | delivery.CODES | adapter_checks.CODES
"""Codes of the findings that are made here, beside those of data preflight."""


@dataclass(frozen=True)
class Prepared:
    """A start that nothing stands against, or the reasons why not in `blocked`."""

    request: TrainingRequest
    target: str
    model: ModelRef
    teacher: ModelRef | None
    report: PreflightReport
    runtime: dict[str, Any]
    backend: dict[str, Any]
    estimate: dict[str, Any]
    blocked: list[Finding]
    forced: list[str]

    def recipe_digest(self) -> str:
        """sha256 of the request without who asked and where it is filed."""
        left_out = ("origin", "tracking", "run_id", "idempotency_key", "correlation_id")
        return digest_json({k: v for k, v in self.request.as_dict().items() if k not in left_out})

    def manifest(self, run_id: str) -> dict[str, Any]:
        """manifest.json: the measured identity of the run."""
        report, eval_path = self.report, self.request["eval_dataset_path"]
        return {
            "schema_version": "bashgym.run_manifest.v1",
            "run_id": run_id,
            "created_at": utc_now(),
            "strategy": self.request.strategy,
            "objective": objective(self.request.values),
            "request_digest": digest_json(self.request.as_dict()),
            "recipe_digest": self.recipe_digest(),
            "model": self.model.facts(),
            "teacher": self.teacher.facts() if self.teacher else None,
            "dataset": {
                "path": report.path,
                "digest": report.sha256,
                "rows": report.valid_rows,
                "train_rows": report.train_rows,
                "eval_rows": report.eval_rows,
                "format": report.format,
                "eval_path": eval_path,
                "eval_digest": digest_file(Path(eval_path)) if eval_path else None,
                "tokens": msgspec.to_builtins(report.tokens),
            },
            "environment": {**self.runtime, "digest": runtime_digest(self.runtime)},
            "hardware": {"gpus": gpus(), "compute_target": self.target},
            "code": code_state(),
            "seed": self.request["seed"],
            "backend": self.backend,
            "reward_function": function_facts(self.request.values),
            "forced": self.forced,
            "preflight_digest": digest_json(msgspec.to_builtins(report)),
        }


def whole_body(body: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The body with the environment's defaults filled in and the paths made absolute, so that it means the same everywhere."""
    filled = dict(body)
    if not filled.get("base_model") and settings.base_model:
        filled["base_model"] = settings.base_model
    for name in ("dataset_path", "eval_dataset_path"):
        if isinstance(filled.get(name), str) and filled[name]:
            filled[name] = str(Path(filled[name]).expanduser().absolute())
    if isinstance(mode := filled.get("grpo_reward_mode"), str):
        filled["grpo_reward_mode"] = absolute(mode)
    return filled


def prepare(body: Mapping[str, Any], settings: Settings, *, force: Sequence[str] = ()) -> Prepared:
    """Checks all of it. Raises for what makes the request meaningless; what `--force` may override is in `blocked`."""
    request = parse_request(whole_body(body, settings))
    function_facts(request.values)
    target = targets.normalise_target(request.values)
    runtime = runtime_facts(settings.training_python)
    chosen = backend.resolve_backend(request.values, runtime, len(gpus()))
    backend.check_trainer_args(request.values, settings, runtime)
    model = resolve(str(request["base_model"]), settings, scorers=request.strategy == "reward_model")
    _check_family(request, model)
    if request.strategy == "reward_model":
        warm_start.check_scorer(request.values, model)
    teacher = resolve_teacher(request.values, model, settings)
    if embedding := request.values.get("rwml_embedding_model"):
        resolve(str(embedding), settings)
    report = check(dataset_query(request, model.path))
    need = estimate(
        {**model.facts(), "weight_bytes": model.weight_bytes},
        model.config,
        request.values,
        settings,
        tokens=report.tokens.total if report.tokens else 0,
        passes=report.total_steps / max(1, report.steps_per_epoch),
        teacher=teacher,
    )
    own = [
        *machine_findings(need, request),
        *warm_start.findings(request.values, model, settings),
        *adapter_checks.start_findings(request.values, model.path, model.adapter_path, model.config),
        *delivery.preflight(request.values, settings),
    ]
    report = msgspec.structs.replace(report, findings=[*report.findings, *own])
    blocked = blocking(report, set(force), OWN_FINDINGS)
    return Prepared(request, target, model, teacher, report, runtime, chosen, need, blocked, sorted(set(force)))


def _check_family(request: TrainingRequest, model: ModelRef) -> None:
    stated, expected = model.config.get("model_type"), request["model_type"]
    if expected is not None and stated != expected:
        raise fail(
            "unsupported_model",
            f"model_type is {expected}, and config.json of {model.name} says {stated}",
            hint="Leave model_type out, or name the model that you mean.",
            fields=["model_type"],
        )


def dataset_query(request: TrainingRequest, model_dir: Path | None) -> DatasetQuery:
    """The preflight question that a request asks."""
    eval_path = request["eval_dataset_path"]
    return DatasetQuery(
        path=Path(str(request["dataset_path"])),
        method=request.strategy,
        model_dir=model_dir,
        max_seq_length=int(request["max_seq_length"]),
        assistant_only_loss=request.values.get("assistant_only_loss"),
        completion_only_loss=request.values.get("completion_only_loss"),
        dataset_format=str(request["dataset_format"]),
        column_mapping=request["column_mapping"] or None,
        eval_path=Path(str(eval_path)) if eval_path else None,
        eval_split=float(request["eval_split"]),
        seed=int(request["seed"]),
        batch_size=int(request["batch_size"]),
        gradient_accumulation_steps=int(request["gradient_accumulation_steps"]),
        num_processes=int(request["num_processes"]),
        num_epochs=request["num_epochs"],
        max_steps=request["max_steps"] or -1,
        packing=bool(request.values.get("packing")),
        device="cuda" if gpus() else "cpu",
        options=request.values,
    )


def machine_findings(need: Mapping[str, Any], request: TrainingRequest) -> list[Finding]:
    """Does it fit: memory and disk."""
    found = []
    if not need["fits"]:
        found.append(
            Finding(
                "memory_short",
                Severity.ERROR,
                f"the run needs about {need['memory_bytes'] / 2**30:.1f} GiB of {need['memory_where']} memory; "
                f"{need['memory_available_bytes'] / 2**30:.1f} GiB are free",
                "Lower batch_size or max_seq_length, use LoRA or gradient_checkpointing, or free memory.",
                "batch_size",
            )
        )
    if need["disk_bytes"] > need["disk_free_bytes"]:
        found.append(
            Finding(
                "disk_short",
                Severity.ERROR,
                f"checkpoints and results need about {need['disk_bytes'] / 2**20:.0f} MiB; "
                f"{need['disk_free_bytes'] / 2**20:.0f} MiB are free",
                "Free disk space, lower checkpoint_limit, or use artifact_retention adapter_only.",
                "checkpoint_limit",
            )
        )
    return found


def refuse_blocked(prepared: Prepared) -> None:
    """`preflight_blocked`, naming every blocking finding."""
    if not prepared.blocked:
        return
    lines = [f"{finding.code}: {finding.message}" for finding in prepared.blocked]
    mends = [finding.mend for finding in prepared.blocked if finding.mend]
    codes = " ".join(f"--force {finding.code}" for finding in prepared.blocked)
    raise fail(
        "preflight_blocked",
        f"preflight found {len(lines)} blocking fault{'s' if len(lines) > 1 else ''}: " + "; ".join(lines),
        hint=" ".join(dict.fromkeys(mends)) + f" To start all the same, on record: {codes}.",
        fields=[finding.field for finding in prepared.blocked if finding.field],
    )


def code_state() -> dict[str, Any]:
    """The version of this code, and its git commit when it runs from a checkout."""
    root = source_root().parent
    facts: dict[str, Any] = {"version": __version__, "git_commit": None, "git_dirty": None}
    if not (root / ".git").exists():
        return facts
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
        status = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain", "-uno"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return facts
    return {**facts, "git_commit": commit.stdout.strip(), "git_dirty": bool(status.stdout.strip())}
