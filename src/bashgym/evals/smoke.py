"""The smoke bundle `bashgym.backend_smoke_bundle.v1`: is a replay ready for an update, and who could carry it out here?

Owns: the checks, the verdict and the five files. The launch plan is `launch`'s. A verdict is about what was looked at: a
backend that is installed and has nothing that reads a replay is not ready.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_bytes, atomic_write_json, writable_dir
from bashgym.core.settings import Settings
from bashgym.data.replay_records import ReplayRecord, read_records
from bashgym.evals import launch
from bashgym.evals.replay import summarize
from bashgym.evals.wire import decode

SCHEMA = "bashgym.backend_smoke_bundle.v1"
READINESS, SUMMARY = "backend_smoke_readiness.json", "dppo_replay_summary.json"
PROBE, ENV, SCRIPT = "world_model_backend_probe.json", "dppo_launch_env.json", "launch_dppo_smoke.sh"
EX_UNAVAILABLE = 69

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
FromZero = Annotated[float, msgspec.Meta(ge=0)]


class SmokeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `dppo-replay/smoke-plan`; bounds of the rwml_* fields are those of a training request."""

    replay_path: str
    output_dir: str
    base_model: str
    backend: str = "auto"
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    n_gpus_per_node: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    write_script: bool = True
    command_template: str | None = None
    """A command line of the user's own for an outside backend, split like a shell would; see `launch.PLACEHOLDERS`."""
    echo_enabled: bool = False
    echo_aux_lambda: FromZero = 0.05
    rwml_enabled: bool = False
    rwml_distance_threshold: Annotated[float, msgspec.Meta(gt=0, le=2)] = 0.2
    rwml_easy_pass_rate_threshold: Share = 0.8
    rwml_easy_keep_probability: Share = 0.1
    rwml_history_window: Annotated[int, msgspec.Meta(ge=0, le=64)] = 4
    rwml_embedding_model: str = ""
    rwml_kl_beta: FromZero = 0.0


def smoke_plan(body: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Judges the replay, plans the launch and writes the files into `output_dir`. Returns the readiness report.

    Raises for the request only (`unknown_field`, `invalid_field`, `directory_unwritable`); what is wrong with the replay
    or the machine is a check or a verdict.
    """
    request = decode(body, SmokeRequest)
    launch.check_request(request.backend, request.command_template)
    folder = writable_dir(Path(request.output_dir).expanduser().absolute())
    records, checks = _read(request.replay_path)
    summary = summarize(records)
    checks += _content_checks(request, summary)
    plan = launch.plan(request, folder, settings, _token_check(request, settings, bool(records)))
    contract = not any(check["level"] == "fail" for check in checks)
    optimizer = contract and summary["train_logprobs_ready"] == summary["records"]
    ready = optimizer and plan["runnable"]
    if not plan["runnable"]:
        checks.append(_check("backend_launch_plan", "warn", plan["reason"]))
    env = launch.environment(request, folder)
    plan |= {"env": env, "script_path": str(folder / SCRIPT) if request.write_script else None}
    report = {
        "schema_version": SCHEMA,
        "replay_path": request.replay_path,
        "replay_sha256": digest_file(Path(request.replay_path)) if records else None,
        "output_dir": str(folder),
        "base_model": request.base_model,
        "contract_ready": contract,
        "optimizer_ready": optimizer,
        "backend_launch_ready": ready,
        "verdict": _verdict(contract, optimizer, ready, checks),
        "checks": checks,
        "launch_plan": plan,
    }
    _write(folder, request, report, summary)
    return report


def _read(path: str) -> tuple[list[ReplayRecord], list[dict[str, str]]]:
    if not path or not Path(path).is_file():
        return [], [_check("missing_replay_path", "fail", f"there is no replay file {path!r}")]
    try:
        records = read_records(Path(path))
    except BashGymError as error:
        code = "invalid_schema_version" if error.fields == ["schema_version"] else "invalid_replay"
        return [], [_check(code, "fail", error.message)]
    return records, [] if records else [_check("empty_replay", "fail", "the replay has no record")]


def _content_checks(request: SmokeRequest, summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """What is missing of the records, where there are any."""
    total = summary["records"]
    if not total:
        return []
    found = []
    if lack := total - summary["behavior_logprobs_ready"]:
        text = f"{lack} of {total} records lack behaviour log probabilities: record with capture_logprobs"
        found.append(_check("missing_behavior_logprobs", "fail", text))
    if lack := total - summary["train_logprobs_ready"]:
        text = f"{lack} of {total} records lack training log probabilities: `bashgym eval replay-score` adds them"
        found.append(_check("train_logprob_replay_needed", "warn", text))
    if request.echo_enabled or request.rwml_enabled:
        record = "record with include_world_model_replay, or switch the objective off"
        if not (summary["rwml_transitions"] or summary["echo_observations"]):
            found.append(_check("missing_world_model_payloads", "fail", f"no record has one: {record}"))
        if request.rwml_enabled and not summary["rwml_transitions"]:
            found.append(_check("missing_rwml_transitions", "fail", f"rwml_enabled needs transitions: {record}"))
        if request.echo_enabled and not summary["echo_observations"]:
            found.append(_check("missing_echo_observations", "fail", f"echo_enabled needs observations: {record}"))
    return found


def _token_check(request: SmokeRequest, settings: Settings, readable: bool) -> tuple[int, str]:
    """(longest sequence in tokens, why this model cannot be trained on the replay; empty if it can)."""
    from bashgym.data.preflight import DatasetQuery, check
    from bashgym.models.catalog import resolve

    if not readable:
        return 0, "the replay cannot be read"
    try:
        ref = resolve(request.base_model, settings)
        query = DatasetQuery(
            path=Path(request.replay_path), method="dppo", model_dir=ref.path, max_seq_length=1 << 20, max_steps=1
        )
        report = check(query)
    except BashGymError as error:
        return 0, error.message
    blocking = [finding.message for finding in report.findings if finding.code in report.blocking]
    return report.tokens.max if report.tokens else 0, "; ".join(blocking)


def _verdict(contract: bool, optimizer: bool, ready: bool, checks: list[dict[str, str]]) -> dict[str, str]:
    if not contract:
        first = next(check for check in checks if check["level"] == "fail")
        return {"level": "blocked", "headline": f"{first['code']}: {first['message']}"}
    if not optimizer:
        return {"level": "needs_train_logprob_replay", "headline": "score the replay with the policy to be trained"}
    if not ready:
        return {"level": "needs_backend", "headline": checks[-1]["message"]}
    return {"level": "ready", "headline": "the update can be launched"}


def _write(folder: Path, request: SmokeRequest, report: dict[str, Any], summary: dict[str, Any]) -> None:
    """The five files, the report last: where it stands, the others do."""
    plan = report["launch_plan"]
    atomic_write_json(folder / SUMMARY, {"replay_path": request.replay_path, **summary})
    atomic_write_json(folder / PROBE, launch.world_model_probe(request, summary))
    atomic_write_json(folder / ENV, plan["env"])
    files = [SUMMARY, PROBE, ENV]
    if request.write_script:
        atomic_write_bytes(folder / SCRIPT, script(plan).encode())
        (folder / SCRIPT).chmod(0o700)
        files.append(SCRIPT)
    report["files"] = [str(folder / name) for name in (*files, READINESS)]
    atomic_write_json(folder / READINESS, report)


def script(plan: Mapping[str, Any]) -> str:
    """A shell script in which every word is quoted; a plan that cannot run says so and ends with status 69."""
    lines = ["#!/bin/sh", "set -eu"]
    if not plan["runnable"]:
        return "\n".join([*lines, f"echo {shlex.quote(plan['reason'])} >&2", f"exit {EX_UNAVAILABLE}", ""])
    lines.append(f"cd {shlex.quote(plan['cwd'])}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(plan["env"].items())]
    return "\n".join([*lines, f"exec {shlex.join(plan['command'])}", ""])


def _check(code: str, level: str, message: str) -> dict[str, str]:
    return {"code": code, "level": level, "message": message}
