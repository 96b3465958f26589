"""The evaluation endpoints that judge what the caller has observed: strict body in, document out, recorded on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bashgym.core.settings import Settings
from bashgym.evals import benchmark_commands as harness
from bashgym.evals import benchmarks, environment_comparison, holdout, registry
from bashgym.evals.passk import DEFAULT_K, passk_report
from bashgym.evals.wire import Attempt, decode, environments_of


class PasskRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/environments/passk."""

    model_id: str
    environments: list[dict[str, Any]]
    attempts: list[Attempt]
    k_values: tuple[int, ...] = DEFAULT_K
    record_to_registry: bool = True


def passk(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """{model_id, report, recorded}."""
    request = decode(body, PasskRequest)
    registry.check_model_id(request.model_id)
    report = passk_report(environments_of(request.environments), request.attempts, request.k_values)
    return {
        "model_id": request.model_id,
        "report": report,
        "recorded": _record(settings, request, "environment_passk", report),
    }


def holdout_gate(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """{model_id, result, recorded}."""
    request = decode(body, holdout.HoldoutRequest)
    registry.check_model_id(request.model_id)
    result = holdout.holdout_gate(request)
    return {
        "model_id": request.model_id,
        "result": result,
        "recorded": _record(settings, request, "environment_holdout", result),
    }


def comparison(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """{result, recorded}."""
    request = decode(body, environment_comparison.ComparisonRequest)
    result = environment_comparison.holdout_comparison(request)
    return {"result": result, "recorded": _record(settings, request, "environment_comparison", result)}


def control(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """{result, recorded}."""
    request = decode(body, environment_comparison.ControlRequest)
    result = environment_comparison.spurious_reward_control(request)
    return {"result": result, "recorded": _record(settings, request, "spurious_control", result)}


def ingest(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """{forgetting, recorded, forgetting_ok, worst}."""
    request = decode(body, benchmarks.IngestRequest)
    found = benchmarks.forgetting(request)
    return {**found, "recorded": _record(settings, request, "forgetting", found)}


def external_ingest(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """{report, recorded}."""
    request = decode(body, benchmarks.ExternalRequest)
    report = benchmarks.external(request)
    return {"report": report, "recorded": _record(settings, request, "external_benchmark", report)}


def benchmark_commands(
    base_url: str, model: str, tasks: Sequence[str] | None = None, include: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Name -> argv."""
    return harness.commands(base_url, model, tasks or harness.FORGETTING_TASKS, include or ("forgetting",))


def verdict(settings: Settings, model_id: str) -> dict[str, Any]:
    """The latest evaluations of a model."""
    return registry.verdict(settings, model_id)


def _record(settings: Settings, request: Any, kind: str, document: dict[str, Any]) -> bool:
    return bool(request.record_to_registry) and registry.record(settings, request.model_id, kind, document)
