"""A live run always has exactly one supervisor. If it was killed, the next one who looks starts another, which adopts."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_json, read_object
from bashgym.core.process import ProcessIdentity, identity, is_alive
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.store.run_dir import TERMINAL, RunDir, RunStatus

LOCK = "supervisor.lock"
SPAWNED = "supervisor_process.json"
"""The newest supervisor that was started, which may not have come to its lock yet."""
TRIES = 10


def queue_dir(settings: Settings, kind: str = "") -> Path:
    """The folder of `runs.queue`, or its `waiting` or `launched` part."""
    return settings.home / "queue" / kind


def waits(run: RunDir, settings: Settings) -> bool:
    """True if only the queue may launch this run."""
    return (queue_dir(settings, "waiting") / f"{run.run_id}.json").is_file()


def mark_launched(run: RunDir, settings: Settings, *, stop_on_error: bool = False) -> None:
    """Notes that the run takes a slot from now until it has ended or is paused; a note that is there stays."""
    path = queue_dir(settings, "launched") / f"{run.run_id}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"run_id": run.run_id, "run_dir": str(run.path), "stop_on_error": stop_on_error}
        atomic_write_json(path, entry)


def spawn_supervisor(run: RunDir, settings: Settings) -> int:
    """Starts a detached supervisor for `run` and returns its pid. It outlives this process and its terminal."""
    mark_launched(run, settings)
    env = child_env(
        BASHGYM_DIR=str(settings.home),
        BASHGYM_MODELS_DIR=str(run.path.parent),
        BASHGYM_DATABASE_URL=settings.database_url,
        BASHGYM_TRAINING_PYTHON=settings.training_python,
        BASHGYM_QUEUE_SLOTS=str(settings.queue_slots),
    )
    with run.file("supervisor.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "bashgym.runs.supervisor", str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            close_fds=True,
            cwd=os.fspath(Path.cwd()),
            env=env,
        )
    with suppress(ProcessLookupError):
        atomic_write_json(run.file(SPAWNED), identity(child.pid).as_dict())
    # In a long-lived server somebody has to reap it; in a short-lived command init does.
    threading.Thread(target=child.wait, name=f"reaper-{child.pid}", daemon=True).start()
    return child.pid


def ensure_supervised(run: RunDir, settings: Settings) -> bool:
    """Starts an adopting supervisor if the run is live here and has none; True if it did."""
    try:
        state = run.state()
    except BashGymError:
        return False
    if state.status in TERMINAL | {RunStatus.PAUSED, RunStatus.UNKNOWN} or lock_held(run):
        return False
    if state.status == RunStatus.QUEUED and waits(run, settings):
        return False
    if state.supervisor:
        who = ProcessIdentity.from_dict(state.supervisor)
        if who.host != socket.gethostname() or is_alive(who):
            return False
    if _starting(run):
        return False
    spawn_supervisor(run, settings)
    return True


def _starting(run: RunDir) -> bool:
    """Whether a supervisor was started that lives. Readers who look many times a second would else start one each time."""
    try:
        return is_alive(ProcessIdentity.from_dict(read_object(run.file(SPAWNED))))
    except (BashGymError, KeyError, TypeError, ValueError):
        return False


def lock_held(run: RunDir) -> bool:
    """True while some supervisor of this run lives (on this file system)."""
    try:
        handle = os.open(run.file(LOCK), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def take_lock(run: RunDir) -> int | None:
    """The supervisor's lock for as long as the returned descriptor is open; None if another one has it."""
    handle = os.open(run.file(LOCK), os.O_RDWR | os.O_CREAT, 0o644)
    for _ in range(TRIES):  # whoever asks `lock_held` has it for an instant
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            time.sleep(0.02)
    os.close(handle)
    return None
