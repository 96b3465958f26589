"""`bashgym data ...`: the preflight, the mask view, conversion and overlap, all without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bashgym.cli.inputs import load_config, merge, parse_sets
from bashgym.cli.output import Reply, note, safe, write
from bashgym.core.errors import fail

Dataset = Annotated[Path, typer.Argument(help="Dataset file.", metavar="PATH")]
Format = Annotated[str, typer.Option(help="Row format; auto looks at the first rows.")]
Column = Annotated[
    list[str] | None, typer.Option("--column", help="OURS=YOURS: a column's name in the file; repeatable.")
]
Model = Annotated[str, typer.Option(help="Model whose tokenizer and template count.")]
TINY = "bashgym/tiny-qwen2"


def check(
    *,
    path: Dataset,
    method: Annotated[str, typer.Option("--method", "--strategy", help="Training method.")] = "sft",
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer counts; without it no token is counted.")
    ] = None,
    eval_path: Annotated[Path | None, typer.Option(help="Evaluation rows, to find what both share.")] = None,
    dataset_format: Format = "auto",
    column: Column = None,
    config: Annotated[Path | None, typer.Option(help="JSON object of request fields.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of a request; repeatable.")] = None,
    force: Annotated[list[str] | None, typer.Option(help="Do not count this finding as blocking; repeatable.")] = None,
) -> Reply:
    """The whole preflight of a dataset: contract, tokens, mask, batch arithmetic, overlap.

    The exit status is 2 if a finding blocks.
    """
    import msgspec

    from bashgym.data.preflight import blocking
    from bashgym.data.preflight import check as preflight
    from bashgym.methods.request import parse_request
    from bashgym.runs.prepare import dataset_query
    from bashgym.workspace import Workspace

    flags = {
        "strategy": method,
        "base_model": model or TINY,
        "dataset_path": str(path),
        "eval_dataset_path": str(eval_path) if eval_path else None,
        "dataset_format": dataset_format if dataset_format != "auto" else None,
        "column_mapping": _columns(column) or None,
    }
    request = parse_request(merge(load_config(config), parse_sets(set_ or []), flags))
    report = preflight(dataset_query(request, Workspace.open().model(model).path if model else None))
    left = blocking(report, set(force or []))
    doc = {**msgspec.to_builtins(report), "ok": not left, "forced": sorted(set(force or []))}
    if model is None:
        note("no --model: tokens, truncation and the mask are not checked")
    return Reply(doc, lambda: show_report(doc), 2 if left else 0)


def preview(
    *,
    path: Dataset,
    row: Annotated[int, typer.Option(help="Row, from 1.", min=1)] = 1,
    model: Model = TINY,
    max_seq_length: Annotated[int, typer.Option(help="Cut after this many tokens.", min=8)] = 1024,
    assistant_only_loss: Annotated[bool | None, typer.Option("--assistant-only-loss/--no-assistant-only-loss")] = None,
    completion_only_loss: Annotated[
        bool | None, typer.Option("--completion-only-loss/--no-completion-only-loss")
    ] = None,
    dataset_format: Format = "auto",
    column: Column = None,
) -> Reply:
    """One row as the trainer sees it, token by token: what is trained and what is not."""
    from bashgym.data.preview import mask_view, render_terminal
    from bashgym.workspace import Workspace

    view = mask_view(
        path,
        row,
        Workspace.open().model(model).path,
        max_seq_length=max_seq_length,
        assistant_only_loss=assistant_only_loss,
        completion_only_loss=completion_only_loss,
        dataset_format=dataset_format,
        column_mapping=_columns(column) or None,
    )
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return Reply(view, lambda: write(render_terminal(view, color=color) + "\n"))


def convert(
    path: Dataset,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    dataset_format: Format = "auto",
    column: Column = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> Reply:
    """Write a dataset in any readable format as clean JSONL; rows with errors are left out and named."""
    from bashgym.data.convert import convert as to_jsonl

    doc = to_jsonl(
        path, output, dataset_format=dataset_format, column_mapping=_columns(column) or None, overwrite=overwrite
    )
    return Reply(doc)


def overlap(
    train: Annotated[Path, typer.Argument(help="Training rows.")],
    held_out: Annotated[Path, typer.Argument(help="Evaluation rows.")],
    dataset_format: Format = "auto",
    column: Column = None,
) -> Reply:
    """Rows that training and evaluation data share: exactly, normalised, or by prompt. Exit status 2 if any."""
    import msgspec

    from bashgym.data.duplicates import overlap as shared

    found = msgspec.to_builtins(
        shared(train, held_out, dataset_format=dataset_format, column_mapping=_columns(column) or None)
    )
    doc = {"ok": not found, "train": str(train), "eval": str(held_out), "findings": found}
    return Reply(doc, lambda: _show_findings(found), 2 if found else 0)


def show_report(report: Mapping[str, Any]) -> None:
    """A preflight report as text."""
    print(f"{safe(report['path'])}: {report['rows']} rows, {report['valid_rows']} valid, format {report['format']}")
    print(f"  train {report['train_rows']}, eval {report['eval_rows']}, {report['total_steps']} optimizer steps")
    if tokens := report.get("tokens"):
        print(
            f"  tokens {tokens['total']}, trained {tokens['supervised']}; longest {tokens['max']}, "
            f"p95 {tokens['p95']}; {tokens['truncated_rows']} rows truncated"
        )
    _show_findings(report["findings"])


def _show_findings(findings: Iterable[Mapping[str, Any]]) -> None:
    found = list(findings)
    for finding in found:
        print(f"  {finding['severity']} {finding['code']}: {safe(finding['message'])}")
        if finding.get("mend"):
            print(f"      {safe(finding['mend'])}")
    if not found:
        print("  nothing found")


def _columns(pairs: list[str] | None) -> dict[str, str]:
    mapping = {}
    for pair in pairs or []:
        ours, equals, yours = pair.partition("=")
        if not equals or not ours or not yours:
            raise fail("usage", f"--column needs OURS=YOURS, not {pair[:80]!r}", "Example: --column prompt=question")
        mapping[ours] = yours
    return mapping
