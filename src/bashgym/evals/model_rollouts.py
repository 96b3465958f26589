"""The two rollout endpoints: a model against environments, and commands that somebody else chose. Body in, document out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail
from bashgym.core.settings import Settings
from bashgym.envs import sandbox
from bashgym.envs.rollout import EpisodeResult, check_runnable, run_episode
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals import registry
from bashgym.evals.passk import DEFAULT_K, passk_report
from bashgym.evals.rollout_replay import sampling_report, write_replay
from bashgym.evals.rollouts import RolloutConfig, RolloutRecord, roll_out
from bashgym.evals.wire import Attempt, check_attempts, check_k, decode, environments_of
from bashgym.inference.client import ChatClient, EndpointSpec, Price, endpoint_facts

Progress = Callable[[int, int], None]


class ModelRolloutRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/environments/model-rollout-passk."""

    endpoint: EndpointSpec
    environments: list[dict[str, Any]]
    model_id: str = ""
    attempts_per_environment: int = 1
    k_values: tuple[int, ...] | None = None
    """None: those of 1, 4, 8 that the attempts allow."""
    workspace_root: str | None = None
    keep_workspace: bool = False
    allow_dangerous_commands: bool = False
    """Has no effect: commands only ever run in the sandbox."""
    stop_on_error: bool = False
    max_tool_calls: int | None = None
    max_observation_chars: int = 6000
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 512
    request_timeout: float = 60.0
    max_concurrency: int = 64
    seed: int = 0
    use_tool_calling: bool = True
    capture_logprobs: bool = False
    top_logprobs: int = 0
    price: Price | None = None
    filter_zero_std_groups: bool = False
    active_sampling: bool = False
    target_prompt_groups: int | None = None
    dppo_replay_output_path: str | None = None
    include_world_model_replay: bool = False
    rwml_history_window: int = 4
    rollouts_path: str | None = None
    """Finished episodes are kept here, and the same request goes on from them."""
    record_to_registry: bool = True


class CommandAttempt(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Commands for one attempt."""

    environment_id: str
    attempt_index: int
    commands: list[str]
    metadata: dict[str, Any] = {}


class LocalRolloutRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/environments/local-rollout-passk."""

    environments: list[dict[str, Any]]
    command_attempts: list[CommandAttempt]
    model_id: str = ""
    k_values: tuple[int, ...] = (1,)
    workspace_root: str | None = None
    keep_workspace: bool = False
    allow_dangerous_commands: bool = False
    stop_on_error: bool = True
    """An episode ends at the first command that fails."""
    record_to_registry: bool = True


_BOUNDS = {
    "attempts_per_environment": (1, 32),
    "max_observation_chars": (500, 50_000),
    "temperature": (0, 2),
    "max_tokens": (1, 65_536),
    "request_timeout": (1, 600),
    "max_concurrency": (1, 1024),
    "top_logprobs": (0, 20),
    "rwml_history_window": (0, 64),
    "seed": (0, 2**62),
}
_OPTIONAL_BOUNDS = {"max_tool_calls": (1, 100_000), "target_prompt_groups": (1, 128)}


def model_rollouts(settings: Settings, body: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
    """{model_id, report, attempts, rollouts, recorded, sampling_report, dppo_report, dppo_replay, usage, warnings}.

    Everything that can be refused is refused before a rollout is paid for: `attempts_invalid` (too few for k),
    `environment_invalid`, `endpoint_invalid`, `endpoint_unreachable`, `invalid_field`, `unknown_field`, `sandbox_unavailable`.
    """
    request = decode(body, ModelRolloutRequest)
    ks = _check(request)
    environments = environments_of(request.environments)
    model_id = registry.check_model_id(request.model_id or request.endpoint.model or "unnamed")
    sandbox.require()
    asked = digest_json(_without_secrets(request, environments))
    records, usage = asyncio.run(_play(request, environments, asked, progress))
    attempts = [record.attempt for record in records]
    report = passk_report(environments, attempts, ks)
    sampling = sampling_report(records, request)
    replay = write_replay(request, environments, records, sampling["selected"], asked)
    document = {
        "model_id": model_id,
        "endpoint": endpoint_facts(request.endpoint),
        "request_digest": asked,
        "report": report,
        "attempts": msgspec.to_builtins(attempts),
        "rollouts": [_shown(record) for record in records],
        "sampling_report": sampling if request.filter_zero_std_groups or request.active_sampling else None,
        "dppo_report": replay and replay["report"],
        "dppo_replay": replay and replay["file"],
        "usage": usage,
        "warnings": _warnings(request),
    }
    recorded = request.record_to_registry and registry.record(settings, model_id, "environment_passk", report)
    return {**document, "recorded": bool(recorded)}


def _check(request: ModelRolloutRequest) -> tuple[int, ...]:
    """The k to report."""
    for name, (low, high) in {**_BOUNDS, **_OPTIONAL_BOUNDS}.items():
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise fail("invalid_field", f"{name} must lie in {low} to {high}, not {value}", fields=[name])
    if not 0 < request.top_p <= 1:
        raise fail("invalid_field", "top_p must lie above 0 and be at most 1", fields=["top_p"])
    n = request.attempts_per_environment
    ks = request.k_values if request.k_values is not None else tuple(k for k in DEFAULT_K if k <= n)
    check_k(ks)
    if max(ks) > n:
        message = f"pass@{max(ks)} needs {max(ks)} attempts at each environment, and {n} are asked for"
        hint = "Raise attempts_per_environment, or leave k_values out."
        raise fail("attempts_invalid", message, hint, ["attempts_per_environment", "k_values"])
    return ks


def _without_secrets(request: ModelRolloutRequest, environments: Sequence[EnvironmentSpec]) -> dict[str, Any]:
    """What decides the outcome: the identity of a journal."""
    whole = msgspec.to_builtins(request)
    for name in (
        "endpoint",
        "environments",
        "workspace_root",
        "rollouts_path",
        "record_to_registry",
        "max_concurrency",
    ):
        del whole[name]
    digests = [[spec.id, spec.digest()] for spec in environments]
    return {**whole, "endpoint": endpoint_facts(request.endpoint), "environments": digests}


async def _play(
    request: ModelRolloutRequest, environments: Sequence[EnvironmentSpec], digest: str, progress: Progress | None
) -> tuple[list[RolloutRecord], dict[str, Any]]:
    names = RolloutConfig.__struct_fields__
    config = RolloutConfig(**{name: getattr(request, name) for name in names})
    client = ChatClient(
        request.endpoint,
        timeout_s=request.request_timeout,
        max_concurrency=request.max_concurrency,
        price=request.price,
    )
    journal = Path(request.rollouts_path).expanduser().absolute() if request.rollouts_path else None
    async with client:
        records = await roll_out(client, environments, config, on_done=progress, journal=journal, digest=digest)
    return records, msgspec.to_builtins(client.usage)


def _shown(record: RolloutRecord) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(record)
    attempt = value.pop("attempt")
    return {"environment_id": attempt["environment_id"], "attempt_index": attempt["attempt_index"], **value}


def _warnings(request: ModelRolloutRequest) -> list[str]:
    found = []
    if request.allow_dangerous_commands:
        found.append("allow_dangerous_commands has no effect: commands only ever run in the sandbox")
    if request.attempts_per_environment > 1 and request.temperature == 0:
        found.append("temperature is 0: the attempts at an environment are probably all alike")
    return found


def local_rollouts(settings: Settings, body: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
    """{model_id, report, attempts, rollouts, recorded, warnings} of given commands, run in the sandbox."""
    request = decode(body, LocalRolloutRequest)
    environments = environments_of(request.environments)
    by_id = {spec.id: spec for spec in environments}
    attempts = [
        Attempt(environment_id=a.environment_id, attempt_index=a.attempt_index) for a in request.command_attempts
    ]
    check_attempts(environments, attempts, request.k_values, "command_attempts")
    for spec in environments:
        check_runnable(spec)
    sandbox.require()
    root = Path(request.workspace_root).expanduser() if request.workspace_root else None
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        results = []
        for result in pool.map(
            lambda a: _run_commands(by_id[a.environment_id], a, request, root), request.command_attempts
        ):
            results.append(result)
            if progress:
                progress(len(results), len(attempts))
    played = [_attempt_of(given, result) for given, result in zip(request.command_attempts, results, strict=True)]
    report = passk_report(environments, played, request.k_values)
    recorded = bool(request.model_id) and request.record_to_registry
    if recorded:
        registry.record(settings, request.model_id, "environment_passk", report)
    return {
        "model_id": request.model_id,
        "report": report,
        "attempts": msgspec.to_builtins(played),
        "rollouts": [
            {**msgspec.to_builtins(result), "attempt_index": given.attempt_index}
            for given, result in zip(request.command_attempts, results, strict=True)
        ],
        "recorded": recorded,
        "warnings": ["allow_dangerous_commands has no effect"] if request.allow_dangerous_commands else [],
    }


def _run_commands(
    spec: EnvironmentSpec, given: CommandAttempt, request: LocalRolloutRequest, root: Path | None
) -> EpisodeResult:
    commands = [f"set -e; {command}" if request.stop_on_error else command for command in given.commands]
    return run_episode(spec, commands, workspace_root=root)


def _attempt_of(given: CommandAttempt, result: EpisodeResult) -> Attempt:
    return Attempt(
        environment_id=given.environment_id,
        attempt_index=given.attempt_index,
        passed=None if result.verifier_status == "reward_error" else result.passed,
        reward=result.reward,
        reward_components=result.reward_components,
        verifier_status=str(result.verifier_status),
        timeout=result.verifier_status == "timeout",
        tool_calls=len(result.steps),
        metadata=given.metadata,
    )
