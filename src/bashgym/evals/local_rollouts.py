"""Commands that somebody else chose, run in the sandbox and judged: pass@k of attempts made elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.settings import Settings
from bashgym.envs import sandbox
from bashgym.envs.rollout import Episode, EpisodeResult, check_runnable, prepare
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals import registry
from bashgym.evals.passk import DEFAULT_K, passk_report
from bashgym.evals.places import folder_for
from bashgym.evals.rollout_player import KEPT, keep_workspace, limits_of
from bashgym.evals.rollouts import threads
from bashgym.evals.wire import Attempt, check_attempts, decode, environments_of

NO_EFFECT = "allow_dangerous_commands has no effect: commands only ever run in the sandbox"
Progress = Callable[[int, int], None]


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
    k_values: tuple[int, ...] | None = None
    """None: those of 1, 4, 8 that the attempts allow."""
    workspace_root: str | None = None
    """Where kept workspaces go; null: `rollout-workspaces` in the current folder."""
    keep_workspace: bool = False
    allow_dangerous_commands: bool = False
    """Has no effect: commands only ever run in the sandbox."""
    stop_on_error: bool = True
    """An episode ends at its first command that fails, and is judged as it stands then."""
    record_to_registry: bool = True


def local_rollouts(settings: Settings, body: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
    """{model_id, report, attempts, rollouts, recorded, warnings} of given commands, run in the sandbox.

    Refused before anything runs: `attempts_invalid`, `environment_invalid`, `container_unavailable`, `directory_unwritable`,
    `invalid_field`, `unknown_field`, `sandbox_unavailable`.
    """
    request = decode(body, LocalRolloutRequest)
    environments = environments_of(request.environments)
    by_id = {spec.id: spec for spec in environments}
    ks = _check(request, environments)
    with ThreadPoolExecutor(threads()) as pool:
        played = pool.map(lambda given: _play(by_id[given.environment_id], given, request), request.command_attempts)
        results = []
        for result in played:
            results.append(result)
            if progress:
                progress(len(results), len(request.command_attempts))
    pairs = list(zip(request.command_attempts, results, strict=True))
    attempts = [_attempt_of(given, result) for given, (result, _) in pairs]
    report = passk_report(environments, attempts, ks)
    recorded = bool(request.model_id) and request.record_to_registry
    if recorded:
        registry.record(settings, request.model_id, "environment_passk", report)
    return {
        "model_id": request.model_id,
        "report": report,
        "attempts": msgspec.to_builtins(attempts),
        "rollouts": [
            {**msgspec.to_builtins(result), "attempt_index": given.attempt_index, "workspace": kept}
            for given, (result, kept) in pairs
        ],
        "recorded": recorded,
        "warnings": [NO_EFFECT] if request.allow_dangerous_commands else [],
    }


def _check(request: LocalRolloutRequest, environments: list[EnvironmentSpec]) -> tuple[int, ...]:
    """The k to report, once everything that can be refused has been."""
    given = request.command_attempts
    counts = Counter(attempt.environment_id for attempt in given)
    fewest = min(counts[spec.id] for spec in environments)
    ks = request.k_values if request.k_values is not None else tuple(k for k in DEFAULT_K if k <= max(fewest, 1))
    attempts = [Attempt(environment_id=a.environment_id, attempt_index=a.attempt_index) for a in given]
    check_attempts(environments, attempts, ks, "command_attempts")
    if request.model_id:
        registry.check_model_id(request.model_id)
    if request.keep_workspace:
        request.workspace_root = str(folder_for(request.workspace_root or KEPT, "workspace_root"))
    sandbox.require()
    for spec in environments:
        check_runnable(spec)
    for spec in environments:
        prepare(spec)
    return ks


def _play(
    spec: EnvironmentSpec, given: CommandAttempt, request: LocalRolloutRequest
) -> tuple[EpisodeResult, str | None]:
    with Episode(spec, limits=limits_of(spec)) as episode:
        for command in given.commands:
            step = episode.run(command)
            if step is None or len(episode.steps) > episode.allowed or (request.stop_on_error and step.exit_code):
                break
        result = episode.judge()
        if not request.keep_workspace:
            return result, None
        return result, keep_workspace(episode, Path(request.workspace_root or KEPT), f"{spec.id}-{given.attempt_index}")


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
