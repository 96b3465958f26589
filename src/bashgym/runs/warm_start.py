"""Whether reinforcement learning may begin from this model (`sft_warm_start_policy`): one that never succeeds has no contrast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from bashgym.core.settings import Settings
from bashgym.data.types import Finding, Severity
from bashgym.models.catalog import ModelRef

WEAK_BELOW = 4_000_000_000
"""Parameters below which a model seldom succeeds untrained."""
CODE = "sft_warm_start_missing"


def findings(request: Mapping[str, Any], model: ModelRef, settings: Settings) -> list[Finding]:
    """One that blocks (`always`) or warns (`weak_models_only`) where the model is neither of an SFT run nor an adapter."""
    policy = request.get("sft_warm_start_policy")
    weak = policy == "weak_models_only" and model.n_parameters < WEAK_BELOW
    if not (weak or policy == "always") or model.adapter_path is not None or _of_sft_run(model, settings):
        return []
    severity = Severity.ERROR if policy == "always" else Severity.WARNING
    message = (
        f"sft_warm_start_policy is {policy}, and {model.name} ({model.n_parameters / 1e9:.3g} billion parameters) is neither "
        "of a finished SFT run nor an adapter"
    )
    mend = "Train it with strategy sft first and name that run as base_model, or set sft_warm_start_policy to none."
    return [Finding(CODE, severity, message, mend, "sft_warm_start_policy")]


def _of_sft_run(model: ModelRef, settings: Settings) -> bool:
    if model.source != "run":
        return False
    try:
        return read_object(settings.models_dir / model.name / "request.json").get("strategy") == "sft"
    except BashGymError:
        return False
