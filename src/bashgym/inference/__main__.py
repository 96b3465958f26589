"""Entry of the scoring process. Several jobs share one start of the interpreter, which costs seconds."""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json
from bashgym.inference.job import ERROR
from bashgym.inference.replay_job import REPLAY_JOB

_INTERRUPTED = 130
_INSTALL = "pip install 'bashgym[train]'"


def main(folders: list[Path]) -> int:
    """Finishes every job; at the first error leaves error.json in that job's folder and returns 1."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for folder in folders:
        (folder / ERROR).unlink(missing_ok=True)
        try:
            _run(folder)
        except KeyboardInterrupt:
            return _INTERRUPTED
        except BashGymError as error:
            atomic_write_json(folder / ERROR, error.detail())
            print(f"[bashgym] {error.code}: {error.message}", flush=True)
            return 1
    return 0


def _run(folder: Path) -> None:
    try:
        if (folder / REPLAY_JOB).is_file():
            from bashgym.inference.logprobs import run
        else:
            from bashgym.inference.scoring import run
    except ImportError as error:
        raise fail("missing_extra", f"scoring needs torch and transformers: {error}", _INSTALL) from error
    try:
        run(folder)
    except BashGymError:
        raise
    except ImportError as error:
        raise fail("missing_extra", f"this model needs another package: {error}", _INSTALL) from error
    except MemoryError as error:
        raise fail("memory_short", "the host ran out of memory while scoring") from error
    except Exception as error:  # boundary: what the libraries raise becomes a typed failure, its traceback in the log
        traceback.print_exc()
        raise _translated(error) from error


def _translated(error: Exception) -> BashGymError:
    text = f"{type(error).__name__}: {str(error)[:500]}"
    if type(error).__name__ in ("OutOfMemoryError", "AcceleratorError") and "memory" in str(error):
        return fail("memory_short", f"the device ran out of memory while scoring: {text}", "Lower the batch size.")
    return fail("scoring_failed", text, "scoring.log in the job's folder has the traceback.")


if __name__ == "__main__":
    sys.exit(main([Path(name).resolve() for name in sys.argv[1:]]))
