"""More than one question of the same data: Holm over metrics, alpha over candidates, boundaries of planned looks.

Pure functions of numbers. Every p and alpha is two-sided, a share in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bashgym.core.errors import fail
from bashgym.evals.stats import normal_quantile

if TYPE_CHECKING:
    from bashgym.evals.stats import Floats

ALPHA = 0.05
SPENDING = ("obrien_fleming", "pocock")
_NODES = 201


class Look(NamedTuple):
    """One planned look at the data."""

    share: float
    """Share of the items that are in by then."""
    spent: float
    """Chance of a wrong claim up to and with this look."""
    z: float
    """Claim a difference if |z| is beyond this."""
    alpha: float
    """The same as a two-sided p."""


def holm(p_values: Sequence[float]) -> list[float]:
    """p adjusted for all of them being read, in the given order (Holm 1979, Scand. J. Stat. 6:65). Valid under dependence."""
    if not all(0 <= p <= 1 for p in p_values):
        raise fail("invalid_field", "p-values lie in 0 to 1", fields=["p_values"])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted


def candidate_alpha(look: int, alpha: float = ALPHA) -> float:
    """The alpha of the `look`-th candidate against one baseline on the same items: alpha, then alpha / (j (j - 1)).

    How many will come is not known, so alpha / j would add up without bound. These add up to 2 alpha two-sided: a wrong
    "improved", which is one side, comes with at most alpha over all candidates ever, by Bonferroni's inequality under any
    dependence (alpha spending: Lan & DeMets 1983, Biometrika 70:659; open-ended: Foster & Stine 2008, JRSS B 70:429).
    The first candidate is judged as if it were the only one.
    """
    if look < 1:
        raise fail("invalid_field", f"looks are counted from 1, not {look}", fields=["looks"])
    return alpha if look == 1 else alpha / (look * (look - 1))


def least_clusters(alpha: float) -> int:
    """Fewest clusters that can show anything at `alpha`: G all move one way by chance with probability 2 / 2^G."""
    return math.floor(1 - math.log2(alpha)) + 1


def spent(share: float, kind: str = "obrien_fleming", alpha: float = ALPHA) -> float:
    """Alpha spent when `share` of the items is in, two-sided with symmetric halves (Lan & DeMets 1983, eqs. 5 and 6)."""
    if kind not in SPENDING:
        raise fail("invalid_field", f"no spending function is called {kind!r}", f"Known: {', '.join(SPENDING)}.")
    if not 0 < share <= 1:
        raise fail(
            "invalid_field", f"a look comes after a share in (0, 1] of the items, not {share:g}", fields=["looks"]
        )
    if kind == "pocock":
        return alpha * math.log(1 + (math.e - 1) * share)
    return 2 * math.erfc(normal_quantile(1 - alpha / 4) / math.sqrt(2 * share))


def boundaries(shares: Sequence[float], kind: str = "obrien_fleming", alpha: float = ALPHA) -> list[Look]:
    """What each planned look at growing data may claim so that all of them together err with at most `alpha`.

    Recursive integration over the paths that have not crossed (Armitage, McPherson & Rowe 1969, JRSS A 132:235), by
    Gauss-Legendre quadrature. `invalid_field` unless shares rise within (0, 1].
    """
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    at, mass, before, used = np.zeros(1), np.ones(1), 0.0, 0.0
    looks = []
    for share in shares:
        total = spent(share, kind, alpha)
        if share <= before:
            raise fail("invalid_field", "the shares of looks must rise", fields=["looks"])
        root = math.sqrt(share - before)

        bound = _bound(at, mass, root, total - used)
        z = bound / math.sqrt(share)
        looks.append(Look(share, total, z, math.erfc(z / math.sqrt(2))))
        points = bound * nodes
        density = np.exp(-(((points[:, None] - at) / root) ** 2) / 2) / (root * math.sqrt(2 * math.pi))
        at, mass, before, used = points, (density @ mass) * weights * bound, share, total
    return looks


def _bound(at: Floats, mass: Floats, root: float, target: float) -> float:
    """The bound that paths of density `mass` at `at` cross with probability `target`, by bisection."""
    from scipy.special import ndtr

    low, high = 0.0, 12.0
    for _ in range(80):
        middle = (low + high) / 2
        crossing = float(mass @ (ndtr((at - middle) / root) + ndtr((-middle - at) / root)))
        low, high = (middle, high) if crossing > target else (low, middle)
    return high
