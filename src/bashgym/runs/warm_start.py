"""Whether a run may begin from this model.

Reinforcement learning (`sft_warm_start_policy`): a model that never succeeds has no contrast. Reward models: what is saved
has to be whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
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


def check_scorer(request: Mapping[str, Any], model: ModelRef) -> None:
    """`unsupported_model`: the adapter of a language model, which the adapter of a reward model could not stand on, or a
    reward model whose head is not that of `reward_kind`."""
    from bashgym.data.reward_rows import HEADS, chosen_kind, count_kinds

    if model.task == "CAUSAL_LM":
        if model.adapter_path is None or not request["use_lora"]:
            return
        text = f"{model.name} is an adapter, and the reward model's adapter cannot stand on another one"
        hint = "Train it with artifact_retention deployable and name its merged/, or set use_lora to false."
        raise fail("unsupported_model", text, hint, ["base_model"])
    kind = chosen_kind(count_kinds(Path(str(request["dataset_path"])), request), request)
    if model.task != HEADS[kind]:
        text = f"{model.name} has the head {model.task}, and {kind} rows need {HEADS[kind]}"
        raise fail("unsupported_model", text, "Start from the language model.", ["base_model"])


def _of_sft_run(model: ModelRef, settings: Settings) -> bool:
    if model.source != "run":
        return False
    try:
        return read_object(settings.models_dir / model.name / "request.json").get("strategy") == "sft"
    except BashGymError:
        return False
