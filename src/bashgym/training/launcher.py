"""Several training processes (ranks) of one run: started, watched and ended by the trainer process. No torch.

`torchrun`, and `accelerate launch` on top of it, put every rank into a session of its own, where the supervisor's kill of
the trainer's process group does not reach it, and turn every exit status into 1. Here the ranks stay in the group, the
first failure decides, and no port is opened: they meet in a file of the run directory and talk over loopback.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bashgym.core.files import atomic_write_json
from bashgym.training import EXIT_PAUSED

RENDEZVOUS = ".rendezvous"
"""Where the ranks of the live attempt find each other."""
SHARDING = "distributed.json"
"""The FSDP options or the DeepSpeed config of the run."""
POLL_S = 0.05
GRACE_S = 3.0
_DEEPSPEED: dict[str, Any] = {
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
}
"""What an empty distributed_config means with deepspeed."""


def run(run_path: Path, request: Mapping[str, Any]) -> tuple[int, int]:
    """(exit status, rank it is of): 0 or EXIT_PAUSED of all ranks, else of the one that failed first; negative: its signal."""
    (run_path / RENDEZVOUS).unlink(missing_ok=True)
    base = _DEEPSPEED if request["distributed"] == "deepspeed" else {}
    atomic_write_json(run_path / SHARDING, {**base, **request["distributed_config"]})
    count = int(request["num_processes"])
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            command = [sys.executable, "-u", "-m", "bashgym.training", str(run_path), str(rank)]
            ranks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, env=_environment(rank, count, request)))
        return _follow(ranks)
    finally:
        _end(ranks)
        (run_path / RENDEZVOUS).unlink(missing_ok=True)


def _environment(rank: int, count: int, request: Mapping[str, Any]) -> dict[str, str]:
    """What accelerate reads, threads that share the cores, and sockets on loopback only."""
    threads = request["torch_threads"] or max(1, (os.cpu_count() or 1) // count)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {
        **os.environ,
        **{name: str(value) for name, value in places.items()},
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }


def _follow(ranks: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int]:
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = [(code, rank) for rank, code in enumerate(codes) if code not in (None, 0, EXIT_PAUSED)]
        if failed:
            # A death by signal first: what its peers say follows from their broken connections to it.
            return min((int(code or 0), rank) for code, rank in failed)
        if None not in codes:
            return int(codes[0] or 0), 0
        time.sleep(POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """No rank is left behind."""
    end = time.monotonic() + GRACE_S
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        try:
            rank.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
