"""What is known about drugs: the tables with their sources, quick look-ups, renal formulas and a local evidence index.

The bottom layer of PolyGuard. Simulation only; `CHANGES.md` says where the tables depart from the draft they were made from.
"""

from polyguard.knowledge.rows import (
    SEVERITY_WEIGHT,
    BeersHit,
    Drug,
    Interaction,
    MonitoringRule,
    Product,
    RenalHit,
    Substitution,
    TaperRule,
)
from polyguard.knowledge.tables import Knowledge, load

__all__ = [
    "SEVERITY_WEIGHT",
    "BeersHit",
    "Drug",
    "Interaction",
    "Knowledge",
    "MonitoringRule",
    "Product",
    "RenalHit",
    "Substitution",
    "TaperRule",
    "load",
]
