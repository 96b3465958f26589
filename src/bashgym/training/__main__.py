"""Entry of the training process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_json
from bashgym.core.process import identity


def main(run_path: Path) -> int:
    """Trains the run at `run_path`; every way out except a signal leaves trainer_exit.json."""
    print(f"[bashgym] {utc_now()} trainer {os.getpid()} of {run_path.name} begins", flush=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the one who follows, not for the run
    atomic_write_json(run_path / "trainer_process.json", identity().as_dict())
    code = 1
    try:
        code = _train(run_path)
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
    finally:
        atomic_write_json(run_path / "trainer_exit.json", {"code": code, "pid": os.getpid(), "ts": utc_now()})
    return code


def _train(run_path: Path) -> int:
    from bashgym.training.loop import run

    return run(run_path)


def _record(run_path: Path, detail: dict[str, object]) -> None:
    atomic_write_json(run_path / "trainer_error.json", detail)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
