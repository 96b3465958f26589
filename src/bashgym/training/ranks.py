"""What a training process shares with its peers. Alone, it is the first of one and everything here is immediate.

Every function but `is_first` and `count` is collective: all ranks call it at the same point, or all wait.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from bashgym.store.run_dir import RunDir
from bashgym.training.launcher import RENDEZVOUS


class Listener(RunDir):
    """The run directory for a rank that is not the first: it reads, and leaves the records to the first."""

    def write_json(self, name: str, value: object) -> None:
        """Nothing."""

    def append_event(self, kind: str, **payload: object) -> None:
        """Nothing."""

    def write_control(self, action: str) -> None:
        """Nothing."""


def join(run_path: Path, rank: int | None) -> RunDir:
    """Meets the peers (rank None: there are none) and returns the run as this rank may use it."""
    if rank is None:
        return RunDir(run_path)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        # gloo beside nccl: flags and numbers on the host travel without a device synchronisation.
        "cuda:nccl,cpu:gloo" if cuda else "gloo",
        init_method=f"file://{run_path / RENDEZVOUS}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    return RunDir(run_path) if rank == 0 else Listener(run_path)


def leave() -> None:
    """Ends what `join` began, after a run that went well."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def count() -> int:
    """How many processes train."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_first() -> bool:
    """True for the one that writes."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def largest(*values: float) -> list[float]:
    """Position by position the largest over all ranks. Where only one rank knows a number, the others give less."""
    if count() == 1:
        return list(values)
    numbers = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(numbers, distributed.ReduceOp.MAX)
    return [float(number) for number in numbers]


def wait() -> None:
    """Until all ranks are here."""
    largest(0.0)


def whole_state(trainer: Any) -> dict[str, torch.Tensor] | None:
    """The weights of a sharded model, gathered on the first rank; None where each rank has them whole anyway."""
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    return trainer.accelerator.get_state_dict(trainer.model_wrapped) if sharded else None
