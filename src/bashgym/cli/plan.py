"""`training plan`: the recipe of a method, and with a dataset the preflight and the estimate of such a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.inputs import load_config, merge, parse_sets
from bashgym.cli.output import Reply, note, safe
from bashgym.core.errors import fail


def plan(
    *,
    strategy: Annotated[str, typer.Option(help="Training method or workflow.")] = "sft",
    hardware: Annotated[
        str, typer.Option(help="local_cpu, local_12gb, local_24gb, private_compute or cloud.")
    ] = "local_12gb",
    data: Annotated[
        str, typer.Option(help="gold_traces, small, custom_jsonl, terminal_envs or security.")
    ] = "gold_traces",
    dataset_path: Annotated[str | None, typer.Option(help="Also check this dataset, as a start would.")] = None,
    model: Annotated[
        str | None, typer.Option(help="With --dataset-path: the model whose tokens and memory count.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="With --dataset-path: request fields to check with.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="With --dataset-path: FIELD=VALUE, repeatable.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="With --dataset-path: train 20 steps of it, thrown away, and extrapolate.")
    ] = False,
) -> Reply:
    """What to set, watch and prove for a method; with --dataset-path also the preflight of that data.

    The exit status is 0 even if the preflight has blocking findings; `training start` refuses them.
    """
    from bashgym.methods.plan import make_plan

    doc = make_plan(strategy, hardware, data)
    if probe and dataset_path is None:
        raise fail(
            "usage", "--probe trains steps of a request", "Add --dataset-path (and --model).", ["--dataset-path"]
        )
    if dataset_path is not None:
        given = merge(load_config(config), parse_sets(set_ or []))
        _check(doc, dataset_path, model, given, probe)
    return Reply(doc, lambda: _show(doc))


def _check(doc: dict[str, Any], dataset_path: str, model: str | None, given: dict[str, Any], probe: bool) -> None:
    """Adds `preflight`, `estimate`, `ok`, `checked_settings` and, if asked for, `probe` to the plan."""
    import msgspec

    from bashgym.methods.registry import get
    from bashgym.workspace import Workspace

    if not get(doc["strategy"]).direct:
        raise fail(
            "not_direct_strategy", f"{doc['strategy']} is not started directly: no preflight", fields=["dataset_path"]
        )
    # Four-bit weights belong to the planned hardware, not to the machine that plans.
    settings = {key: value for key, value in doc["starting_settings"].items() if key != "load_in_4bit"}
    body = {
        **settings,
        **given,
        "strategy": doc["strategy"],
        "dataset_path": dataset_path,
        "base_model": model or "bashgym/tiny-qwen2",
    }
    workspace = Workspace.open()
    prepared = workspace.runs.check(body)
    doc["preflight"] = msgspec.to_builtins(prepared.report)
    doc["estimate"] = prepared.estimate
    doc["checked_settings"] = body
    doc["ok"] = not prepared.blocked
    if probe:
        from bashgym.runs.probe import probe_request

        note("training 20 steps of this request in a throw-away directory")
        doc["probe"] = probe_request(prepared, workspace.settings)
    if model is None:
        doc["preflight_note"] = "no --model: tokens and memory are those of bashgym/tiny-qwen2"


def _show(doc: dict[str, Any]) -> None:
    print(f"{doc['title']}  ({doc['hardware']}, {doc['data']})\n{safe(doc['when_to_use'])}\n\nStart with")
    width = max(map(len, doc["starting_settings"]), default=0)
    for row in doc["settings_help"]:
        print(f"  {row['setting']:<{width}}  {safe(row['start_here'])}  ({safe(row['means'])})")
    print("\nWatch")
    for item in doc["watch"]:
        print(f"  - {safe(item)}")
    print("\nLadder")
    for stage in doc["readiness_ladder"]:
        print(f"  {stage['stage']}: {safe(stage['evidence'])}; on when {safe(stage['promote_when'])}")
    if "preflight" in doc:
        from bashgym.cli.data import show_report

        print("\nPreflight")
        show_report(doc["preflight"])
        need = doc["estimate"]
        fits = "fits" if need["fits"] else "does not fit"
        print(f"  about {need['memory_bytes'] / 2**30:.2f} GiB of {need['memory_where']} memory: {fits}")
        if need["cost"] is not None:
            print(f"  about {need['seconds']:.0f} s, cost {need['cost']:.2f}")
    if "probe" in doc:
        _show_probe(doc["probe"])
    print("\nNext")
    for step in doc["next"]:
        print(f"  {safe(step['command'])}\n      {safe(step['reason'])}")


def _show_probe(found: dict[str, Any]) -> None:
    speed = f", {found['tokens_per_second']:.0f} tokens/s" if found["tokens_per_second"] else ""
    print(f"\nProbe, {found['steps']} of {found['total_steps']} steps")
    print(f"  {found['seconds_per_step']:.3f} s a step{speed}, peak memory {found['peak_memory_gb']:.2f} GiB")
    cost = f", cost {found['cost']:.2f}" if found["cost"] is not None else ""
    print(f"  the whole run: about {found['total_s']:.0f} s{cost} (± {found['uncertainty_share']:.0%})")
