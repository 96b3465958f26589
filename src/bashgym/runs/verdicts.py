"""How a run ended, judged from the exit status and the files that the trainer left; and the profile of a finished one."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bashgym.core.clock import epoch_s
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.evidence.model_card import write_model_card
from bashgym.runs import delivery
from bashgym.store.checkpoints import last_valid, list_checkpoints
from bashgym.store.run_dir import RunDir, RunState, RunStatus
from bashgym.training import EXIT_PAUSED


@dataclass(frozen=True)
class Verdict:
    """What run_state.json will say."""

    status: RunStatus
    message: str
    error: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None


def judge(run: RunDir, state: RunState, code: int | None) -> Verdict:
    """`code` as waitpid gave it (negative: signal); None when the trainer was not our child, then its own record decides."""
    stopping = state.status == RunStatus.STOPPING or run.control() == "stop"
    own = _record(run, "trainer_exit.json").get("code")
    if isinstance(own, int) and (code is None or own < 0):  # below 0: the signal that ended one of several processes
        code = own
    exit_ = {"code": code if code is not None and code >= 0 else None, "signal": _signal_name(code)}
    if code == 0:
        return Verdict(RunStatus.COMPLETED, _finished(run), exit=exit_)
    if stopping:
        return Verdict(RunStatus.CANCELLED, "stopped", exit=exit_)
    if code == EXIT_PAUSED:
        return Verdict(RunStatus.PAUSED, _paused(run), exit=exit_)
    return Verdict(RunStatus.FAILED, "failed", _error(run, code), exit_)


def _finished(run: RunDir) -> str:
    """`finished`, or which limit ended the run early and where."""
    reached = [event for event in run.events() if event["type"] == "budget-reached"]
    if not reached:
        return "finished"
    return f"stopped by {reached[-1]['limit']} at step {reached[-1]['step']} of {reached[-1]['total_steps']}"


def _paused(run: RunDir) -> str:
    """`paused at a checkpoint`, and why if the rewards of this attempt were the reason."""
    for event in reversed(run.events()):
        if event["type"] == "reward-alarm" and event["action"] == "pause":
            return f"paused at a checkpoint by reward_health: {event['message']}"
        if event["type"] == "training-started":
            break
    return "paused at a checkpoint"


def ended_at(run: RunDir, heartbeat: str) -> float:
    """When the trainer of a supervisor that died ended, seconds since 1970: its own record, at least the last heartbeat."""
    known = [text for text in (heartbeat, _record(run, "trainer_exit.json").get("ts")) if text]
    return max((datetime.fromisoformat(str(text)).timestamp() for text in known), default=epoch_s())


def _error(run: RunDir, code: int | None) -> dict[str, Any]:
    told = _record(run, "trainer_error.json")
    if told:
        return told
    checkpoint, _ = last_valid(run.path)
    hint = (
        f"`bashgym training resume {run.run_id}` continues from {checkpoint.name}."
        if checkpoint
        else "No checkpoint was taken yet."
    )
    if code is None:
        return {
            "code": "training_failed",
            "message": "the trainer ended without leaving its exit status (killed, or the host restarted)",
            "hint": hint,
        }
    name, who = _signal_name(code), _who(run)
    if name == "SIGKILL":
        oom = _out_of_memory_kill()
        message = f"{who} was killed by SIGKILL" + (" (the kernel reports an out-of-memory kill)" if oom else "")
        return {"code": "memory_short" if oom else "training_failed", "message": message, "hint": hint}
    if name:
        return {"code": "training_failed", "message": f"{who} was killed by {name}", "hint": hint}
    return {
        "code": "training_failed",
        "message": f"the trainer exited with status {code}; training.log has its last words",
        "hint": hint,
    }


def _who(run: RunDir) -> str:
    rank = _record(run, "trainer_exit.json").get("rank")
    return "the trainer" if rank is None else f"training process {rank} (counted from 0)"


def _signal_name(code: int | None) -> str | None:
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _out_of_memory_kill() -> bool:
    """True if this cgroup counts an OOM kill; cgroup v2 only, and a count from before cannot be told apart."""
    try:
        text = Path("/sys/fs/cgroup/memory.events").read_text()
    except OSError:
        return False
    return any(line.split() == ["oom_kill", n] and int(n) > 0 for line in text.splitlines() for n in [line.split()[-1]])


def _record(run: RunDir, name: str) -> dict[str, Any]:
    try:
        return read_object(run.file(name))
    except BashGymError:
        return {}


def last_checkpoint(run: RunDir, status: RunStatus) -> str | None:
    """The newest checkpoint worth naming; verified where somebody may want to continue from it."""
    if status in (RunStatus.FAILED, RunStatus.PAUSED):
        checkpoint, _ = last_valid(run.path)
        return checkpoint.name if checkpoint else None
    found = list_checkpoints(run.path)
    return found[-1][1].name if found else None


def write_profile(run: RunDir, state: RunState) -> str | None:
    """Writes model_profile.json and the model cards of a finished run. Returns a warning if a metric is not finite."""
    request, manifest, points = run.request(), run.manifest(), run.metrics()
    broken = [(name, flag, p["step"]) for p in points for name, flag in p.get("non_finite", {}).items()]
    curve = [
        {"step": p["step"], "loss": p.get("loss"), "eval_loss": p.get("eval_loss")}
        for p in points
        if "loss" in p or "eval_loss" in p
    ]
    stride = max(1, len(curve) // 500)
    final, delivered = run.file("final"), delivery.profile_fields(run)
    profile = {
        "schema_version": "bashgym.model_profile.v1",
        "model_id": run.run_id,
        "run_id": run.run_id,
        "display_name": f"{manifest['model']['name']} · {state.strategy} · {run.run_id}",
        "description": "",
        "tags": [],
        "starred": False,
        "created_at": state.completed_at,
        "base_model": manifest["model"]["name"],
        "base_model_digest": manifest["model"]["digest"],
        "training_strategy": state.strategy,
        "objective": manifest.get("objective"),
        "teacher_model": request.get("teacher_model"),
        "training_traces": [],
        "training_repos": [],
        "parent_model": manifest["model"]["name"] if manifest["model"]["source"] == "run" else None,
        "config": request,
        "started_at": state.started_at,
        "completed_at": state.completed_at,
        "loss_curve": curve[::stride],
        "final_metrics": state.last_metrics,
        "artifacts": {
            "checkpoints": [path.name for _, path in list_checkpoints(run.path)],
            "final_adapter_path": "final" if (final / "adapter_config.json").is_file() else None,
            "final_path": "final",
            "merged_path": "merged" if run.file("merged").is_dir() else None,
            "gguf_exports": delivered.pop("gguf_exports"),
        },
        "final_digest": _final_digest(final),
        "model_dir": str(run.path),
        "benchmarks": {},
        "custom_evals": {},
        "evaluation_history": [],
        "heldout_evals": [],
        "environment_holdout_evals": [],
        "model_size_bytes": sum(p.stat().st_size for p in final.glob("*.safetensors")),
        "model_size_params": manifest["model"]["n_parameters"],
        "inference_latency_ms": None,
        "status": "diverged" if broken else "needs_eval",
        "deployed_to": None,
        **delivered,
    }
    run.write_json("model_profile.json", profile)
    for name in ("final", "merged"):
        if run.file(name).is_dir():
            write_model_card(run.path, run.file(name) / "README.md", artifact=name)
    if broken:
        name, flag, step = broken[0]
        return f"finished, but diverged: {name} is {flag} at step {step}; not offered for promotion"
    return None


def _final_digest(final: Path) -> str:
    from bashgym.models.digests import folder_digest

    return folder_digest(final)
