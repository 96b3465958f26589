"""What follows a training that went well: the GGUF export and the Hub push that were asked for.

Runs as a child of the supervisor (`python -m bashgym.runs.delivery RUN_DIR`), after the trainer has released its memory.
The weights are safe by then: a delivery that fails never undoes a run. It stays `completed`, its message says what is
missing, delivery.json and model_profile.json have the error. Doing it twice does the same: a supervisor that is killed
meanwhile leaves it to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object
from bashgym.core.settings import Settings
from bashgym.data.types import Finding, Severity
from bashgym.methods.common import RETENTION
from bashgym.store.run_dir import TERMINAL, RunDir
from bashgym.training import gguf

RECORD = "delivery.json"
CODES = frozenset({"gguf_not_exported", "hub_push", "hub_push_public"})


def preflight(request: Mapping[str, Any], settings: Settings) -> list[Finding]:
    """What the user should know before a start: exports that will not happen, and who will see a push."""
    found = []
    if _wants_gguf(request) and gguf.find_tools(settings.llama_cpp).converter is None:
        message = f"no GGUF will be made: there is no {gguf.CONVERTER} (llama.cpp) here; safetensors are saved"
        found.append(Finding("gguf_not_exported", Severity.WARNING, message, gguf.MEND, "auto_export_gguf"))
    if request["auto_push_hf"]:
        from bashgym.runs import publish

        found += publish.preflight(request)
    return found


def due(run: RunDir, settings: Settings) -> bool:
    """True if something is left to do once the trainer has ended well."""
    request = run.request()
    return bool(request["auto_push_hf"]) or (
        _wants_gguf(request) and gguf.find_tools(settings.llama_cpp).converter is not None
    )


def deliver(run: RunDir, settings: Settings) -> None:
    """Exports, then pushes; each on record in delivery.json, done or failed."""
    request = run.request()
    if _wants_gguf(request) and gguf.find_tools(settings.llama_cpp).converter is not None:
        _recorded(run, "gguf", lambda: _export(run, settings, str(request["gguf_quantization"])))
    if request["auto_push_hf"]:
        _recorded(run, "push", lambda: _auto_push(run, request))


def export_gguf(run: RunDir, settings: Settings, quantization: str | None = None) -> dict[str, Any]:
    """`training export-gguf`: the export of a finished run, whatever it was started with."""
    _check_finished(run)
    chosen = quantization or str(run.request()["gguf_quantization"])
    return _raised(run, "gguf", lambda: _export(run, settings, chosen))


def push(run: RunDir, repo: str, *, private: bool, artifact: str) -> dict[str, Any]:
    """`training push`: the push of a finished run, whatever it was started with."""
    from bashgym.runs import publish

    _check_finished(run)
    return _raised(run, "push", lambda: publish.push(run, repo, private=private, artifact=artifact))


def record(run: RunDir) -> dict[str, Any]:
    """delivery.json: {gguf, push}, each {status: done|failed, ...}; empty where nothing was asked for."""
    try:
        return read_object(run.file(RECORD))
    except BashGymError:
        return {}


def remark(run: RunDir) -> str:
    """What failed, for the run's message; empty if nothing did."""
    names = {"gguf": "the GGUF export", "push": "the Hub push"}
    failed = [(names[what], entry) for what, entry in record(run).items() if entry["status"] == "failed"]
    return "; ".join(f"{name} failed: {entry['code']}: {entry['message']}" for name, entry in failed)


def profile_fields(run: RunDir) -> dict[str, Any]:
    """{gguf, hf_repo_id, push} as model_profile.json has them."""
    done = record(run)
    exported, pushed = done.get("gguf") or {}, done.get("push")
    return {
        "gguf_exports": [exported] if exported.get("status") == "done" else [],
        "hf_repo_id": pushed.get("repo_id") if pushed and pushed["status"] == "done" else None,
        "push": pushed,
    }


def _wants_gguf(request: Mapping[str, Any]) -> bool:
    return bool(request["auto_export_gguf"]) and bool(RETENTION[request["artifact_retention"]]["merged"])


def _export(run: RunDir, settings: Settings, quantization: str) -> dict[str, Any]:
    from bashgym.runs.publish import artifact_folder

    return gguf.export(
        artifact_folder(run, "merged"),
        run.file("gguf"),
        name=run.run_id,
        quantization=quantization,
        tools=gguf.find_tools(settings.llama_cpp),
        python=settings.training_python,
    )


def _auto_push(run: RunDir, request: Mapping[str, Any]) -> dict[str, Any]:
    from bashgym.runs import publish

    if any(point.get("non_finite") for point in run.metrics()):
        raise fail(
            "hub_refused",
            "the run diverged (a metric is not finite): it is not pushed by itself",
            hint=f"`bashgym training push {run.run_id} --repo {request['hf_repo_name']}` does it all the same.",
        )
    artifact = str(request["hf_upload_artifact"])
    return publish.push(run, str(request["hf_repo_name"]), private=bool(request["hf_private"]), artifact=artifact)


def _recorded(run: RunDir, what: str, act: Callable[[], dict[str, Any]]) -> BashGymError | None:
    """Does it and writes down how it went; the error, if it failed."""
    problem = None
    try:
        entry = {"status": "done", **act()}
    except BashGymError as error:
        problem, entry = error, {"status": "failed", **error.detail()}
        print(f"[bashgym] {what}: {error.code}: {error.message}", file=sys.stderr, flush=True)  # noqa: T201 - into the log
    run.write_json(RECORD, {**record(run), what: entry})
    run.append_event({"gguf": "gguf-export", "push": "hub-push"}[what], **entry)
    return problem


def _raised(run: RunDir, what: str, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    problem = _recorded(run, what, act)
    _update_profile(run)
    if problem:
        raise problem
    return {"run_id": run.run_id, **record(run)[what]}


def _update_profile(run: RunDir) -> None:
    try:
        profile = read_object(run.file("model_profile.json"))
    except BashGymError:
        return  # a run that failed after final/ was saved has none
    fields = profile_fields(run)
    artifacts = {**dict(profile["artifacts"]), "gguf_exports": fields.pop("gguf_exports")}  # type: ignore[call-overload]
    run.write_json("model_profile.json", {**profile, **fields, "artifacts": artifacts})


def _check_finished(run: RunDir) -> None:
    status = run.state().status
    if status not in TERMINAL:
        raise fail(
            "invalid_transition", f"{run.run_id} is {status}; its model is not finished", "Wait until it has ended."
        )


if __name__ == "__main__":
    deliver(RunDir(Path(sys.argv[1])), Settings.from_env())
