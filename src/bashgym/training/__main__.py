"""Entry of the training process: `python -m bashgym.training RUN_DIR`. With a rank behind it, one of several processes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_json, read_object
from bashgym.core.process import identity
from bashgym.training import launcher


def main(run_path: Path) -> int:
    """Trains the run at `run_path`; every way out except a signal leaves trainer_exit.json."""
    print(f"[bashgym] {utc_now()} trainer {os.getpid()} of {run_path.name} begins", flush=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the one who follows, not for the run
    atomic_write_json(run_path / "trainer_process.json", identity().as_dict())
    code, rank = 1, None
    try:
        request = read_object(run_path / "request.json")
        if int(str(request["num_processes"])) > 1:
            code, rank = launcher.run(run_path, request)
            if code < 0:  # what the others say of it is that it does not answer
                (run_path / "trainer_error.json").unlink(missing_ok=True)
        else:
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # somebody else's launcher; this process has no peers
                os.environ.pop(name, None)
            code = train(run_path, None)
    finally:
        facts = {"code": code, "rank": rank, "pid": os.getpid(), "ts": utc_now()}
        atomic_write_json(run_path / "trainer_exit.json", facts)
    return code if code >= 0 else 1


def train(run_path: Path, rank: int | None) -> int:
    """The exit status of one process, its error recorded."""
    try:
        backend = read_object(run_path / "manifest.json")["backend"]
        if isinstance(backend, dict) and backend["name"] == "unsloth":
            importlib.import_module("unsloth")  # patches what is imported after it
        from bashgym.training.loop import run

        return run(run_path, rank)
    except BashGymError as error:
        _record(run_path, error.detail())
        print(f"[bashgym] {error.code}: {error.message}", flush=True)
    except ImportError as error:
        detail: dict[str, object] = {
            "code": "missing_extra",
            "message": str(error),
            "hint": "pip install 'bashgym[train]'",
            "fields": [],
        }
        _record(run_path, detail)
        print(f"[bashgym] missing_extra: {error}", flush=True)
    return 1


def _record(run_path: Path, detail: dict[str, object]) -> None:
    """The first error stays: those of other ranks follow from it."""
    path = run_path / "trainer_error.json"
    if not path.exists():
        atomic_write_json(path, detail)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    sys.exit(train(folder, int(sys.argv[2])) if len(sys.argv) > 2 else main(folder))
