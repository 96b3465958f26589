"""`bashgym eval` commands that judge what was observed elsewhere: the same bodies as the API's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe, table

MAX_BYTES = 256 << 20
Data = Annotated[Path, typer.Option("--data-file", help="JSON body, as the API takes it.")]


def passk(data_file: Data) -> Reply:
    """pass@k of attempts at environments, unbiased, with intervals."""
    doc = _judge("passk", data_file)
    return Reply(doc, lambda: show_passk(doc["report"]))


def holdout_gate(data_file: Data) -> Reply:
    """Hold whole groups of environments out, and judge the model on them. The exit status is 1 if it does not ship."""
    doc = _judge("holdout_gate", data_file)
    return _gated(doc, doc["result"]["gate"])


def holdout_comparison(data_file: Data) -> Reply:
    """Compare candidate and base on the same attempts, paired. The exit status is 1 if the candidate does not ship."""
    doc = _judge("comparison", data_file)
    return _gated(doc, doc["result"]["gate"])


def spurious_control(data_file: Data) -> Reply:
    """Compare with a reward that means nothing. The exit status is 1 if chance explains what was observed."""
    doc = _judge("control", data_file)
    return _gated(doc, doc["result"]["gate"])


def benchmarks_ingest(data_file: Data) -> Reply:
    """What was forgotten, from lm-eval results of base and candidate. The exit status is 1 if too much."""
    doc = _judge("ingest", data_file)
    found = doc["forgetting"]
    rows = [
        {"task": task, "base": found["base"][task], "candidate": found["candidate"][task], "drop": drop}
        for task, drop in found["drops"].items()
    ]
    return Reply(
        doc, lambda: table(rows, ["task", "base", "candidate", "drop"]), exit_code=0 if doc["forgetting_ok"] else 1
    )


def external_ingest(data_file: Data) -> Reply:
    """File the result of lm-eval or Inspect under a model."""
    doc = _judge("external_ingest", data_file)
    rows = [{"task": task, **score} for task, score in doc["report"]["tasks"].items()]
    return Reply(doc, lambda: table(rows, ["task", "metric", "value", "stderr", "n"]))


def benchmark_commands(
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint of the model, up to /v1.")],
    model: Annotated[str, typer.Option(help="Model name on the endpoint.")],
    task: Annotated[list[str] | None, typer.Option(help="lm-eval task; repeatable.")] = None,
    include: Annotated[list[str] | None, typer.Option(help="Which benchmarks; repeatable.")] = None,
) -> Reply:
    """Commands of public benchmarks, to copy and run. Nothing is run."""
    import shlex

    from bashgym.evals import gates

    found = gates.benchmark_commands(base_url, model, task, include)
    return Reply({"commands": found}, lambda: print("\n".join(safe(shlex.join(argv)) for argv in found.values())))


def verdict(model_id: Annotated[str, typer.Argument(help="Name under which evaluations were recorded.")]) -> Reply:
    """The latest evaluations that were recorded for a model."""
    from bashgym.core.settings import Settings
    from bashgym.evals import gates

    doc = gates.verdict(Settings.from_env(), model_id)
    rows = [{"kind": kind, "recorded_at": row["recorded_at"]} for kind, row in doc["latest_by_kind"].items()]
    return Reply(doc, lambda: table(rows, ["kind", "recorded_at"]))


def _judge(name: str, path: Path) -> dict[str, Any]:
    from bashgym.cli.inputs import regular_file
    from bashgym.core.files import read_object
    from bashgym.core.settings import Settings
    from bashgym.evals import gates

    judged: dict[str, Any] = getattr(gates, name)(
        Settings.from_env(), read_object(regular_file(path, "data file"), max_bytes=MAX_BYTES)
    )
    return judged


def _gated(doc: dict[str, Any], gate: dict[str, Any]) -> Reply:
    def show() -> None:
        print("ships" if gate["ship"] else "does not ship")
        for reason in [*gate["reasons"], *gate.get("warnings", [])]:
            print(f"  {safe(reason)}")

    return Reply(doc, show, exit_code=0 if gate["ship"] else 1)


def show_passk(report: dict[str, Any]) -> None:
    """pass@k with intervals, for people."""
    for k, value in report["pass_at_k"].items():
        interval = report["intervals"][k]
        between = f"  95 % interval {interval['ci_low']:.1%} to {interval['ci_high']:.1%}" if interval else ""
        print(f"pass@{k}  {'nothing observed' if value is None else f'{value:.1%}'}{between}")
    for line in report["warnings"]:
        print(f"warning: {safe(line)}")
