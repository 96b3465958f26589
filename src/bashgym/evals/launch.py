"""Who could carry a DPPO update out on this machine: the reference update of this package, or an outside backend.

Commands are argv lists; a template is split once and its placeholders are filled word by word, so nothing in a path or a
replay is ever read by a shell. No outside backend is assumed to read a replay: without a command of the user's own it is
planned as not runnable, and plain GRPO is never passed off as DPPO.
"""

from __future__ import annotations

import os
import shlex
import shutil
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.settings import Settings
from bashgym.methods.dppo import BACKENDS

if TYPE_CHECKING:
    from bashgym.evals.smoke import SmokeRequest

PLACEHOLDERS = ("replay", "base_model", "output_dir", "max_steps", "n_gpus_per_node")
"""Names that a command template may hold in braces."""
OUTSIDE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "verl": (("verl",), ("VERL_HOME",)),
    "skyrl": (("skyrl-train", "skyrl"), ("SKYRL_HOME",)),
    "tmax_open_instruct": (("open-instruct",), ("TMAX_OPEN_INSTRUCT_DIR", "OPEN_INSTRUCT_ROOT")),
}
"""Outside backend -> (packages of the training interpreter, variables that name a checkout), in order of preference."""
ECHO_HOOK = "bashgym.training.echo:observation_loss"
RWML_HOOK = "bashgym.envs.rewards.rwml:reward_factory"


def check_request(backend: str, template: str | None) -> None:
    """`invalid_field` for an unknown backend, or a template that cannot be split or has an unknown placeholder."""
    known = ("auto", *BACKENDS)
    if backend not in known:
        raise fail(
            "invalid_field", f"backend is {backend[:80]!r}; allowed: one of {', '.join(known)}", fields=["backend"]
        )
    if template is not None:
        fill(template, dict.fromkeys(PLACEHOLDERS, ""))


def fill(template: str, values: Mapping[str, str]) -> list[str]:
    """The template's words, each with its placeholders replaced. Braces of one's own are written twice."""
    try:
        words = shlex.split(template)
        made = []
        for word in words:
            for _, name, spec, conversion in string.Formatter().parse(word):
                if name is not None and (name not in values or spec or conversion):
                    raise ValueError(f"{{{name}}} is no placeholder; there are {', '.join(PLACEHOLDERS)}")
            made.append(word.format_map(values))
    except ValueError as error:
        raise fail("invalid_field", f"command_template: {error}", fields=["command_template"]) from error
    if not made:
        raise fail("invalid_field", "command_template is empty", fields=["command_template"])
    return made


def plan(request: SmokeRequest, folder: Path, settings: Settings, tokens: tuple[int, str]) -> dict[str, Any]:
    """The launch plan without `env` and `script_path`. `tokens`: (longest sequence, why this model does not fit)."""
    chosen = "bashgym" if request.backend == "auto" else request.backend
    packages = _packages(settings)
    found: dict[str, Any] = {
        "backend": chosen,
        "requested_backend": request.backend,
        "fallback_to_grpo": chosen == "grpo_fallback",
        "cwd": str(Path.cwd()),
        "warnings": [],
        "backends": {name: _where(name, packages) for name in OUTSIDE},
    }
    if chosen == "bashgym":
        return found | _own(request, packages, tokens)
    if chosen == "grpo_fallback":
        return found | _grpo(request)
    template = request.command_template or dict(settings.dppo_commands).get(chosen)
    return found | _outside(request, chosen, folder, found["backends"][chosen], template)


def _packages(settings: Settings) -> Mapping[str, str]:
    from bashgym.core.runtime import runtime_facts

    try:
        packages: Mapping[str, str] = runtime_facts(settings.training_python)["packages"]
    except BashGymError:
        return {}
    return packages


def _where(name: str, packages: Mapping[str, str]) -> str:
    """Where an outside backend was found; empty if nowhere."""
    wanted, variables = OUTSIDE[name]
    for package in wanted:
        if package in packages:
            return f"{package} {packages[package]}"
    for variable in variables:
        folder = os.environ.get(variable, "")
        if folder and Path(folder).is_dir():
            return folder
    return ""


def _own(request: SmokeRequest, packages: Mapping[str, str], tokens: tuple[int, str]) -> dict[str, Any]:
    longest, lack = tokens
    missing = [name for name in ("torch", "transformers", "trl", "peft") if name not in packages]
    if missing:
        lack = f"the training interpreter lacks {', '.join(missing)}: pip install 'bashgym[train]'"
    sets = {"max_steps": request.max_steps, "warmup_ratio": 0, "max_seq_length": max(8, longest), "sample_prompts": 0}
    command = [sys.executable, "-m", "bashgym", "training", "start", "--strategy", "dppo"]
    command += ["--model", request.base_model, "--dataset-path", str(Path(request.replay_path).absolute())]
    command += [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    warnings = []
    if request.echo_enabled or request.rwml_enabled:
        warnings.append("ECHO and RWML are objectives of grpo runs; the DPPO update does not add them")
    if request.n_gpus_per_node > 1:
        warnings.append("the plan starts one process; set num_processes for more")
    return {
        "available": not missing,
        "runnable": not lack,
        "reason": lack or "the reference update of this package reads the replay",
        "command": [*command, "--wait", "--json"],
        "warnings": warnings,
    }


def _outside(request: SmokeRequest, name: str, folder: Path, where: str, template: str | None) -> dict[str, Any]:
    values = {
        "replay": str(Path(request.replay_path).absolute()),
        "base_model": request.base_model,
        "output_dir": str(folder),
        "max_steps": str(request.max_steps),
        "n_gpus_per_node": str(request.n_gpus_per_node),
    }
    command = fill(template, values) if template else []
    lack = ""
    if not where:
        packages, variables = OUTSIDE[name]
        lack = (
            f"{name} is not installed: no package {' or '.join(packages)}, and {' or '.join(variables)} names no folder"
        )
    elif not command:
        lack = f"{name} is at {where}, but nothing in it is known to read {request.replay_path}: give command_template"
    elif shutil.which(command[0]) is None:
        lack = f"command_template begins with {command[0]}, which is no program on PATH"
    checkout = {"cwd": where} if Path(where).is_dir() and where else {}
    return {
        "available": bool(where),
        "runnable": not lack,
        "reason": lack or f"your command for {name} at {where}; whether it does DPPO is its own claim",
        "command": command,
        **checkout,
    }


def _grpo(request: SmokeRequest) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "bashgym",
        "training",
        "start",
        "--strategy",
        "grpo",
        "--model",
        request.base_model,
    ]
    return {
        "available": False,
        "runnable": False,
        "reason": "grpo_fallback is ordinary GRPO: it samples anew and reads no replay, so it is not a DPPO update; to "
        "run it, start grpo with prompts of your own",
        "command": [*command, "--dataset-path", "PROMPTS.jsonl", "--set", f"max_steps={request.max_steps}", "--json"],
    }


def environment(request: SmokeRequest, folder: Path) -> dict[str, str]:
    """Variables for the launched command, all texts."""
    echo, rwml = request.echo_enabled, request.rwml_enabled
    values: dict[str, object] = {
        "REPLAY_PATH": Path(request.replay_path).absolute(),
        "OUTPUT_DIR": folder,
        "BASE_MODEL": request.base_model,
        "MAX_STEPS": request.max_steps,
        "ECHO_ENABLED": int(echo),
        "ECHO_LAMBDA": request.echo_aux_lambda,
        "RWML_ENABLED": int(rwml),
        "RWML_DISTANCE_THRESHOLD": request.rwml_distance_threshold,
        "RWML_EASY_PASS_RATE_THRESHOLD": request.rwml_easy_pass_rate_threshold,
        "RWML_EASY_KEEP_PROBABILITY": request.rwml_easy_keep_probability,
        "RWML_HISTORY_WINDOW": request.rwml_history_window,
        "RWML_EMBEDDING_MODEL": request.rwml_embedding_model,
        "RWML_KL_BETA": request.rwml_kl_beta,
        "WORLD_MODEL_ADAPTER": "bashgym" if echo or rwml else "",
        "ECHO_LOSS_HOOK": ECHO_HOOK if echo else "",
        "TRL_RWML_REWARD_FACTORY": RWML_HOOK if rwml else "",
        "VERL_RWML_REWARD_FACTORY": "",
    }
    return {f"BASHGYM_DPPO_{name}": str(value) for name, value in values.items()}


def world_model_probe(request: SmokeRequest, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the world-model objectives would find, and what carries them out."""
    transitions, observations = summary["rwml_transitions"], summary["echo_observations"]
    return {
        "schema_version": "bashgym.world_model_probe.v1",
        "echo": {"enabled": request.echo_enabled, "observations": observations, "hook": ECHO_HOOK},
        "rwml": {"enabled": request.rwml_enabled, "transitions": transitions, "hook": RWML_HOOK},
        "ready": bool((observations or not request.echo_enabled) and (transitions or not request.rwml_enabled)),
        "carried_out_by": "grpo runs with echo_enabled or rwml_enabled; not by the DPPO update",
        "note": "diagnostic only: these objectives promote nothing by themselves",
    }
