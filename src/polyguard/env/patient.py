"""The simulated patient: what is true of it, what the chart shows of that, and how kidneys and doses follow from numbers.

Nothing here is shown to an agent as it stands: `observe` decides what is.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from polyguard.env.types import DoseBucket
from polyguard.knowledge.renal import ckd_epi_2021, cockcroft_gault
from polyguard.knowledge.rows import RenalHit
from polyguard.knowledge.tables import Knowledge

VITAL = frozenset(
    {
        *("acute_coronary_syndrome", "angina", "asthma", "atrial_fibrillation", "bipolar", "copd", "depression"),
        *("diabetes_t2", "heart_failure", "hypertension", "hypothyroidism", "infection", "mechanical_valve"),
        *("parkinson", "psychosis", "rheumatoid_arthritis", "secondary_prevention_ascvd", "seizure", "tuberculosis"),
        *("uti", "vte"),
    }
)
"""Indications that may not be left without a drug; the others are symptoms."""
TAPERING_EXPOSURE = 0.6
"""What is left of a drug's exposure once it is being withdrawn."""
_EXPOSURE = {DoseBucket.LOW: 0.7, DoseBucket.MEDIUM: 0.85, DoseBucket.HIGH: 1.0, DoseBucket.HOLD: 0.0}


class Taper(msgspec.Struct):
    """A withdrawal under way."""

    step_pct: float
    interval_days: int
    last_day: int
    steps_done: int = 1


class Med(msgspec.Struct):
    """A drug that the patient takes."""

    drug: str
    """Id in the tables, or of a product nobody has taken apart yet."""
    daily_mg: float | None
    indication: str
    duration_days: int
    prescriber: str = "gp"
    bucket: DoseBucket = DoseBucket.MEDIUM
    on_hold: bool = False
    taper: Taper | None = None
    components: tuple[str, ...] = ()
    """Of an opaque product: what is really in it."""

    def exposure(self) -> float:
        """0..1: how much of the drug's effect there is."""
        if self.on_hold:
            return 0.0
        return _EXPOSURE.get(self.bucket, 0.85) * (TAPERING_EXPOSURE if self.taper else 1.0)


class Lab(msgspec.Struct):
    """A laboratory value: the true one, and the one in the chart."""

    true: float
    shown: float | None
    age_days: int = 0


class Limit(msgspec.Struct, frozen=True):
    """How much of a drug a patient may take."""

    daily_mg: float | None
    """The least of the limits of label, age, kidneys and liver. 0.0: none at all; None: no limit known."""
    renal: RenalHit | None
    """The rule of the kidneys, if one applies."""


class Patient(msgspec.Struct):
    """One patient, whole."""

    id: str
    age: int
    female: bool
    weight_kg: float
    height_cm: float
    conditions: tuple[str, ...]
    """Diagnoses, sorted."""
    treated: tuple[str, ...]
    """Indications that the regimen covered at the beginning."""
    frailty: float
    true_adherence: float
    severity: dict[str, float]
    """treated indication -> 0..1."""
    meds: list[Med]
    labs: dict[str, Lab]
    vitals: dict[str, float]
    otc: list[Med] = []
    """Taken, and not in the chart until somebody asks."""
    day: int = 0
    computed: dict[float, tuple[float, float]] = {}
    """Creatinine -> what follows from it; age, sex and weight do not change in an episode."""
    limits: dict[tuple[str, float | None], Limit] = {}
    """(drug, creatinine) -> its limit."""
    fits: dict[tuple[object, ...], tuple[bool, ...]] = {}
    """(old drug, regimen, creatinine) -> which of its replacements are good. The three are shared by all copies."""

    def creatinine(self, seen: bool) -> float | None:
        """mg/dL; of the chart if `seen`."""
        lab = self.labs["creatinine"]
        return lab.shown if seen else lab.true

    def kidneys(self, seen: bool) -> tuple[float | None, float | None]:
        """(eGFR, CrCl), None where the chart has no creatinine."""
        value = self.creatinine(seen)
        if value is None:
            return None, None
        if value not in self.computed:
            clearance = cockcroft_gault(self.age, self.weight_kg, value, self.female)
            self.computed[value] = ckd_epi_2021(self.age, value, self.female), clearance
        return self.computed[value]

    def limit(self, drug: str, knowledge: Knowledge, *, seen: bool) -> Limit:
        """By the chart if `seen`, else by the true kidneys."""
        creatinine = self.creatinine(seen)
        key = drug, creatinine
        if key not in self.limits:
            egfr, crcl = self.kidneys(seen)
            who: dict[str, Any] = {"weight_kg": self.weight_kg, "creatinine": creatinine}
            hits = knowledge.renal(drug, egfr, crcl, age=self.age, conditions=self.conditions, **who)
            cap = knowledge.dose_cap(drug, self.age, egfr, crcl, self.conditions, **who)
            self.limits[key] = Limit(cap, hits[0] if hits else None)
        return self.limits[key]

    def active(self, seen: bool) -> dict[str, Med]:
        """Drug -> how it is taken, without what is on hold; of the chart if `seen`, else with what it hides."""
        found: dict[str, Med] = {}
        for med in self.meds if seen else (*self.meds, *self.otc):
            if med.on_hold:
                continue
            if med.components:
                if not seen:
                    found.update((name, med) for name in med.components)
            else:
                found[med.drug] = med
        return found

    def med(self, drug: str | None) -> Med | None:
        """The entry of the chart for a drug."""
        return next((med for med in self.meds if med.drug == drug), None)

    def copy(self) -> Patient:
        """An independent one; drugs and labs too."""
        made = msgspec.structs.replace(self)
        made.meds = [msgspec.structs.replace(med, taper=_copied(med.taper)) for med in self.meds]
        made.otc = [msgspec.structs.replace(med) for med in self.otc]
        made.labs = {name: msgspec.structs.replace(lab) for name, lab in self.labs.items()}
        made.severity = dict(self.severity)
        return made


def _copied(taper: Taper | None) -> Taper | None:
    return msgspec.structs.replace(taper) if taper else None


def bucket_of(knowledge: Knowledge, drug: str, daily_mg: float | None) -> DoseBucket:
    """The bucket whose dose is nearest on a log scale; NA where dose is not modelled."""
    row = knowledge.drugs.get(drug)
    if daily_mg is None or row is None or row.doses is None:
        return DoseBucket.NA
    if daily_mg <= 0:
        return DoseBucket.HOLD
    names = (DoseBucket.LOW, DoseBucket.MEDIUM, DoseBucket.HIGH)
    return min(zip(names, row.doses, strict=True), key=lambda item: abs(math.log(daily_mg / item[1])))[0]
