"""Which rows of a run are trained on and which are held out: one rule for every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from bashgym.data.splits import eval_indices
from bashgym.training.loop import Job

T = TypeVar("T")


def divided(job: Job, read: Callable[[str], Iterable[T]]) -> Iterator[tuple[T, bool]]:
    """(row, is it held out) of every row that `read(path)` gives; positions count those, as preflight does.

    Held out is the seeded share `eval_split`, or all of `eval_dataset_path`, which then comes last.
    """
    request = job.request
    own_eval = request.get("eval_dataset_path")
    rows, share = int(job.manifest["dataset"]["rows"]), float(request["eval_split"])
    held_out = set() if own_eval else eval_indices(rows, share, int(request["seed"]))
    for position, row in enumerate(read(str(request["dataset_path"]))):
        yield row, position in held_out
    for row in read(str(own_eval)) if own_eval else ():
        yield row, True
