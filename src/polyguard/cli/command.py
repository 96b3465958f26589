"""How every command ends: with the status of its work, or with a typed error in two lines, never with a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bashgym.core.errors import BashGymError


def run(work: Callable[[], int]) -> int:
    """The exit status of `work`: 1 after a typed error, 2 where it was used wrongly, 130 interrupted."""
    try:
        return work()
    except BashGymError as error:
        print(f"error [{error.code}]: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        return 2 if error.code in ("usage", "invalid_field") else error.exit_status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def say(line: str) -> None:
    """Progress, for a person: to stderr."""
    print(line, file=sys.stderr, flush=True)
