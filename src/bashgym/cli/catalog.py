"""`training capabilities|methods|docs` and `manifest`: what this version can do, from the method registry."""

from __future__ import annotations

from typing import Annotated

import typer

from bashgym.cli.output import Reply, safe, table, write


def capabilities() -> Reply:
    """Every method, field, bound, command and target of this version."""
    from bashgym.methods.catalog import capabilities as all_of_it

    return Reply(all_of_it())


def methods() -> Reply:
    """The training methods, one a line."""
    from bashgym.methods.registry import METHODS

    rows = [
        {
            "method": method.name,
            "start": "direct" if method.direct else "own workflow",
            "built": method.builder is not None,
            "dataset": method.dataset.format,
            "summary": method.summary,
            "aliases": list(method.aliases),
        }
        for method in METHODS.values()
    ]
    return Reply({"methods": rows}, lambda: table(rows, ["method", "start", "built", "dataset", "summary"]))


def docs(
    topic: Annotated[str | None, typer.Option(help="One topic; all are listed without it.")] = None,
    include_content: Annotated[bool, typer.Option("--include-content", help="With the text itself.")] = False,
) -> Reply:
    """What a strategy, metric or word means."""
    from bashgym.methods.catalog import docs as read

    doc = read(topic, include_content or topic is not None)

    def show() -> None:
        for entry in doc["topics"]:
            write(f"{entry['topic']}: {safe(entry['summary'])}\n")
            if "content" in entry:
                write(f"\n{entry['content']}\n")

    return Reply(doc, show)


def manifest() -> Reply:
    """What this version can do, as one document for agents."""
    from bashgym.methods.catalog import manifest as read

    return Reply(read())
