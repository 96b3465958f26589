"""Which trainer implementation a run uses on this machine, and why. Asked for and absent is a refusal, never a fallback."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.methods import registry
from bashgym.methods.common import RETENTION

_NEEDED = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")
UNSLOTH_LIMITS = {"transformers": (5, 17), "trl": (1, 15), "datasets": (4,)}
"""Newest versions that Unsloth 2026.10 says it works with; constraints-unsloth.txt has a whole set."""
KERNELS = {"flash-attn": "flash_attention_2", "kernels": "kernels-community/flash-attn2"}
"""Package → the attention that keeps packed rows apart."""
_OPTIM = "adamw_torch"
"""The default of `optim`, which every transformers has."""


def resolve_backend(request: Mapping[str, Any], runtime: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """{name, asked, reason, load_in_4bit, attention, processes} for the manifest; typed refusals for what is not here.

    `runtime` are the facts of the training interpreter, `gpus` the CUDA devices of this machine.
    """
    packages: Mapping[str, str] = runtime["packages"]
    missing = [name for name in _NEEDED if name not in packages]
    if missing:
        raise fail(
            "missing_extra", f"the training interpreter lacks {', '.join(missing)}", hint="pip install 'bashgym[train]'"
        )
    _refuse_unbuilt(request)
    _refuse_absent(request, packages, gpus)
    _check_processes(request, packages, gpus)
    name, asked, reason = _choose(request, packages, gpus)
    return {
        "name": name,
        "asked": asked,
        "reason": reason,
        "load_in_4bit": _four_bit(request, packages, gpus),
        "attention": _packing_kernel(request, packages, gpus),
        "processes": _processes(request, gpus),
    }


def _choose(request: Mapping[str, Any], packages: Mapping[str, str], gpus: int) -> tuple[str, str, str]:
    """(backend, what was asked for, why)."""
    field = f"{'grpo' if request['strategy'] == 'rlvr' else request['strategy']}_backend"
    if field == "dppo_backend":
        return "plain", *_reference_update(str(request[field]))
    if field not in registry.fields_of(registry.get(str(request["strategy"]))):
        return "plain", "auto", f"{request['strategy']} has one backend"
    asked = str(request[field])
    if asked == "plain":
        return "plain", asked, "asked for"
    if asked == "trl_vllm":
        _need_vllm(field, packages, gpus)
        return asked, asked, "asked for"
    lack = _unsloth_lack(request, packages, gpus)
    if asked == "auto":
        return ("plain", asked, f"auto: {lack}") if lack else ("unsloth", asked, "auto: installed, with CUDA")
    if lack:
        raise fail(
            "missing_extra",
            f"{field} is unsloth, but {lack}",
            hint="Point BASHGYM_TRAINING_PYTHON at an environment on a CUDA machine that was made with "
            f"`pip install -c constraints-unsloth.txt 'bashgym[train]' unsloth`, or use {field} plain.",
            fields=[field],
        )
    return "unsloth", asked, "asked for"


def _reference_update(asked: str) -> tuple[str, str]:
    """(what was asked for, why): the update of this package is the only one that a run carries out."""
    if asked not in ("auto", "bashgym"):
        raise fail(
            "backend_unavailable",
            f"dppo_backend is {asked}, which `training start` does not drive",
            hint="Use dppo_backend bashgym, or plan the outside launch with `bashgym training smoke-bundle`.",
            fields=["dppo_backend"],
        )
    return asked, "the reference update of this package"


def _unsloth_lack(request: Mapping[str, Any], packages: Mapping[str, str], gpus: int) -> str:
    """What stands between this run and Unsloth, in words; empty if nothing does."""
    if "unsloth" not in packages:
        return "the training interpreter has no unsloth"
    if not gpus:
        return "there is no CUDA device"
    if int(request["num_processes"]) > 1:
        return "unsloth trains in one process"
    for name, limit in UNSLOTH_LIMITS.items():
        if _version(packages[name])[: len(limit)] > limit:
            return f"unsloth works with {name} up to {'.'.join(map(str, limit))}, and {packages[name]} is installed"
    return ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())


def _need_vllm(field: str, packages: Mapping[str, str], gpus: int) -> None:
    lack = "the training interpreter has no vllm" if "vllm" not in packages else ""
    if lack or not gpus:
        raise fail(
            "missing_extra" if lack else "target_unavailable",
            f"{field} is trl_vllm, but {lack or 'there is no CUDA device'}",
            hint=f"pip install 'bashgym[gpu]' on a CUDA machine, or use {field} plain.",
            fields=[field],
        )


def _refuse_unbuilt(request: Mapping[str, Any]) -> None:
    """Fields that the registry describes and no code here carries out: set, they are refused, not ignored."""
    if request["auto_deploy_ollama"]:
        raise fail(
            "export_unavailable",
            "auto_deploy_ollama is not carried out by this version",
            hint="Leave it at false; gguf/ gets a Modelfile for `ollama create`.",
            fields=["auto_deploy_ollama"],
        )


def _refuse_absent(request: Mapping[str, Any], packages: Mapping[str, str], gpus: int) -> None:
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
    if request.get("use_liger") and not gpus:
        raise fail(
            "target_unavailable",
            "use_liger needs a CUDA device, and there is none here",
            hint="Set use_liger to false.",
            fields=["use_liger"],
        )


def _check_processes(request: Mapping[str, Any], packages: Mapping[str, str], gpus: int) -> None:
    """Whether this machine can run `num_processes` the way `distributed` says."""
    count, how = int(request["num_processes"]), str(request["distributed"])
    if count == 1:
        return
    if gpus and count > gpus:
        raise fail(
            "target_unavailable",
            f"num_processes is {count}, and this machine has {gpus} CUDA device{'s' if gpus > 1 else ''}, one a process",
            hint=f"Set num_processes to at most {gpus}.",
            fields=["num_processes"],
        )
    if how == "deepspeed" and "deepspeed" not in packages:
        raise fail(
            "missing_extra",
            "distributed is deepspeed, which the training interpreter does not have",
            hint="pip install deepspeed, or use distributed ddp.",
            fields=["distributed"],
        )
    if how != "ddp" and not gpus:
        raise fail(
            "target_unavailable",
            f"distributed is {how}, and accelerate shards weights on accelerators only: on a CPU every process would hold "
            "them whole, as with ddp",
            hint="Use distributed ddp on this machine.",
            fields=["distributed"],
        )
    if how != "ddp" and request["use_lora"] and RETENTION[str(request["artifact_retention"])]["merged"]:
        raise fail(
            "export_unavailable",
            f"artifact_retention {request['artifact_retention']} keeps merged weights, which cannot be made from shards",
            hint="Use adapter_only or adapter_checkpoint and merge afterwards, or distributed ddp.",
            fields=["artifact_retention"],
        )


def _processes(request: Mapping[str, Any], gpus: int) -> str:
    """How the training processes work together, for the manifest."""
    count = int(request["num_processes"])
    if count == 1:
        return "1"
    return f"{count} with {request['distributed']} over {'nccl' if gpus else 'gloo'}"


def _packing_kernel(request: Mapping[str, Any], packages: Mapping[str, str], gpus: int) -> str | None:
    """The attention that packing needs; None without packing, and on a CPU, where preflight blocks packing."""
    if not request.get("packing") or not gpus:
        return None
    found = next((attention for package, attention in KERNELS.items() if package in packages), None)
    if found is None:
        raise fail(
            "missing_extra",
            "packing needs a variable-length attention kernel, and the training interpreter has neither flash-attn nor "
            "kernels: packed rows would see each other",
            hint="pip install flash-attn, or set packing to false.",
            fields=["packing"],
        )
    return found


def _four_bit(request: Mapping[str, Any], packages: Mapping[str, str], gpus: int) -> bool:
    """`load_in_4bit`: null means wherever a CUDA device and bitsandbytes are; true elsewhere is refused."""
    wanted = request["load_in_4bit"]
    can = gpus > 0 and "bitsandbytes" in packages
    if wanted and not can:
        raise fail(
            "quantization_unavailable",
            "load_in_4bit is true, but there is no CUDA device with bitsandbytes here",
            hint="Set load_in_4bit to false (or leave it out) on this machine.",
            fields=["load_in_4bit"],
        )
    return bool(can and request["use_lora"]) if wanted is None else bool(wanted)


def check_trainer_args(request: Mapping[str, Any], settings: Settings, runtime: Mapping[str, Any]) -> None:
    """Every key of `trainer_args` is an argument of the installed TRL config and not one that a field of ours decides.

    `optim` is one of the installed names. Asked only where a request leaves the defaults.
    """
    given, optim = dict(request["trainer_args"]), str(request["optim"])
    if not given and optim == _OPTIM:
        return
    import difflib

    accepted = trl_accepts(str(request["strategy"]), settings, runtime)
    known, optimizers = accepted["arguments"], accepted["optimizers"]
    if optim not in optimizers:
        near = difflib.get_close_matches(optim, optimizers, n=1)
        raise fail(
            "invalid_field",
            f"optim {optim!r} is not an optimizer of the installed transformers",
            hint=f"Did you mean {near[0]}?" if near else f"Use {_OPTIM}.",
            fields=["optim"],
        )
    owned = owned_args(str(request["strategy"]))
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


def owned_args(strategy: str) -> dict[str, str]:
    """TRL argument → the field of ours (or `the run`) that decides it."""
    from bashgym.methods.trl_names import DECIDED, METHOD_OWNED, OWNED, SHARED

    shared = DECIDED | {theirs: ours for ours, theirs in SHARED.items()}
    return {name: "the run" for name in OWNED} | shared | METHOD_OWNED.get(strategy, {})


def trl_accepts(strategy: str, settings: Settings, runtime: Mapping[str, Any]) -> dict[str, list[str]]:
    """`training.describe` of the training interpreter, asked once per set of package versions."""
    path = settings.home / "cache" / f"accepted-{strategy}-{digest_json(runtime['packages'])[:16]}.json"
    try:
        return {name: list(map(str, known)) for name, known in read_object(path).items() if isinstance(known, list)}
    except BashGymError:
        pass
    command = [settings.training_python, "-m", "bashgym.training.describe", strategy]
    done = subprocess.run(command, capture_output=True, text=True, env=child_env(), check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise fail(
            "missing_extra", f"TRL cannot be asked for its arguments: {last[:300]}", hint="pip install 'bashgym[train]'"
        )
    accepted: dict[str, list[str]] = json.loads(done.stdout)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, accepted)
    return accepted
