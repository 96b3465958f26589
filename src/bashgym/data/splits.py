"""Which rows are held out for evaluation. The same answer on every platform and Python version.

Owns: plain and group-aware splits. Does not own: reading rows; the caller counts them or names their groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bashgym.core.errors import fail


def eval_indices(n_rows: int, fraction: float, seed: int) -> set[int]:
    """0-based rows to hold out: about `fraction` of them; at least 1 and never all if there are 2 and it is not 0.

    Floyd's sampling over `Random(seed).random()`, the one sequence that Python promises to keep. `invalid_field` if
    `fraction` is not in [0, 1).
    """
    count = _held_out(n_rows, fraction)
    draw = Random(seed).random  # noqa: S311 - a reproducible split, not a secret
    chosen: set[int] = set()
    for bound in range(n_rows - count, n_rows):
        pick = int(draw() * (bound + 1))
        chosen.add(bound if pick in chosen else pick)
    return chosen


def grouped_eval_indices(keys: Sequence[str], fraction: float, seed: int) -> set[int]:
    """Like `eval_indices`, but rows with the same key (session, repository, document) stay on one side.

    Takes groups in seeded order while they fit into the share; if none fits, the smallest. `invalid_field` if all rows
    are one group, which cannot be split.
    """
    count = _held_out(len(keys), fraction)
    if not count:
        return set()
    groups: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    if len(groups) == 1:
        raise fail("invalid_field", "all rows belong to one group; no split keeps it whole", fields=["eval_split"])
    draw = Random(seed).random  # noqa: S311
    order = sorted(sorted(groups), key=lambda _: draw())
    chosen: set[int] = set()
    for key in order:
        if len(chosen) + len(groups[key]) <= count:
            chosen.update(groups[key])
    return chosen or set(groups[min(order, key=lambda key: len(groups[key]))])


def _held_out(n_rows: int, fraction: float) -> int:
    if not 0 <= fraction < 1:
        raise fail("invalid_field", f"the eval share must be from 0 to below 1, not {fraction}", fields=["eval_split"])
    if n_rows < 2 or fraction == 0:
        return 0
    return min(max(1, round(n_rows * fraction)), n_rows - 1)
