"""Which trainer implementation a run uses on this machine, and why. Asked for and absent is a refusal, never a fallback."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.methods import registry

_NEEDED = ("torch", "transformers", "trl", "peft", "datasets")


def resolve_backend(request: Mapping[str, Any], runtime: Mapping[str, Any]) -> dict[str, Any]:
    """{name, reason, load_in_4bit} for the manifest; typed refusals for what this machine lacks."""
    packages = runtime["packages"]
    method = registry.get(str(request["strategy"]))
    missing = [name for name in _NEEDED if name not in packages]
    if missing:
        raise fail(
            "missing_extra", f"the training interpreter lacks {', '.join(missing)}", hint="pip install 'bashgym[train]'"
        )
    _refuse_unbuilt(request)
    _refuse_absent(request, packages)
    asked = str(request.get(f"{'grpo' if method.name == 'rlvr' else method.name}_backend") or "auto")
    if asked == "unsloth":
        raise _unsloth(packages)
    reason = "asked for" if asked == "plain" else "auto: TRL on plain Transformers is the only backend of this version"
    return {"name": "plain", "asked": asked, "reason": reason, "load_in_4bit": _four_bit(request, packages)}


def _unsloth(packages: Mapping[str, str]) -> BashGymError:
    if "unsloth" not in packages:
        return fail(
            "missing_extra",
            "sft_backend is unsloth, but the training interpreter has no unsloth",
            hint="Point BASHGYM_TRAINING_PYTHON at an environment that has it, or use sft_backend plain.",
            fields=["sft_backend"],
        )
    return fail(
        "strategy_not_built",
        "the unsloth backend is not in this version",
        hint="Use sft_backend plain.",
        fields=["sft_backend"],
    )


def _refuse_unbuilt(request: Mapping[str, Any]) -> None:
    """Fields that the registry describes and no code here carries out: set, they are refused, not ignored."""
    for name, unset in (("auto_push_hf", False), ("auto_deploy_ollama", False), ("num_processes", 1)):
        if request[name] != unset:
            raise fail(
                "export_unavailable" if name != "num_processes" else "target_unavailable",
                f"{name}={request[name]} is not carried out by this version",
                hint=f"Leave {name} at {json.dumps(unset)}.",
                fields=[name],
            )


def _refuse_absent(request: Mapping[str, Any], packages: Mapping[str, str]) -> None:
    """Reporters and kernels that were asked for and are not installed where the training runs."""
    wanted = {name: "report_to" for name in request["report_to"] if name != "none"}
    if request.get("use_liger"):
        wanted["liger-kernel"] = "use_liger"
    for package, field in wanted.items():
        if package not in packages:
            raise fail(
                "missing_extra",
                f"{field} needs {package}, which the training interpreter does not have",
                hint=f"pip install {package}",
                fields=[field],
            )


def _four_bit(request: Mapping[str, Any], packages: Mapping[str, str]) -> bool:
    """`load_in_4bit`: null means wherever a CUDA device and bitsandbytes are; true elsewhere is refused."""
    wanted = request["load_in_4bit"]
    can = shutil.which("nvidia-smi") is not None and "bitsandbytes" in packages
    if wanted and not can:
        raise fail(
            "quantization_unavailable",
            "load_in_4bit is true, but there is no CUDA device with bitsandbytes here",
            hint="Set load_in_4bit to false (or leave it out) on this machine.",
            fields=["load_in_4bit"],
        )
    return bool(can and request["use_lora"]) if wanted is None else bool(wanted)


def check_trainer_args(request: Mapping[str, Any], settings: Settings, runtime: Mapping[str, Any]) -> None:
    """Every key of `trainer_args` is an argument of the installed TRL config and not one that a field of ours decides."""
    given = dict(request["trainer_args"])
    if not given:
        return
    import difflib

    known = trl_fields(str(request["strategy"]), settings, runtime)
    owned = owned_args()
    for name in given:
        if name in owned:
            ours = owned[name]
            raise fail(
                "field_has_flag",
                f"trainer_args.{name} is decided by {ours}",
                hint=f"Set {ours} instead." if ours != "the run" else "Leave it out.",
                fields=[f"trainer_args.{name}"],
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"TRL {runtime['packages'].get('trl')} has no such argument."
            raise fail(
                "unknown_trainer_arg",
                f"trainer_args.{name} is unknown to TRL. {hint}",
                hint=hint,
                fields=[f"trainer_args.{name}"],
            )


def owned_args() -> dict[str, str]:
    """TRL argument → the field of ours (or `the run`) that decides it."""
    from bashgym.methods.trl_names import OWNED, SHARED

    return {name: "the run" for name in OWNED} | {theirs: ours for ours, theirs in SHARED.items()}


def trl_fields(strategy: str, settings: Settings, runtime: Mapping[str, Any]) -> list[str]:
    """Argument names of the TRL config class, asked of the training interpreter once per set of package versions."""
    path = settings.home / "cache" / f"trl-{strategy}-{digest_json(runtime['packages'])[:16]}.json"
    try:
        return list(read_object(path))
    except BashGymError:
        pass
    command = [settings.training_python, "-m", "bashgym.training.describe", strategy]
    done = subprocess.run(command, capture_output=True, text=True, env=child_env(), check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise fail(
            "missing_extra", f"TRL cannot be asked for its arguments: {last[:300]}", hint="pip install 'bashgym[train]'"
        )
    fields = dict(json.loads(done.stdout))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, fields)
    return list(fields)
