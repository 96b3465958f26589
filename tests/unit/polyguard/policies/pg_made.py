"""Observations made by hand, for policies that are asked about one thing."""

from __future__ import annotations

from typing import Any

import msgspec

from polyguard.env.types import (
    ActionType,
    Candidate,
    DecisionMode,
    Difficulty,
    Missing,
    Observation,
    ProblemKind,
    Severity,
    SubEnvironment,
    Warning,
)

KEEP = Candidate("cand_01", DecisionMode.REGIMEN_OPT, ActionType.KEEP_REGIMEN)
REVIEW = Candidate("cand_02", DecisionMode.REVIEW, ActionType.REQUEST_PHARMACIST_REVIEW)


def rx(drug: str, mg: float | None = None, **more: Any) -> dict[str, Any]:
    row = {
        "drug": drug,
        "class": "",
        "daily_mg": mg,
        "dose_bucket": "MEDIUM",
        "indication": None,
        "duration_days": 400,
        "needs_taper": False,
        "tapering": False,
        "on_hold": False,
    }
    return row | more


def act(number: int, kind: ActionType, target: str | None = None, **more: Any) -> Candidate:
    made = Candidate(f"cand_{number:02d}", DecisionMode.REGIMEN_OPT, kind, target)
    return msgspec.structs.replace(made, **more)


def warn(number: int, kind: ProblemKind, severity: Severity, *drugs: str) -> Warning:
    return Warning(f"w{number}", kind, drugs, severity, " ".join(drugs))


def seen(
    medications: list[dict[str, Any]],
    candidates: list[Candidate],
    *,
    warnings: list[Warning] | None = None,
    missing: list[Missing] | None = None,
    **patient: Any,
) -> Observation:
    person = {"age": 80, "sex": "F", "weight_kg": 60.0, "frailty": 0.3, "egfr": 70, "crcl": 65, "comorbidities": []}
    return Observation(
        episode_id="made",
        task_id="easy/ddi_screening",
        difficulty=Difficulty.EASY,
        sub_environment=SubEnvironment.DDI,
        step_index=0,
        steps_remaining=5,
        patient=person | patient,
        medications=medications,
        labs={"creatinine": {"value": 0.8, "age_days": 3, "flag": ""}},
        vitals={},
        warnings=warnings or [],
        burden={"index": 0.2, "n_drugs": len(medications)},
        conflicts=[],
        missing=missing or [],
        candidates=[KEEP, REVIEW, *candidates],
        history=[],
        abstention={"recommended": False, "reasons": []},
    )
