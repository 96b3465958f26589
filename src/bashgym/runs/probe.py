"""`training plan --probe`: the first steps of this very request in a throw-away run directory, timed and weighed.

The trainer is the one that a start would use, with all of the request's steps before it; it is ended after the first few.
Nothing is registered, nothing stays. If this process is killed, the trainer ends by its own limit of ten minutes.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object, writable_dir
from bashgym.core.process import end_group, identity
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.runs.estimate import cost_of
from bashgym.runs.prepare import Prepared, refuse_blocked
from bashgym.store.run_dir import RunDir

STEPS, LEAST_STEPS, MOST_S = 20, 3, 600.0
_CHANGES = {"logging_steps": 1, "sample_prompts": 0, "report_to": [], "max_minutes": MOST_S / 60, "max_cost": None}


def probe_request(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """Measured seconds per step, tokens per second and peak memory, and the whole run's time and cost from them.

    Raises `preflight_blocked`, or `training_failed` with the trainer's own words if it does not come to its steps.
    """
    refuse_blocked(prepared)
    with tempfile.TemporaryDirectory(prefix="probe_", dir=writable_dir(settings.home / "probes")) as folder:
        run = RunDir(Path(folder))
        run.write_json("request.json", {**prepared.request.as_dict(), **_CHANGES, "run_id": run.run_id})
        run.write_json("manifest.json", {**prepared.manifest(run.run_id), "smoke": True})
        began = time.time()
        _train_some(run, settings, min(STEPS, prepared.report.total_steps or STEPS))
        return _measured(run, began, prepared)


def _train_some(run: RunDir, settings: Settings, steps: int) -> None:
    env = child_env(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="warning")
    command = [settings.training_python, "-u", "-m", "bashgym.training", str(run.path)]
    with run.log_path.open("ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=env
        )
    who = identity(child.pid)
    end = time.monotonic() + MOST_S
    try:
        while child.poll() is None and time.monotonic() < end and len(_steps(run)) < steps:
            time.sleep(0.1)
    finally:
        end_group(who, 0.0)
        child.wait()


def _steps(run: RunDir) -> list[dict[str, Any]]:
    return [point for point in run.metrics() if "loss" in point]


def _measured(run: RunDir, began: float, prepared: Prepared) -> dict[str, Any]:
    points = _steps(run)
    if len(points) < LEAST_STEPS:
        raise _too_short(run, len(points))
    times = [after["ts"] - before["ts"] for before, after in pairwise(points)]
    step_s = statistics.fmean(times)
    share = 2 * statistics.stdev(times) / len(times) ** 0.5 / step_s
    total_steps = int(str(read_object(run.file("trainer.json")).get("total_steps") or prepared.report.total_steps))
    startup_s = max(0.0, points[0]["ts"] - began)
    total_s = startup_s + (total_steps - 1) * step_s
    counted = [point["num_tokens"] for point in points if isinstance(point.get("num_tokens"), int | float)]
    return {
        "steps": len(points),
        "total_steps": total_steps,
        "startup_s": round(startup_s, 2),
        "seconds_per_step": round(step_s, 5),
        "tokens_per_second": round((counted[-1] - counted[0]) / sum(times), 1) if len(counted) > 1 else None,
        "peak_memory_gb": round(max(float(point.get("peak_memory_gb") or 0) for point in points), 3),
        "total_s": round(total_s, 1),
        "cost": cost_of(total_s, prepared.request.values),
        "uncertainty_share": round(share, 3),
        "uncertainty_means": "two standard errors of the mean step time, as a share of it; evaluation, checkpoints and "
        "exports count as far as they fell into these steps",
    }


def _too_short(run: RunDir, steps: int) -> BashGymError:
    try:
        told: dict[str, Any] = read_object(run.file("trainer_error.json"))
    except BashGymError:
        told = {"message": f"it ended, or ten minutes were over, after {steps} steps"}
    lines = run.log_path.read_text("utf-8", "replace").strip().splitlines()
    said = f"the probe needs {LEAST_STEPS} steps and came to {steps}: {told['message']}"
    if lines and "code" not in told:
        said += f"; its last words: {lines[-1][:300]}"
    return fail("training_failed", said, hint=str(told.get("hint") or "A start of this request would fare no better."))
