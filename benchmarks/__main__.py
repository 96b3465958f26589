"""`python -m benchmarks`: all of it, into benchmarks/RESULTS.md."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path

from bashgym.core.clock import utc_now
from benchmarks import cli, client, data, metrics, rewards, training
from benchmarks.measure import Result, table


def main() -> None:
    """Runs the groups named on the command line, by default all."""
    groups = {
        "cli": cli.run,
        "metrics": metrics.run,
        "data": data.run,
        "rewards": rewards.run,
        "client": client.run,
        "training": training.run,
    }
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or groups:
            work = Path(folder) / name
            work.mkdir()
            found = groups[name](work)
            print(table(found), flush=True)
            results += found
    if len(sys.argv) == 1:
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        head = f"# Measured {utc_now()[:10]}\n\n{machine}. "
        head += "Medians of several runs, neighbours measured in the same run. Written by `make bench`.\n\n"
        (Path(__file__).parent / "RESULTS.md").write_text(head + table(results) + "\n")


if __name__ == "__main__":
    main()
