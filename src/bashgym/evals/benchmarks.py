"""Results of public benchmarks: what other harnesses wrote, what was forgotten, and the commands that make such results.

Reads lm-evaluation-harness results and Inspect logs. Nothing is run here: the commands are for copying.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object

SCHEMA = "bashgym.external_benchmark.v1"
HEADLINE = ("exact_match", "pass@1", "acc_norm", "acc", "f1", "score", "mc2")
"""Which metric speaks for a task, in this order."""
FORGETTING_TASKS = ("mmlu", "gsm8k", "ifeval", "hellaswag")
_Z = 1.959963984540054
_INCLUDES = ("forgetting", "terminal_bench", "harbor_terminal_bench", "bfcl", "swebench")


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
    """{forgetting{drops, base, candidate, intervals, worst, regressed, missing}, forgetting_ok, worst}. `benchmark_invalid`.

    A drop is base - candidate. A task that one side lacks is named and is not ok: it was not shown to be unforgotten.
    """
    if not 0 <= request.max_forgetting_drop <= 1:
        raise fail("invalid_field", "max_forgetting_drop must lie in 0 to 1", fields=["max_forgetting_drop"])
    base, candidate = (scores_of(side, name) for side, name in _sides(request))
    shared = [task for task in base if task in candidate]
    if not shared:
        raise fail("benchmark_invalid", "base and candidate results share no task", fields=["candidate_results"])
    for task in shared:
        if base[task]["metric"] != candidate[task]["metric"]:
            both = f"{base[task]['metric']} and {candidate[task]['metric']}"
            raise fail("benchmark_invalid", f"{task} is scored by {both}: the results do not compare")
    drops = {task: base[task]["value"] - candidate[task]["value"] for task in shared}
    worst = max(drops, key=lambda task: drops[task])
    regressed = sorted(task for task, drop in drops.items() if drop > request.max_forgetting_drop)
    missing = {"candidate": sorted(base.keys() - candidate.keys()), "base": sorted(candidate.keys() - base.keys())}
    found = {
        "drops": drops,
        "intervals": {task: _drop_interval(drops[task], base[task], candidate[task]) for task in shared},
        "base": {task: base[task]["value"] for task in shared},
        "candidate": {task: candidate[task]["value"] for task in shared},
        "worst": {"task": worst, "drop": drops[worst]},
        "regressed": regressed,
        "missing": missing,
        "max_forgetting_drop": request.max_forgetting_drop,
    }
    return {
        "model_id": request.model_id,
        "forgetting": found,
        "forgetting_ok": not regressed and not missing["candidate"],
        "worst": found["worst"],
    }


def _sides(request: IngestRequest) -> list[tuple[dict[str, Any] | str, str]]:
    return [(request.base_results, "base_results"), (request.candidate_results, "candidate_results")]


def _drop_interval(drop: float, base: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[float] | None:
    """95 % interval of the drop from the two standard errors, as if unpaired: wider than a paired one would be."""
    if base["stderr"] is None or candidate["stderr"] is None:
        return None
    half = _Z * math.hypot(base["stderr"], candidate["stderr"])
    return [drop - half, drop + half]


def external(request: ExternalRequest) -> dict[str, Any]:
    """The report `bashgym.external_benchmark.v1` of one harness result. `benchmark_invalid`."""
    return {
        "schema_version": SCHEMA,
        "model_id": request.model_id,
        "benchmark": request.benchmark_name,
        "source": request.source,
        "tasks": scores_of(request.results, "results"),
    }


def scores_of(results: dict[str, Any] | str, field: str) -> dict[str, dict[str, Any]]:
    """Task -> {metric, value, stderr, n} of lm-eval results or of an Inspect log. `benchmark_invalid` names the fault."""
    value = _loaded(results, field)
    if "eval" in value and "results" in value:
        return _inspect(value, field)
    tasks = value.get("results", value)
    if not isinstance(tasks, dict) or not tasks:
        raise _invalid("there is no `results` object with tasks", field)
    return {task: _headline(task, metrics, value, field) for task, metrics in tasks.items()}


def _loaded(results: dict[str, Any] | str, field: str) -> dict[str, Any]:
    if isinstance(results, dict):
        return results
    try:
        return read_object(Path(results).expanduser())
    except BashGymError as error:
        raise fail(error.code, error.message, error.hint, [field]) from error


def _headline(task: str, metrics: object, whole: Mapping[str, Any], field: str) -> dict[str, Any]:
    """lm-eval writes `acc,none` and `acc_stderr,none`; filters follow the comma."""
    if not isinstance(metrics, dict):
        raise _invalid(f"{task} is not an object of metrics", field)
    for name in HEADLINE:
        for key, value in metrics.items():
            head, _, filtered = str(key).partition(",")
            if head == name and (number := _number(value)) is not None:
                error = _number(metrics.get(f"{head}_stderr,{filtered}" if filtered else f"{head}_stderr"))
                samples = (whole.get("n-samples") or {}).get(task) or {}
                n = samples.get("effective") if isinstance(samples, dict) else None
                return {"metric": name, "value": number, "stderr": error, "n": n}
    raise _invalid(f"{task} has none of the metrics {', '.join(HEADLINE)} as a finite number", field)


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
            found[label] = {"metric": name, "value": number, "stderr": _number(error), "n": n}
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


def commands(
    base_url: str, model: str, tasks: Sequence[str] = FORGETTING_TASKS, include: Sequence[str] = ("forgetting",)
) -> dict[str, list[str]]:
    """Name -> argv, to be copied and run where that harness is installed. `invalid_field` for an unknown name."""
    if unknown := [name for name in include if name not in _INCLUDES]:
        raise fail(
            "invalid_field", f"no benchmark is called {unknown[0]!r}", f"Known: {', '.join(_INCLUDES)}.", ["include"]
        )
    root = base_url.rstrip("/")
    arguments = f"model={model},base_url={root}/chat/completions,num_concurrent=8,max_retries=3"
    lm_eval = ["lm_eval", "--model", "local-chat-completions", "--model_args", arguments, "--apply_chat_template"]
    agent_model = f"openai/{model}"
    known = {
        "forgetting": [*lm_eval, "--tasks", ",".join(tasks), "--output_path", "lm-eval-results", "--log_samples"],
        "terminal_bench": [
            "tb",
            "run",
            "--dataset",
            "terminal-bench-core",
            "--agent",
            "terminus",
            "--model",
            agent_model,
        ],
        "harbor_terminal_bench": ["harbor", "run", "-d", "terminal-bench@2.0", "-a", "terminus-2", "-m", agent_model],
        "bfcl": [
            "bfcl",
            "generate",
            "--model",
            model,
            "--test-category",
            "simple,multiple,parallel",
            "--skip-server-setup",
        ],
        "swebench": [
            *("mini-extra", "swebench", "--subset", "lite", "--split", "test"),
            *("--model", agent_model, "--output", "swebench-predictions"),
        ],
    }
    return {name: known[name] for name in include}
