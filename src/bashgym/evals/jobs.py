"""Detached evaluation jobs: a process of its own that goes on when the command or the server that started it ends.

A job is a folder: request.json, worker.json (who works on it), state.json, report.json, .lock. Who starts a worker takes
the lock and hands it on, so there is one worker at most, and a lock that is free says that nobody works: no job stays
`running` for ever. Secrets reach the worker through a pipe and nothing else.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from bashgym.core.canonical import digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object, writable_dir
from bashgym.core.ids import check_identifier, new_run_id
from bashgym.core.process import ProcessIdentity, end_group, identity
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.evals.folder import EvalStatus

KINDS = {
    "heldout": "bashgym.evals.heldout:run",
    "suite": "bashgym.evals.suite_job:run",
    "rollouts": "bashgym.evals.rollout_job:run",
    "cascade": "bashgym.runs.cascade:run",
    "cascade_distill": "bashgym.runs.cascade_distill:run",
}
"""Kind -> `module:function(folder, body, secrets, progress)`, which gives the report."""
TERMINAL = frozenset({EvalStatus.COMPLETED, EvalStatus.FAILED, EvalStatus.CANCELLED})
GRACE_S = 10.0
"""Longer than what a worker needs to end what it started."""
POLL_S = 0.1
INTERVAL_S = 0.5
_MAX_SECRETS = 1 << 16
_LOOK_S = 0.01
"""A reader that looks whether the lock is free holds it for less."""
Progress = Callable[[float, str], None]


def new_id(kind: str) -> str:
    """`<kind>_YYYYMMDD_HHMMSS_<6 hex>`."""
    return new_run_id().replace("run_", f"{kind}_", 1)[:-2]


def submit(
    settings: Settings,
    kind: str,
    body: Mapping[str, Any],
    secrets: Mapping[str, str] | None = None,
    job_id: str | None = None,
) -> dict[str, Any]:
    """Starts a job and returns its state at once. With the id of an earlier job that is not live, goes on with it.

    `request_in_progress` if that job is live, `eval_incomplete` if it was another request.
    """
    folder = _root(settings) / check_identifier(job_id or new_id(kind), "job_id")
    decided = {"kind": kind, "body": dict(body)}
    with _held(writable_dir(folder)) as lock:
        if (folder / "request.json").is_file():
            _check_same(folder, decided)
        else:
            more = {"request_digest": digest_json(decided), "created_at": utc_now(), "cwd": os.getcwd()}
            atomic_write_json(folder / "request.json", {**decided, **more})
        if _state(folder)["status"] != EvalStatus.COMPLETED:
            _spawn(folder, settings, secrets, lock)
    return get(settings, folder.name)


def resume(settings: Settings, job_id: str, secrets: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Goes on with a job that is not live; a completed one stays as it is. `request_in_progress` for a live one."""
    folder = _folder(settings, job_id)
    with _held(folder) as lock:
        if _state(folder)["status"] != EvalStatus.COMPLETED:
            _spawn(folder, settings, secrets, lock)
    return get(settings, job_id)


def get(settings: Settings, job_id: str, kind: str | None = None) -> dict[str, Any]:
    """{job_id, kind, status, share, text, error, report, created_at, body}; `eval_not_found`, also for another kind."""
    folder = _folder(settings, job_id)
    request, state = read_object(folder / "request.json"), _state(folder)
    if kind not in (None, request["kind"]):
        raise fail("eval_not_found", f"{job_id} is a job of kind {request['kind']}, not {kind}", fields=["job_id"])
    if state["status"] == EvalStatus.RUNNING and not _alive(folder):
        state = _state(folder)  # it may just have ended
        if state["status"] == EvalStatus.RUNNING:
            state |= {"status": str(EvalStatus.INTERRUPTED), "error": _ended(job_id, "its worker is gone")}
    report = folder / "report.json"
    done = state["status"] == EvalStatus.COMPLETED and report.is_file()
    return {
        "job_id": job_id,
        "kind": request["kind"],
        "body": request["body"],
        "created_at": request["created_at"],
        **state,
        "report": read_object(report) if done else None,
    }


def list_jobs(settings: Settings, kind: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
    """The newest jobs, each as `get` has it. Unreadable ones are passed over."""
    found: list[dict[str, Any]] = []
    paths = _root(settings).glob("*/request.json")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            found.append(get(settings, path.parent.name, kind))
        except (BashGymError, KeyError) as error:
            if getattr(error, "code", "") != "eval_not_found":
                print(f"passed over {path.parent.name}: {error}", file=sys.stderr)  # noqa: T201  one bad folder must not hide the rest
        if len(found) >= limit:
            break
    return found


def brief(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job as lists show it: without its report and its request."""
    return {name: value for name, value in job.items() if name not in ("report", "body")}


def stop(settings: Settings, job_id: str) -> dict[str, Any]:
    """Ends the worker and everything it started; the job becomes `cancelled`. `run_finished` if it has ended.

    `request_in_progress` if it is worked on where no signal of ours arrives, on another host.
    """
    folder, state = _folder(settings, job_id), get(settings, job_id)
    if state["status"] in TERMINAL:
        raise fail("run_finished", f"{job_id} is {state['status']}", fields=["job_id"])
    if _alive(folder) and (worker := _worker(folder)) is not None:
        end_group(worker, GRACE_S)
    with _held(folder):
        if (state := _state(folder))["status"] not in TERMINAL:
            error = _ended(job_id, "it was stopped")
            _write(folder, EvalStatus.CANCELLED, state["share"], state["text"], error)
    return get(settings, job_id)


def follow(settings: Settings, job_id: str, progress: Progress | None = None) -> dict[str, Any]:
    """Waits for the end of a job, telling its progress. Raises what it ended with; interrupting the wait leaves the job be."""
    while True:
        state = get(settings, job_id)
        if progress:
            progress(state["share"], state["text"])
        if state["status"] != EvalStatus.RUNNING:
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
        raise fail("eval_not_found", f"no evaluation job {job_id!r}", "`bashgym eval jobs` shows them.", ["job_id"])
    return folder


def _check_same(folder: Path, decided: dict[str, Any]) -> None:
    known: dict[str, Any] = read_object(folder / "request.json")
    if known["request_digest"] == digest_json(decided):
        return
    names = sorted(known["body"].keys() | decided["body"].keys())
    changed = [name for name in names if known["body"].get(name) != decided["body"].get(name)] or ["kind"]
    message = f"{folder.name} was begun with another request; {', '.join(changed)} differ"
    raise fail("eval_incomplete", message, "Go on with the same arguments, or leave the id out.", ["eval_id"])


@contextmanager
def _held(folder: Path) -> Iterator[int]:
    """The right to work in `folder`, as a handle that a child may inherit and so keep. `request_in_progress`."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        for last in (False, False, False, True):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if last:
                    message = f"{folder.name} is being worked on by another process"
                    raise fail("request_in_progress", message, "Follow it, or stop it first.", ["job_id"]) from error
                time.sleep(_LOOK_S)
        yield handle
    finally:
        os.close(handle)


def _alive(folder: Path) -> bool:
    """Whether somebody holds the lock."""
    try:
        handle = os.open(folder / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def _state(folder: Path) -> dict[str, Any]:
    if not (folder / "state.json").is_file():
        return {"status": "running", "share": 0.0, "text": "starting", "error": None, "updated_at": utc_now()}
    return read_object(folder / "state.json")


def _write(folder: Path, status: EvalStatus, share: float, text: str, error: dict[str, Any] | None = None) -> None:
    state = {"status": str(status), "share": share, "text": text, "error": error, "updated_at": utc_now()}
    atomic_write_json(folder / "state.json", state)


def _ended(job_id: str, message: str) -> dict[str, Any]:
    return fail("interrupted", f"{job_id}: {message}", f"`bashgym eval resume {job_id}` goes on with it.").detail()


def _worker(folder: Path) -> ProcessIdentity | None:
    """Who works; waited for a moment, since its name is written after it has begun."""
    for _ in range(50):
        try:
            return ProcessIdentity.from_dict(read_object(folder / "worker.json"))
        except (BashGymError, KeyError, ValueError):
            time.sleep(0.02)
    return None


def _spawn(folder: Path, settings: Settings, secrets: Mapping[str, str] | None, lock: int) -> None:
    for name in ("state.json", "worker.json"):
        (folder / name).unlink(missing_ok=True)
    cwd = str(read_object(folder / "request.json")["cwd"])
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
                [sys.executable, "-m", "bashgym.evals.jobs", str(folder.resolve()), str(reading), str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(reading, lock),
                env=env,
                cwd=cwd if Path(cwd).is_dir() else None,  # paths in a request are meant from where it was made
            )
        atomic_write_json(folder / "worker.json", identity(child.pid).as_dict())
        os.write(writing, json.dumps(dict(secrets or {})).encode())
    finally:
        os.close(reading)
        os.close(writing)
    threading.Thread(target=child.wait, name=f"reaper-{child.pid}", daemon=True).start()


def main(folder: Path, secrets_fd: int, lock_fd: int) -> int:
    """The worker. Ends with report.json, or with the reason in state.json, and gives the lock back."""
    # As an exception, so that what it has started is ended on the way out.
    signal.signal(signal.SIGTERM, _interrupt)
    progress = _Progress(folder)
    with os.fdopen(secrets_fd, "rb") as pipe:
        secrets: dict[str, str] = json.loads(pipe.read(_MAX_SECRETS) or b"{}")
    try:
        atomic_write_json(folder / "report.json", _work(folder, secrets, progress))
        status, error = EvalStatus.COMPLETED, None
    except BashGymError as known:
        status, error = EvalStatus.FAILED, known.detail()
    except KeyboardInterrupt:
        status, error = EvalStatus.INTERRUPTED, _ended(folder.name, "it was ended")
    except Exception as fault:  # noqa: BLE001  boundary: a fault is recorded, its traceback is in worker.log
        traceback.print_exc()
        full = isinstance(fault, OSError) and fault.errno == errno.ENOSPC
        code, text = ("disk_full", "the disk is full") if full else ("internal", "a fault of ours")
        hint = f"{folder / 'worker.log'} has the details."
        status, error = EvalStatus.FAILED, fail(code, text, hint).detail()
    progress.end(status, error)
    # Whoever reads how it ended may go on with it at once, and need not wait for this interpreter to be gone.
    fcntl.flock(lock_fd, fcntl.LOCK_UN)
    return 0 if error is None else 1


def _work(folder: Path, secrets: dict[str, str], progress: Progress) -> dict[str, Any]:
    request: dict[str, Any] = read_object(folder / "request.json")
    module, _, function = KINDS[request["kind"]].partition(":")
    report: dict[str, Any] = getattr(importlib.import_module(module), function)(
        folder, request["body"], secrets, progress
    )
    return report


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


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
            _write(self._folder, EvalStatus.RUNNING, share, text)

    def end(self, status: EvalStatus, error: dict[str, Any] | None) -> None:
        """How it ended."""
        whole = (1.0, "") if status == EvalStatus.COMPLETED else (self._share, self._text)
        _write(self._folder, status, *whole, error)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:4])))
