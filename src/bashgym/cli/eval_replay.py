"""`bashgym eval replay-score|replay-enrich`, `bashgym training smoke-bundle`, `bashgym replay summarize|scrub`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, note, safe

ReplayFile = Annotated[Path, typer.Option(help="A bashgym.dppo_replay.v1 file.")]
Divergence = Annotated[str, typer.Option(help="binary_tv or binary_kl.")]
Threshold = Annotated[float | None, typer.Option(help="Radius of the trust region; the divergence's default if open.")]
READ_ERROR = 2


def score(
    *,
    replay: ReplayFile,
    model: Annotated[str, typer.Option(help="Policy to be trained: built-in name, Hub id, folder, adapter or run id.")],
    output: Annotated[Path, typer.Option(help="File for the enriched replay.")],
    divergence: Divergence = "binary_tv",
    threshold: Threshold = None,
) -> Reply:
    """Compute how likely the recorded tokens are to a model, and enrich the replay with that and the advantages.

    Refused if the recorded tokens are not those of the model's tokenizer and chat template.
    """
    from bashgym.cli.progress import shown
    from bashgym.core.settings import Settings
    from bashgym.evals.replay import score_file

    with shown() as progress:
        doc = score_file(
            replay,
            model,
            output,
            Settings.from_env(),
            divergence=divergence,
            threshold=threshold,
            on_progress=lambda _, at: progress("scoring", at["done"] / max(1, at["total"]), f"{at['done']} sequences"),
        )
    return Reply(doc, lambda: _show_enriched(doc))


def enrich(
    data_file: Annotated[Path, typer.Option(help="The body of POST dppo-replay/enrich: paths and train_logprobs.")],
) -> Reply:
    """Add training log probabilities that another scorer computed, and the advantages."""
    from bashgym.cli.inputs import regular_file
    from bashgym.core.files import read_object
    from bashgym.evals.replay import enrich_file

    doc = enrich_file(read_object(regular_file(data_file, "data file")))
    return Reply(doc, lambda: _show_enriched(doc))


def _show_enriched(doc: dict[str, Any]) -> None:
    seen = doc["telemetry"]
    print(f"{safe(doc['output_path'])}: {doc['records']} records, {doc['sampled_tokens']} sampled tokens")
    print(
        f"  {seen['divergence']} over {seen['threshold']:g}: {seen['masked_fraction']:.1%} masked, "
        f"mean binary TV {seen['mean_binary_tv']:.4f}"
    )
    if seen["collapse_warning"]:
        print("  warning: nearly all tokens are masked; these rollouts are too old")
    if doc["groups_without_contrast"]:
        print(f"  {doc['groups_without_contrast']} of {doc['groups']} groups have equal rewards and teach nothing")


def smoke_bundle(
    *,
    replay: ReplayFile,
    output_dir: Annotated[Path, typer.Option(help="Folder for the five files.")],
    base_model: Annotated[str, typer.Option(help="Policy to be trained.")],
    backend: Annotated[
        str, typer.Option(help="auto (which is bashgym), bashgym, verl, skyrl, tmax_open_instruct or grpo_fallback.")
    ] = "auto",
    max_steps: Annotated[int, typer.Option(help="Optimizer steps of the smoke run, 1 to 100.")] = 1,
    n_gpus_per_node: Annotated[int, typer.Option(help="For outside backends, 1 to 64.")] = 1,
    rwml_embedding_model: Annotated[str, typer.Option(help="Model that embeds observations.")] = "",
    command_template: Annotated[
        str | None,
        typer.Option(help="Command of an outside backend, with {replay} {base_model} {output_dir} {max_steps}."),
    ] = None,
    disable_echo: Annotated[bool, typer.Option("--disable-echo", help="Ask for no observations.")] = False,
    disable_rwml: Annotated[bool, typer.Option("--disable-rwml", help="Ask for no transitions.")] = False,
    no_script: Annotated[bool, typer.Option("--no-script", help="Write no launch script.")] = False,
) -> Reply:
    """Judge a replay and plan the launch. Exit status 2 if the replay's contract is not met."""
    from bashgym.core.settings import Settings
    from bashgym.evals.smoke import smoke_plan

    body = {
        "replay_path": str(replay),
        "output_dir": str(output_dir),
        "base_model": base_model,
        "backend": backend,
        "max_steps": max_steps,
        "n_gpus_per_node": n_gpus_per_node,
        "rwml_embedding_model": rwml_embedding_model,
        "command_template": command_template,
        "echo_enabled": not disable_echo,
        "rwml_enabled": not disable_rwml,
        "write_script": not no_script,
    }
    doc = smoke_plan(body, Settings.from_env())

    def show() -> None:
        print(f"{doc['verdict']['level']}: {safe(doc['verdict']['headline'])}")
        for check in doc["checks"]:
            print(f"  {check['level']} {check['code']}: {safe(check['message'])}")
        print(f"  {doc['launch_plan']['backend']}: {safe(doc['launch_plan']['reason'])}")

    return Reply(doc, show, 2 if doc["verdict"]["level"] == "blocked" else 0)


def summarize(path: Annotated[Path, typer.Argument(help="Replay file.", metavar="PATH")]) -> Reply:
    """Count what a replay holds. Exit status 2 if it cannot be read."""
    from bashgym.data.replay_records import read_records
    from bashgym.evals.replay import summarize as count

    return _reading(lambda: {"path": str(path), **count(read_records(path))})


def scrub(
    path: Annotated[Path, typer.Argument(help="Replay file.", metavar="PATH")],
    output: Annotated[Path | None, typer.Option(help="Where to write; PATH with .scrubbed before its ending.")] = None,
    max_output_chars: Annotated[int, typer.Option(help="Longest output that is kept whole.", min=1)] = 2000,
) -> Reply:
    """Write a copy without secrets and with shortened output. Exit status 2 if it cannot be read.

    Sampled tokens are left out where their text or their prompt had to change.
    """
    from bashgym.data.replay_records import read_records, write_records
    from bashgym.evals.replay import output_path
    from bashgym.evals.replay_scrub import scrub_records

    def run() -> dict[str, Any]:
        target = output_path(str(output or path.with_suffix(f".scrubbed{path.suffix or '.jsonl'}")))
        records, report = scrub_records(read_records(path), max_output_chars)
        write_records(target, records)
        return {"path": str(path), "output_path": str(target), **report}

    return _reading(run)


def _reading(run: Any) -> Reply:
    from bashgym.core.errors import BashGymError

    try:
        return Reply({"ok": True, **run()})
    except BashGymError as error:
        note(f"{error.code}: {error.message}")
        return Reply({"ok": False, "detail": error.detail()}, lambda: None, READ_ERROR)
