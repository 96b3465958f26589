"""Detached evaluation jobs: a process of its own that goes on when the command or the server that started it ends.

A job is a folder: request.json, worker.json (who works on it), state.json, report.json. Whoever looks finds out whether the
worker still lives, so that no job stays `running` for ever. Secrets reach the worker through a pipe and nothing else.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object, writable_dir
from bashgym.core.ids import check_identifier, new_run_id
from bashgym.core.process import ProcessIdentity, end_group, identity, is_alive
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings

KINDS = {"heldout": "bashgym.evals.heldout:run", "suite": "bashgym.evals.service:run_job"}
"""Kind -> `module:function(folder, body, secrets, progress)`, which gives the report."""
TERMINAL = frozenset({"completed", "failed", "cancelled"})
GRACE_S = 5.0
POLL_S = 0.1
INTERVAL_S = 0.5
_MAX_SECRETS = 1 << 16
Progress = Callable[[float, str], None]


def new_id(kind: str) -> str:
    """`<kind>_<time>_<hex>`."""
    return new_run_id().replace("run_", f"{kind}_", 1)


def submit(
    settings: Settings,
    kind: str,
    body: Mapping[str, Any],
    secrets: Mapping[str, str] | None = None,
    job_id: str | None = None,
) -> dict[str, Any]:
    """Starts a job and returns its state at once. With the id of an earlier job that is not live, goes on with it.

    `request_in_progress` if that job is live, `file_exists` if it was another request.
    """
    folder = _root(settings) / check_identifier(job_id or new_id(kind), "job_id")
    request = {"kind": kind, "body": dict(body), "request_digest": digest_json([kind, dict(body)])}
    if (folder / "request.json").is_file():
        if read_object(folder / "request.json")["request_digest"] != request["request_digest"]:
            raise fail("file_exists", f"the job {folder.name} was another request", "Leave its id out.", ["job_id"])
        return resume(settings, folder.name, secrets)
    writable_dir(folder)
    atomic_write_json(folder / "request.json", {**request, "created_at": utc_now()})
    _spawn(folder, settings, secrets)
    return get(settings, folder.name)


def resume(settings: Settings, job_id: str, secrets: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Goes on with a job that is not live. A completed one is returned as it is; `request_in_progress` for a live one."""
    folder, state = _folder(settings, job_id), get(settings, job_id)
    if state["status"] == "completed":
        return state
    if state["status"] == "running":
        raise fail("request_in_progress", f"{job_id} is being worked on", "Follow it, or stop it first.", ["job_id"])
    _spawn(folder, settings, secrets)
    return get(settings, job_id)


def get(settings: Settings, job_id: str) -> dict[str, Any]:
    """{job_id, kind, status, share, text, error, report, created_at, body}; `eval_not_found`."""
    folder = _folder(settings, job_id)
    request, state = read_object(folder / "request.json"), _state(folder)
    if state["status"] == "running" and not _alive(folder):
        state = _state(folder)  # it may just have ended
        if state["status"] == "running":
            error = fail("interrupted", "its worker is gone", f"`bashgym eval resume {job_id}` goes on with it.")
            state = {**state, "status": "interrupted", "error": error.detail()}
    report = folder / "report.json"
    done = state["status"] == "completed" and report.is_file()
    return {
        "job_id": job_id,
        "kind": request["kind"],
        "body": request["body"],
        "created_at": request["created_at"],
        **state,
        "report": read_object(report) if done else None,
    }


def list_jobs(settings: Settings, kind: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
    """The newest jobs, without their reports."""
    found = []
    folders = sorted(_root(settings).glob("*/request.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in folders:
        try:
            state = get(settings, path.parent.name)
        except BashGymError:
            continue  # an unreadable job must not hide the others
        if kind in (None, state["kind"]):
            found.append({name: value for name, value in state.items() if name not in ("report", "body")})
        if len(found) >= limit:
            break
    return found


def stop(settings: Settings, job_id: str) -> dict[str, Any]:
    """Ends the worker and everything it started; the job becomes `cancelled`. `run_finished` if it has ended."""
    folder, state = _folder(settings, job_id), get(settings, job_id)
    if state["status"] in TERMINAL:
        raise fail("run_finished", f"{job_id} is {state['status']}", fields=["job_id"])
    if (worker := _worker(folder)) is not None:
        end_group(worker, GRACE_S)
    if _state(folder)["status"] not in TERMINAL:
        _write(folder, "cancelled", state.get("share", 0.0), "stopped")
    return get(settings, job_id)


def follow(settings: Settings, job_id: str, progress: Progress | None = None) -> dict[str, Any]:
    """Waits for the end of a job, telling its progress. Raises what it failed with; interrupting the wait leaves the job be."""
    while True:
        state = get(settings, job_id)
        if progress:
            progress(state["share"], state["text"])
        if state["status"] != "running":
            break
        time.sleep(POLL_S)
    if error := state["error"]:
        raise fail(error["code"], error["message"], error.get("hint", ""), error.get("fields") or [])
    return state


def _root(settings: Settings) -> Path:
    return settings.models_dir.parent / "evals" / "jobs"


def _folder(settings: Settings, job_id: str) -> Path:
    folder = _root(settings) / check_identifier(job_id, "job_id")
    if not (folder / "request.json").is_file():
        raise fail("eval_not_found", f"no evaluation job {job_id!r}", fields=["job_id"])
    return folder


def _state(folder: Path) -> dict[str, Any]:
    if not (folder / "state.json").is_file():
        return {"status": "running", "share": 0.0, "text": "starting", "error": None, "updated_at": utc_now()}
    return read_object(folder / "state.json")


def _write(folder: Path, status: str, share: float, text: str, error: dict[str, Any] | None = None) -> None:
    state = {"status": status, "share": share, "text": text, "error": error, "updated_at": utc_now()}
    atomic_write_json(folder / "state.json", state)


def _worker(folder: Path) -> ProcessIdentity | None:
    try:
        return ProcessIdentity.from_dict(read_object(folder / "worker.json"))
    except (BashGymError, KeyError, ValueError):
        return None


def _alive(folder: Path) -> bool:
    worker = _worker(folder)
    return worker is not None and is_alive(worker)


def _spawn(folder: Path, settings: Settings, secrets: Mapping[str, str] | None) -> None:
    for name in ("state.json", "worker.json"):
        (folder / name).unlink(missing_ok=True)
    reading, writing = os.pipe()
    env = child_env(
        BASHGYM_DIR=str(settings.home),
        BASHGYM_MODELS_DIR=str(settings.models_dir),
        BASHGYM_DATABASE_URL=settings.database_url,
        BASHGYM_TRAINING_PYTHON=settings.training_python,
    )
    try:
        with (folder / "worker.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "bashgym.evals.jobs", str(folder), str(reading)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(reading,),
                env=env,
            )
        atomic_write_json(folder / "worker.json", identity(child.pid).as_dict())
        os.write(writing, json.dumps(dict(secrets or {})).encode())
    finally:
        os.close(reading)
        os.close(writing)
    threading.Thread(target=child.wait, name=f"reaper-{child.pid}", daemon=True).start()


def main(folder: Path, secrets_fd: int) -> int:
    """The worker: one at a time in a folder. Ends with report.json, or with the reason in state.json."""
    with os.fdopen(secrets_fd, "rb") as pipe:
        secrets: dict[str, str] = json.loads(pipe.read(_MAX_SECRETS) or b"{}")
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    request: dict[str, Any] = read_object(folder / "request.json")
    progress = _Progress(folder)
    try:
        module, _, function = KINDS[request["kind"]].partition(":")
        report = getattr(importlib.import_module(module), function)(folder, request["body"], secrets, progress)
    except BashGymError as error:
        progress.end("failed", error.detail())
        return 1
    except Exception:  # noqa: BLE001  boundary: a fault of ours is recorded, its traceback is in worker.log
        traceback.print_exc()
        fault = fail("internal", "a fault of ours", f"{folder / 'worker.log'} has the details.")
        progress.end("failed", fault.detail())
        return 1
    atomic_write_json(folder / "report.json", report)
    progress.end("completed", None)
    return 0


class _Progress:
    """state.json of a running job, replaced at most twice a second."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._written = folder, -1.0
        self._share, self._text = 0.0, "starting"
        self(0.0, "starting")

    def __call__(self, share: float, text: str) -> None:
        self._share, self._text = share, text
        if time.monotonic() - self._written >= INTERVAL_S:
            self._written = time.monotonic()
            _write(self._folder, "running", share, text)

    def end(self, status: str, error: dict[str, Any] | None) -> None:
        """How it ended."""
        whole = (1.0, "") if status == "completed" else (self._share, self._text)
        _write(self._folder, status, *whole, error)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), int(sys.argv[2])))
