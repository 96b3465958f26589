"""A model against environments: body in, document out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail
from bashgym.core.settings import Settings
from bashgym.envs import sandbox
from bashgym.envs.rollout import check_runnable
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals import registry
from bashgym.evals.compare import MAX_MISSING
from bashgym.evals.local_rollouts import NO_EFFECT, Progress
from bashgym.evals.passk import DEFAULT_K, passk_report
from bashgym.evals.places import file_for, folder_for
from bashgym.evals.rollout_player import KEPT
from bashgym.evals.rollout_replay import sampling_report, write_replay
from bashgym.evals.rollouts import NOT_PLAYED, RolloutConfig, RolloutRecord, roll_out
from bashgym.evals.wire import check_k, decode, environments_of
from bashgym.inference.client import ChatClient, EndpointSpec, Price, check_endpoint, endpoint_facts


class ModelRolloutRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/environments/model-rollout-passk."""

    endpoint: EndpointSpec
    environments: list[dict[str, Any]]
    model_id: str = ""
    attempts_per_environment: int = 1
    k_values: tuple[int, ...] | None = None
    """None: those of 1, 4, 8 that the attempts allow."""
    workspace_root: str | None = None
    """Where kept workspaces go; null: `rollout-workspaces` in the current folder."""
    keep_workspace: bool = False
    """The workspaces are listed in the rollouts."""
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


def model_rollouts(
    settings: Settings,
    body: Mapping[str, Any],
    progress: Progress | None = None,
    *,
    model: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> dict[str, Any]:
    """{model_id, report, attempts, rollouts, recorded, sampling_report, dppo_report, dppo_replay, usage, warnings}.

    Everything that can be refused is refused before a rollout is paid for: as `checked`, and `endpoint_unreachable`.
    `model` says which model it is where the endpoint's address does not, because it is served for this alone. `whole`:
    `too_many_missing` if the endpoint failed in more attempts than a verdict may lack.
    """
    request, ks, environments = checked(body)
    model_id = request.model_id
    who = model or endpoint_facts(request.endpoint)
    asked = digest_json(_identity(request, environments, who))
    records, usage = asyncio.run(_play(request, environments, asked, progress))
    if whole and (gaps := _gaps(records)):
        raise fail("too_many_missing", gaps, "Mend the endpoint and resume: only these are played again.")
    attempts = [record.attempt for record in records]
    report = passk_report(environments, attempts, ks)
    sampling = sampling_report(records, request)
    replay = write_replay(request, environments, records, sampling["selected"], asked)
    document = {
        "model_id": model_id,
        "endpoint": endpoint_facts(request.endpoint),
        "model": model,
        "request_digest": asked,
        "report": report,
        "attempts": msgspec.to_builtins(attempts),
        "rollouts": [_shown(record) for record in records],
        "sampling_report": sampling if request.filter_zero_std_groups or request.active_sampling else None,
        "dppo_report": replay and replay["report"],
        "dppo_replay": replay and replay["file"],
        "usage": usage,
        "warnings": _warnings(request, records),
    }
    wanted = request.record_to_registry and not _gaps(records)
    recorded = wanted and registry.record(settings, model_id, "environment_passk", report)
    return {**document, "recorded": bool(recorded)}


def checked(body: Mapping[str, Any]) -> tuple[ModelRolloutRequest, tuple[int, ...], list[EnvironmentSpec]]:
    """The request with absolute paths, the k to report, and the environments. Nothing is sent.

    `attempts_invalid` (too few for k), `environment_invalid`, `container_unavailable`, `endpoint_invalid`, `invalid_field`,
    `unknown_field`, `directory_unwritable`, `sandbox_unavailable`.
    """
    request = decode(body, ModelRolloutRequest)
    ks = _check(request)
    environments = environments_of(request.environments)
    for spec in environments:
        check_runnable(spec)
    request.model_id = registry.check_model_id(request.model_id or request.endpoint.model or "unnamed")
    sandbox.require()
    _places(request)
    return request, ks, environments


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
    check_endpoint(request.endpoint)
    return ks


def _places(request: ModelRolloutRequest) -> None:
    """Makes what will be written absolute, once it is known that it can be."""
    if request.dppo_replay_output_path is not None:
        request.dppo_replay_output_path = str(file_for(request.dppo_replay_output_path, "dppo_replay_output_path"))
    if request.rollouts_path is not None:
        request.rollouts_path = str(file_for(request.rollouts_path, "rollouts_path"))
    if request.keep_workspace:
        request.workspace_root = str(folder_for(request.workspace_root or KEPT, "workspace_root"))


_IDENTITY = (
    *("attempts_per_environment", "seed", "temperature", "top_p", "max_tokens", "max_tool_calls", "use_tool_calling"),
    *("max_observation_chars", "capture_logprobs", "top_logprobs"),
)


def _identity(
    request: ModelRolloutRequest, environments: Sequence[EnvironmentSpec], who: Mapping[str, Any]
) -> dict[str, Any]:
    """What decides how episodes go: by it a journal is known again. What is reported of them may change."""
    return {
        **{name: getattr(request, name) for name in _IDENTITY},
        "model": dict(who),
        "environments": [[spec.id, spec.digest()] for spec in environments],
    }


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
    journal = Path(request.rollouts_path) if request.rollouts_path else None
    async with client:
        records = await roll_out(client, environments, config, on_done=progress, journal=journal, digest=digest)
    return records, msgspec.to_builtins(client.usage)


def _gaps(records: Sequence[RolloutRecord]) -> str:
    """What is wrong with records that lack more attempts than a verdict may; empty if they do not."""
    failed = [record.error for record in records if record.error and record.error["code"].startswith("endpoint_")]
    if len(failed) <= MAX_MISSING * len(records):
        return ""
    return f"the endpoint failed in {len(failed)} of {len(records)} attempts, first: {failed[0]['message']}"


def _shown(record: RolloutRecord) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(record)
    attempt = value.pop("attempt")
    return {"environment_id": attempt["environment_id"], "attempt_index": attempt["attempt_index"], **value}


def _warnings(request: ModelRolloutRequest, records: Sequence[RolloutRecord]) -> list[str]:
    found = []
    if request.allow_dangerous_commands:
        found.append(NO_EFFECT)
    if request.attempts_per_environment > 1 and request.temperature == 0:
        found.append("temperature is 0: the attempts at an environment are probably all alike")
    if skipped := sum((record.error or {}).get("code") == NOT_PLAYED for record in records):
        found.append(f"stop_on_error: {skipped} of {len(records)} attempts were not played after one had failed")
    if request.record_to_registry and (gaps := _gaps(records)):
        found.append(f"not recorded: {gaps}")
    if any("token_counts" in record.attempt.metadata for record in records):
        found.append("the endpoint counts no tokens: they are estimated from the text, and so are the limits in tokens")
    return found
