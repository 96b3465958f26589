"""Results of public benchmarks: what other harnesses wrote, and what a candidate has forgotten.

Reads lm-evaluation-harness results and Inspect logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object
from bashgym.evals.multiplicity import holm

SCHEMA = "bashgym.external_benchmark.v1"
HEADLINE = ("exact_match", "pass@1", "acc_norm", "acc", "f1", "score", "mc2")
"""Which metric speaks for a task, in this order."""
_Z = 1.959963984540054
_SAME = {
    "metric": "the metric",
    "filter": "the answer filter",
    "n_shot": "the number of shots",
    "version": "the task version",
    "n": "the number of items",
}
"""What two results of one task share if they compare -> how a refusal calls it."""


class IngestRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/benchmarks/ingest."""

    model_id: str
    base_results: dict[str, Any] | str
    """lm-eval's results object, or the path of the file."""
    candidate_results: dict[str, Any] | str
    max_forgetting_drop: float = 0.05
    record_to_registry: bool = True


class ExternalRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/benchmarks/external-ingest."""

    model_id: str
    results: dict[str, Any] | str
    benchmark_name: str = ""
    source: str = ""
    record_to_registry: bool = True


def forgetting(request: IngestRequest) -> dict[str, Any]:
    """{model_id, forgetting, forgetting_ok, worst}. `benchmark_invalid`.

    `forgetting` holds drops (base - candidate), base, candidate, worst, regressed (a drop over the limit), intervals and
    Holm-adjusted p of the drops where both sides give a standard error, `uncertain` (the interval reaches over the limit:
    more items would tell), and, named, what one side lacks (`missing`) or has no readable score of (`unscored`). A task
    that the candidate lacks is not ok: it was not shown to be unforgotten.
    """
    limit = request.max_forgetting_drop
    if not 0 <= limit <= 1:
        raise fail("invalid_field", "max_forgetting_drop must lie in 0 to 1", fields=["max_forgetting_drop"])
    sides = {name: read_results(results, name) for results, name in _sides(request)}
    base, candidate = (sides[name].tasks for name in ("base_results", "candidate_results"))
    shared = [task for task in base if task in candidate]
    if not shared:
        raise fail("benchmark_invalid", "base and candidate results share no task", fields=["candidate_results"])
    for task in shared:
        _check_same(task, base[task], candidate[task])
    drops = {task: base[task]["value"] - candidate[task]["value"] for task in shared}
    worst = max(drops, key=lambda task: drops[task])
    regressed = sorted(task for task, drop in drops.items() if drop > limit)
    missing = {"candidate": sorted(base.keys() - candidate.keys()), "base": sorted(candidate.keys() - base.keys())}
    errors = {task: _error(base[task], candidate[task]) for task in shared}
    intervals = {task: [drop - _Z * e, drop + _Z * e] if (e := errors[task]) else None for task, drop in drops.items()}
    found = {
        "drops": drops,
        "intervals": intervals,
        "p_values": _p_values(drops, errors),
        "base": {task: base[task]["value"] for task in shared},
        "candidate": {task: candidate[task]["value"] for task in shared},
        "worst": {"task": worst, "drop": drops[worst]},
        "regressed": regressed,
        "uncertain": sorted(t for t, ends in intervals.items() if ends and drops[t] <= limit < ends[1]),
        "missing": missing,
        "unscored": {name.removesuffix("_results"): side.unscored for name, side in sides.items()},
        "max_forgetting_drop": limit,
    }
    return {
        "model_id": request.model_id,
        "forgetting": found,
        "forgetting_ok": not regressed and not missing["candidate"],
        "worst": found["worst"],
    }


def _check_same(task: str, base: Mapping[str, Any], candidate: Mapping[str, Any]) -> None:
    for name, what in _SAME.items():
        if base[name] != candidate[name]:
            both = f"{what} {base[name]!r} and {candidate[name]!r}"
            raise fail(
                "benchmark_invalid", f"{task} has {both}: the results do not compare", fields=["candidate_results"]
            )


def _error(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> float | None:
    """Standard error of the drop from both, as if unpaired: wider than a paired one would be."""
    if base["stderr"] is None or candidate["stderr"] is None:
        return None
    return math.hypot(base["stderr"], candidate["stderr"])


def _p_values(drops: Mapping[str, float], errors: Mapping[str, float | None]) -> dict[str, float]:
    """Two-sided p that nothing dropped, by the normal approximation, adjusted for the number of tasks."""
    known = [task for task in drops if errors[task]]
    raw = [math.erfc(abs(drops[task]) / (errors[task] or 1.0) / math.sqrt(2)) for task in known]
    return dict(zip(known, holm(raw), strict=True))


def _sides(request: IngestRequest) -> list[tuple[dict[str, Any] | str, str]]:
    return [(request.base_results, "base_results"), (request.candidate_results, "candidate_results")]


def external(request: ExternalRequest) -> dict[str, Any]:
    """The report `bashgym.external_benchmark.v1` of one harness result. `benchmark_invalid`."""
    found = read_results(request.results, "results")
    return {
        "schema_version": SCHEMA,
        "model_id": request.model_id,
        "benchmark": request.benchmark_name,
        "source": request.source,
        "harness": found.harness,
        "tasks": found.tasks,
        "unscored": found.unscored,
    }


class Results(NamedTuple):
    """What a harness wrote, task by task."""

    harness: str
    """`lm-eval` or `inspect`."""
    tasks: dict[str, dict[str, Any]]
    """Task -> {metric, filter, value, stderr, n, n_shot, version}."""
    unscored: dict[str, str]
    """Task -> why it has no score: a heading of a group, or metrics that are no shares."""


def read_results(results: dict[str, Any] | str, field: str) -> Results:
    """lm-eval results or an Inspect log, or the path of either. `benchmark_invalid` names what cannot be read."""
    value = _loaded(results, field)
    if "eval" in value and "results" in value:
        return Results("inspect", _inspect(value, field), {})
    rows = value.get("results", value)
    if not isinstance(rows, dict) or not rows:
        raise _invalid("there is no `results` object with tasks", field)
    tasks, unscored = {}, {}
    for task, metrics in rows.items():
        if not isinstance(metrics, dict):
            raise _invalid(f"{task} is not an object of metrics", field)
        if found := _headline(task, metrics, value, field):
            tasks[task] = {**found, **_settings(task, value)}
        else:
            unscored[task] = f"none of {', '.join(HEADLINE)}, nor another share that is better the higher it is"
    if not tasks:
        raise _invalid(f"no task has one of the metrics {', '.join(HEADLINE)}", field)
    return Results("lm-eval", tasks, unscored)


def _loaded(results: dict[str, Any] | str, field: str) -> dict[str, Any]:
    if isinstance(results, dict):
        return results
    try:
        return read_object(Path(results).expanduser())
    except BashGymError as error:
        raise fail(error.code, error.message, error.hint, [field]) from error


def _headline(task: str, metrics: Mapping[str, Any], whole: Mapping[str, Any], field: str) -> dict[str, Any] | None:
    """The score that speaks for a task; None if it has none. lm-eval writes `acc,none` and `acc_stderr,none`, the filter
    of the answers after the comma. Where the usual names are absent, as of ifeval, the first that the file itself calls
    better the higher, and that is a share, stands for the task."""
    directions = _part(whole, "higher_is_better", task)
    higher = [name for name, better in directions.items() if better is True] if isinstance(directions, dict) else []
    for name in (*HEADLINE, *higher):
        for key, value in metrics.items():
            head, _, filtered = str(key).partition(",")
            if head != name or not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if not math.isfinite(value):
                raise _invalid(f"{task}: {key} is not a finite number", field)
            if name in HEADLINE or 0 <= value <= 1:
                error = _number(metrics.get(f"{head}_stderr,{filtered}" if filtered else f"{head}_stderr"))
                return {"metric": name, "filter": filtered or None, "value": float(value), "stderr": error}
    return None


def _settings(task: str, whole: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be the same for two results to compare; None where the file does not say."""
    samples = _part(whole, "n-samples", task)
    n = samples.get("effective") if isinstance(samples, dict) else None
    return {"n": n, "n_shot": _part(whole, "n-shot", task), "version": _part(whole, "versions", task)}


def _part(whole: Mapping[str, Any], name: str, task: str) -> Any:
    part = whole.get(name)
    return part.get(task) if isinstance(part, dict) else None


def _inspect(log: Mapping[str, Any], field: str) -> dict[str, dict[str, Any]]:
    if log.get("status") != "success":
        raise _invalid(f"the Inspect log ended as {log.get('status')!r}: it is no whole result", field)
    try:
        task, n = str(log["eval"]["task"]), log["results"].get("completed_samples")
        found = {}
        for score in log["results"]["scores"]:
            metrics = score["metrics"]
            name = next(key for key in ("accuracy", "mean", *metrics) if key in metrics)
            value, error = metrics[name]["value"], (metrics.get("stderr") or {}).get("value")
            if (number := _number(value)) is None:
                raise _invalid(f"{task}: {name} is not a finite number", field)
            label = task if len(log["results"]["scores"]) == 1 else f"{task}/{score['name']}"
            scored = {"metric": name, "filter": None, "value": number, "stderr": _number(error)}
            found[label] = {**scored, "n": n, "n_shot": None, "version": log["eval"].get("task_version")}
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise _invalid(f"not an Inspect log: {type(error).__name__} {error}", field) from error
    if not found:
        raise _invalid("the Inspect log has no scores", field)
    return found


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _invalid(reason: str, field: str) -> BashGymError:
    return fail("benchmark_invalid", reason, "Give lm-eval's results JSON or an Inspect log in JSON.", [field])
