"""`bashgym training reward-examples|reward-eval|reward-model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, safe


def validate(
    path: Annotated[Path, typer.Argument(help="File of reward examples.", metavar="PATH")],
    strict: Annotated[bool, typer.Option("--strict", help="Missing provenance and metadata fail too.")] = False,
) -> Reply:
    """Check every reward example of a file. The exit status is 2 if one is not acceptable."""
    from bashgym.data.reward_examples import validate as check

    doc = check(path, strict=strict)
    return _reply(doc, f"{safe(path)}: {doc['valid_records']} of {doc['total_records']} examples can be trained on")


def evaluate(
    path: Annotated[Path, typer.Argument(help="File of predictions.", metavar="PATH")],
    split: Annotated[str, typer.Option(help="Rows of this split are evaluated.")] = "eval",
    calibration_bins: Annotated[int, typer.Option(help="Bins of the calibration error.")] = 10,
    run_id: Annotated[str, typer.Option(help="Run whose model made the predictions.")] = "",
    output: Annotated[Path | None, typer.Option(help="File for the report.")] = None,
) -> Reply:
    """How good a reward model is: held-out pairs, calibration, bias, leakage. The exit status is 2 if it is not usable."""
    from bashgym.core.files import atomic_write_json
    from bashgym.evals.reward_eval import evaluate as judge

    doc = judge(path, split=split, bins=calibration_bins, run_id=run_id)
    if output:
        atomic_write_json(output, doc)
    accuracy = doc["metrics"].get("heldout_pair_accuracy")
    shown = "no pairs" if accuracy is None else f"{accuracy:.1%} of {doc['metrics']['pair_count']} held-out pairs"
    return _reply(doc, shown)


def smoke(
    path: Annotated[Path, typer.Argument(help="File of reward examples.", metavar="PATH")],
    *,
    output_dir: Annotated[Path, typer.Option(help="Folder for the five files.")],
    train_split: Annotated[str, typer.Option(help="Rows to train on.")] = "train",
    eval_split: Annotated[str, typer.Option(help="Rows to evaluate on.")] = "eval",
    epochs: Annotated[int, typer.Option(help="Passes over the rows.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Step size.")] = 0.5,
    l2: Annotated[float, typer.Option(help="Weight decay.")] = 0.001,
    max_features: Annotated[int, typer.Option(help="Words of the vocabulary.")] = 2048,
    calibration_bins: Annotated[int, typer.Option(help="Bins of the calibration error.")] = 10,
    lightweight: Annotated[bool, typer.Option("--lightweight", help="Accepted: the fixture always is.")] = False,
) -> Reply:
    """Prove the path from examples to evaluation with a bag-of-words scorer. It says nothing about quality."""
    from bashgym.evals.reward_fixture import train

    doc = train(
        path,
        output_dir,
        train_split=train_split,
        eval_split=eval_split,
        epochs=epochs,
        learning_rate=learning_rate,
        l2=l2,
        max_features=max_features,
        bins=calibration_bins,
    )
    return _reply(doc, f"{'smoke: ' + doc['note']}; files in {safe(str(output_dir))}")


def score(
    *,
    model: Annotated[str, typer.Option(help="Run or folder of a reward model.")],
    source: Annotated[Path, typer.Option("--input", help="File of rows; labels are not needed.")],
    output: Annotated[Path, typer.Option(help="File for the rows with the model's predictions.")],
    split: Annotated[str, typer.Option(help="Score the rows of this split alone; the others are copied.")] = "",
) -> Reply:
    """Ask a trained reward model. `reward-eval evaluate` reads what this writes."""
    from bashgym.core.settings import Settings
    from bashgym.evals.reward_scoring import score_file

    doc = score_file(model, source, output, Settings.from_env(), split=split)
    return Reply(doc, lambda: print(f"{doc['scored']} of {doc['rows']} rows scored: {safe(str(doc['output']))}"))


def _reply(doc: dict[str, Any], line: str) -> Reply:
    def show() -> None:
        print(line)
        for finding in doc["findings"]:
            print(f"  {finding['level']} {finding['code']}: {safe(finding['message'])}")

    return Reply(doc, show, 0 if doc["ok"] else 2)
